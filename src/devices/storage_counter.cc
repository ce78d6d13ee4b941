#include "devices/storage_counter.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <string_view>

#include "devices/fault_guard.h"

namespace larder::devices {

namespace {

constexpr std::string_view kPrefix = "/torch_";
constexpr std::size_t kNameBytesMax = 255;
constexpr std::uint64_t kCounterBytes = sizeof(std::int64_t);
constexpr std::uint64_t kIndexMax = std::uint64_t{1} << 32;

bool is_torch_name(const std::string& name) {
  return name.starts_with(kPrefix) && name.size() <= kNameBytesMax &&
         name.find('/', 1) == std::string::npos && name.find('\0') == std::string::npos;
}

bool take_one_off(std::int64_t& shared) {
  const std::atomic_ref<std::int64_t> count(shared);
  std::int64_t seen = count.load();
  while (seen > 0) {
    if (count.compare_exchange_weak(seen, seen - 1)) {
      return true;
    }
  }
  return false;
}

// `fd` is the counters' file.
bool release_in_file(int fd, std::uint64_t index) {
  struct stat status {};

  if (::fstat(fd, &status) != 0 || status.st_size <= 0) {
    return false;
  }
  const auto bytes = static_cast<std::uint64_t>(status.st_size);
  if (index >= kIndexMax || (index + 1) * kCounterBytes > bytes) {
    return false;
  }
  void* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) {
    return false;
  }
  // The file is the engine's, which may cut it short at any time.
  GuardedRanges ranges({{static_cast<std::byte*>(mapped), bytes}});
  bool released = false;
  {
    const FaultGuard guard(ranges);
    released = take_one_off(static_cast<std::int64_t*>(mapped)[index]);
  }
  ::munmap(mapped, bytes);
  return released && !ranges.is_broken();
}

}  // namespace

bool release_storage(const StorageCounter& counter) {
  if (!is_torch_name(counter.file_name)) {
    return false;
  }
  const int fd = ::shm_open(counter.file_name.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC, 0);
  if (fd < 0) {
    return false;
  }
  const bool released = release_in_file(fd, counter.index);
  ::close(fd);
  return released;
}

}  // namespace larder::devices
