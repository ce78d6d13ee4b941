#include "pool/segment.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace larder::pool {
namespace {

// fallocate starts over after a signal; a process that is signalled this often has other troubles.
constexpr int kInterruptionsMax = 1000;

std::string error_text(int number) {
  return std::generic_category().message(number);
}

Code code_for(int number) {
  const bool full = number == ENOSPC || number == ENOMEM || number == EDQUOT || number == EFBIG;
  return full ? Code::kNoSpace : Code::kSystem;
}

Error failure(std::string_view what, int number) {
  return Error{code_for(number), fmt::format("{}: {}", what, error_text(number))};
}

Result<void> require_free_space(const std::string& directory,
                                std::size_t wanted,
                                const Swept& swept) {
  struct statvfs status {};

  if (::statvfs(directory.c_str(), &status) != 0) {
    return failure(fmt::format("cannot read the free space of {}", directory), errno);
  }
  if (status.f_blocks == 0) {
    return {};  // a tmpfs without a limit reports no size at all
  }
  const std::size_t free_bytes = status.f_bavail * status.f_frsize;
  if (wanted <= free_bytes) {
    return {};
  }
  std::string message = fmt::format(
      "the pool wants {} bytes, {} has {} free: lower --l1-size-gb or give {} more room (in a "
      "container --shm-size, Docker's default is 64 MB)",
      wanted,
      directory,
      free_bytes,
      directory);
  if (swept.files > 0) {
    message += fmt::format(
        "; {} bytes of segments removed just now stay in use until the engines that map them "
        "register anew or end",
        swept.bytes);
  }
  return Error{Code::kNoSpace, std::move(message)};
}

}  // namespace

Segment::Segment(LockedFile locked, std::size_t bytes)
    : locked_(std::move(locked)), bytes_(bytes) {}

Segment::Segment(Segment&& other) noexcept
    : locked_(std::move(other.locked_)),
      base_(std::exchange(other.base_, nullptr)),
      bytes_(other.bytes_) {}

Segment::~Segment() {
  // The name goes while the lock is held, so that nobody takes the file for stale in between.
  if (locked_.file.valid() && name_intact()) {
    ::unlink(locked_.path.c_str());
  }
  if (base_ != nullptr) {
    ::munmap(base_, bytes_);
  }
}

Result<Segment> Segment::create_shared(const std::string& directory,
                                       const std::optional<std::string>& given_name,
                                       std::size_t bytes) {
  LARDER_CHECK(bytes > 0);
  const Swept swept = sweep_stale_segments(directory);
  if (swept.files > 0) {
    log::info("removed {} stale shared-memory segments ({} bytes) from {}",
              swept.files,
              swept.bytes,
              directory);
  }
  auto locked = create_locked_file(directory, given_name);
  if (!locked) {
    return locked.error();
  }
  Segment segment(std::move(*locked), bytes);
  if (auto enough = require_free_space(directory, bytes, swept); !enough) {
    return enough.error();
  }
  if (::ftruncate(segment.locked_.file.get(), static_cast<off_t>(bytes)) != 0) {
    return failure(fmt::format("cannot size {} to {} bytes", segment.locked_.path, bytes), errno);
  }
  if (auto mapped = segment.map(); !mapped) {
    return mapped.error();
  }
  return segment;
}

Result<Segment> Segment::create_private(std::size_t bytes) {
  LARDER_CHECK(bytes > 0);
  Segment segment(LockedFile{}, bytes);
  if (auto mapped = segment.map(); !mapped) {
    return mapped.error();
  }
  return segment;
}

Result<void> Segment::map() {
  const bool shared = locked_.file.valid();
  const int flags = shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  void* mapped =
      ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, flags, shared ? locked_.file.get() : -1, 0);
  if (mapped == MAP_FAILED) {
    return failure(fmt::format("cannot map {} bytes for the pool (lower --l1-size-gb)", bytes_),
                   errno);
  }
  base_ = static_cast<std::byte*>(mapped);
  ::madvise(base_, bytes_, MADV_DONTDUMP);
  return {};
}

Result<void> Segment::reserve(std::size_t offset, std::size_t bytes) const {
  LARDER_CHECK(offset <= bytes_ && bytes <= bytes_ - offset);
  if (!locked_.file.valid() || bytes == 0) {
    return {};
  }
  int last_failure = 0;
  for (int attempt = 0; attempt < kInterruptionsMax; ++attempt) {
    const int done =
        ::fallocate(locked_.file.get(), 0, static_cast<off_t>(offset), static_cast<off_t>(bytes));
    if (done == 0) {
      return {};
    }
    last_failure = errno;
    if (last_failure == EOPNOTSUPP || last_failure == ENOSYS) {
      return reserve_by_writing(locked_.file, offset, bytes);
    }
    if (last_failure != EINTR) {
      break;
    }
  }
  return failure(
      fmt::format("cannot reserve bytes {} to {} of {}", offset, offset + bytes, locked_.path),
      last_failure);
}

bool Segment::populate(std::size_t offset, std::size_t bytes) const {
  LARDER_CHECK(offset <= bytes_ && bytes <= bytes_ - offset);
#ifdef MADV_POPULATE_WRITE
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t from = offset / page * page;
  return ::madvise(base_ + from, offset + bytes - from, MADV_POPULATE_WRITE) == 0;
#else
  return false;
#endif
}

bool Segment::name_intact() const {
  if (!locked_.file.valid()) {
    return true;
  }
  const auto named = identity_at(locked_.path);
  return named.has_value() && named == identity_of(locked_.file);
}

Result<void> reserve_by_writing(const FileDescriptor& file, std::size_t offset, std::size_t bytes) {
  static constexpr std::array<std::byte, 65536> kZeroes{};
  std::size_t done = 0;
  while (done < bytes) {
    const std::size_t piece = std::min(bytes - done, kZeroes.size());
    const ssize_t written =
        ::pwrite(file.get(), kZeroes.data(), piece, static_cast<off_t>(offset + done));
    if (written > 0) {
      done += static_cast<std::size_t>(written);
    } else if (written == 0 || errno != EINTR) {
      return failure("cannot reserve space by writing zeroes", written == 0 ? EIO : errno);
    }
  }
  return {};
}

}  // namespace larder::pool
