// segment.h - the bytes of the pool: one shared file, or private memory.
//
// Owned by one Pool. The shared kind is a file of exactly the asked size, mode 0600, locked for the
// life of the process (segment_file.h), sparse at first. reserve() makes the system back a range:
// from then on touching it cannot fail in any process. Private memory is one anonymous mapping
// without MAP_NORESERVE: the kernel's overcommit rule may refuse it at once, later it is backed as
// it is touched, by this process only.
//
// Neither kind goes into core dumps: it is large, and it is what users said. Threads: reserve() and
// populate() of different ranges may run at the same time; the rest is constant after creation. The
// destructor unlinks the file if its name still leads to it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "base/result.h"
#include "pool/file_descriptor.h"
#include "pool/segment_file.h"

namespace larder::pool {

class Segment {
 public:
  // Sweeps stale segments of ours, then creates. kNoSpace: the directory cannot hold `bytes`;
  // kBusy: the name belongs to somebody else; kSystem otherwise. REQUIRES: bytes > 0.
  static Result<Segment> create_shared(const std::string& directory,
                                       const std::optional<std::string>& given_name,
                                       std::size_t bytes);

  // kNoSpace when the system refuses so much memory. REQUIRES: bytes > 0.
  static Result<Segment> create_private(std::size_t bytes);

  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&&) = delete;
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  ~Segment();

  // Backs the range with memory; all or nothing where the file system has fallocate, and by writing
  // zeroes elsewhere, so nobody may use the range before. kNoSpace when there is no more. Success
  // at once for private memory.
  Result<void> reserve(std::size_t offset, std::size_t bytes) const;

  // Fills this process's page tables, so that the first access does not fault. Only a matter of
  // speed: false, and nothing done, on kernels before 5.14. REQUIRES: the range is reserved.
  bool populate(std::size_t offset, std::size_t bytes) const;

  bool name_intact() const;  // true for private memory

  std::byte* base() const { return base_; }

  std::size_t bytes() const { return bytes_; }

  const std::string& name() const { return locked_.name; }  // "" for private memory

 private:
  Segment(LockedFile locked, std::size_t bytes);
  Result<void> map();

  LockedFile locked_;
  std::byte* base_ = nullptr;  // the mapping, unmapped by the destructor
  std::size_t bytes_ = 0;
};

// What reserve() does where fallocate is not supported.
Result<void> reserve_by_writing(const FileDescriptor& file, std::size_t offset, std::size_t bytes);

}  // namespace larder::pool
