#include "pool/segment_name.h"

#include <fmt/core.h>
#include <unistd.h>

#include <random>

namespace larder::pool {

Result<std::string> segment_name_from(std::string_view given) {
  std::string_view rest = given;
  while (rest.starts_with('/')) {
    rest.remove_prefix(1);
  }
  if (rest.empty()) {
    return Error{Code::kInvalid,
                 fmt::format("--shm-name '{}' names nothing: give a name, or \"\" to go without "
                             "shared memory",
                             given)};
  }
  if (rest.find('/') != std::string_view::npos || rest.find('\0') != std::string_view::npos) {
    return Error{Code::kInvalid,
                 fmt::format("--shm-name '{}' must not contain '/' (beyond the start) or NUL: it "
                             "becomes one file name",
                             given)};
  }
  std::string name(rest.starts_with(kSegmentPrefix) ? "" : kSegmentPrefix);
  name += rest;
  if (name.size() > kSegmentNameBytesMax) {
    return Error{Code::kInvalid,
                 fmt::format("--shm-name is too long: '{}' has {} bytes, at most {} are possible",
                             name,
                             name.size(),
                             kSegmentNameBytesMax)};
  }
  return name;
}

std::string fresh_segment_name() {
  std::random_device random;
  return fmt::format("{}{}_{:08x}{:08x}", kMarkedPrefix, ::getpid(), random(), random());
}

}  // namespace larder::pool
