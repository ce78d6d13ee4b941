// tensor_pickle_tool - src/tensors/tensor_pickle.h on the command line, for test_tensor_pickle.py.
//
//   tensor_pickle_tool read PICKLE                       a line per tensor: dtype, shape, row-major
//   bytes in hex tensor_pickle_tool write DTYPE SHAPE OBJECTS PICKLE  OBJECTS holds whole objects,
//   one behind the other
//
// SHAPE is like 2,3,4. Exit status 1: the pickle is refused; 2: used wrongly.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "base/check.h"
#include "tensors/tensor_pickle.h"

namespace {

using larder::tensors::Layout;
using larder::tensors::TensorView;

constexpr larder::tensors::TensorListLimits kLimits = {.tensors_max = 5000,
                                                       .storage_bytes_max = std::size_t{1} << 32};

std::vector<std::byte> read_file(const char* path) {
  std::ifstream file(path, std::ios::binary);
  LARDER_CHECK(file.good());
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}

int read(const char* path) {
  const std::vector<std::byte> pickle = read_file(path);
  const auto tensors = larder::tensors::read_tensor_list(pickle, kLimits);
  if (!tensors) {
    std::fprintf(stderr, "%s\n", tensors.error().detail.c_str());
    return 1;
  }
  for (const TensorView& tensor : tensors.value()) {
    const Layout layout{tensor.dtype, tensor.shape};
    std::printf("%s", larder::tensors::to_string(layout).c_str());
    std::vector<std::byte> object;
    if (tensor.element_count() > 0 && !tensor.shape.empty()) {
      object.resize(larder::tensors::bytes_of(layout).value());
      LARDER_CHECK(larder::tensors::copy_to_object(tensor, layout, object).has_value());
    }
    std::printf(" ");
    for (const std::byte byte : object) {
      std::printf("%02x", std::to_integer<unsigned>(byte));
    }
    std::printf("\n");
  }
  return 0;
}

int write(const std::string& dtype,
          const std::string& shape,
          const char* objects_path,
          const char* path) {
  Layout layout;
  layout.dtype = larder::tensors::dtype_from_name(dtype).value();
  std::istringstream dimensions(shape);
  for (std::string dimension; std::getline(dimensions, dimension, ',');) {
    layout.shape.push_back(std::stoll(dimension));
  }
  const std::size_t object_bytes = larder::tensors::bytes_of(layout).value();
  const std::vector<std::byte> bytes = read_file(objects_path);
  LARDER_CHECK(bytes.size() % object_bytes == 0);
  std::vector<std::span<const std::byte>> objects;
  for (std::size_t at = 0; at < bytes.size(); at += object_bytes) {
    objects.push_back(std::span(bytes).subspan(at, object_bytes));
  }
  larder::codec::Bytes pickle;
  larder::tensors::write_tensor_list(layout, objects, pickle);
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(pickle.data()),
             static_cast<std::streamsize>(pickle.size()));
  return file.good() ? 0 : 2;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv, argv + argc);
  if (argc == 3 && arguments[1] == "read") {
    return read(argv[2]);
  }
  if (argc == 6 && arguments[1] == "write") {
    return write(arguments[2], arguments[3], argv[4], argv[5]);
  }
  std::fprintf(stderr,
               "usage: tensor_pickle_tool read PICKLE | write DTYPE SHAPE OBJECTS PICKLE\n");
  return 2;
}
