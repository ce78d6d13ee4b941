// shared_segment.h - a POSIX shared-memory segment of an engine, mapped for reading and writing.
//
// The engine created it and unlinks it; here it is only mapped, and unmapped on destruction. Its
// size is checked when it is mapped; an engine that cuts it short later makes its own copies fail
// (fault_guard.h), and nothing else.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "base/result.h"
#include "devices/fault_guard.h"

namespace larder::devices {

class SharedSegment {
 public:
  // kNotFound: there is no such segment (another container, or its engine is gone); kInvalid: it is
  // shorter than `bytes`, or no file; kSystem otherwise. REQUIRES: bytes > 0.
  static Result<SharedSegment> map(const std::string& name, std::size_t bytes);

  SharedSegment(SharedSegment&& other) noexcept : range_(std::exchange(other.range_, {})) {}

  SharedSegment& operator=(SharedSegment&& other) noexcept;
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;
  ~SharedSegment();

  const MappedRange& range() const { return range_; }

 private:
  explicit SharedSegment(MappedRange range) : range_(range) {}

  MappedRange range_;
};

}  // namespace larder::devices
