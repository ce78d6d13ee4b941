#include "devices/shared_segment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace larder::devices {
namespace {

// Closed when the mapping holds the file.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}

  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  ~Descriptor() {
    if (number_ >= 0) {
      ::close(number_);
    }
  }

  int number() const { return number_; }

 private:
  int number_;
};

Error system_error(const std::string& name, std::string_view what) {
  const int number = errno;
  const Code code = number == ENOENT ? Code::kNotFound : Code::kSystem;
  return Error{code, fmt::format("{} of segment {}: {}", what, name, std::strerror(number))};
}

}  // namespace

Result<SharedSegment> SharedSegment::map(const std::string& name, std::size_t bytes) {
  const Descriptor file(::shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0));
  if (file.number() < 0) {
    return system_error(name, "shm_open");
  }

  struct stat status {};

  if (::fstat(file.number(), &status) != 0) {
    return system_error(name, "fstat");
  }
  if (!S_ISREG(status.st_mode) || status.st_size < 0 ||
      static_cast<std::size_t>(status.st_size) < bytes) {
    return Error{Code::kInvalid,
                 fmt::format("segment {} has {} bytes, {} are registered",
                             name,
                             static_cast<std::int64_t>(status.st_size),
                             bytes)};
  }
  void* const base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.number(), 0);
  if (base == MAP_FAILED) {
    return system_error(name, "mmap");
  }
  return SharedSegment(MappedRange{static_cast<std::byte*>(base), bytes});
}

SharedSegment& SharedSegment::operator=(SharedSegment&& other) noexcept {
  if (this != &other) {
    const SharedSegment unmapped(std::move(*this));
    range_ = std::exchange(other.range_, {});
  }
  return *this;
}

SharedSegment::~SharedSegment() {
  if (range_.base != nullptr) {
    ::munmap(range_.base, range_.bytes);
  }
}

}  // namespace larder::devices
