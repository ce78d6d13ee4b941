// fault_guard.h - an engine's segment that is cut short under us fails its copies, not the server.
//
// Touching a page that its file no longer has raises SIGBUS. A thread that copies holds a
// FaultGuard over the ranges it may touch; the handler then puts anonymous memory in place of the
// rest of the range that faulted, notes it in the guarded ranges, and lets the copy run on. Whoever
// copied from or to these ranges at that time, on whichever thread, must ask is_broken() afterwards
// and throw its result away; the ranges stay broken. A SIGBUS anywhere else goes where it went
// before.
//
// The signal is the process's, so the handler is installed once, by the first GuardedRanges, and
// stays.
#pragma once

#include <atomic>
#include <cstddef>
#include <vector>

namespace larder::devices {

struct MappedRange {
  std::byte* base = nullptr;
  std::size_t bytes = 0;
};

// Thread-safe.
class GuardedRanges {
 public:
  explicit GuardedRanges(std::vector<MappedRange> ranges);
  GuardedRanges(const GuardedRanges&) = delete;
  GuardedRanges& operator=(const GuardedRanges&) = delete;
  ~GuardedRanges() = default;

  bool is_broken() const { return broken_.load(std::memory_order_acquire); }

 private:
  friend class FaultGuard;

  // In a signal handler. False when the address is in no range.
  bool mend(const std::byte* address) noexcept;

  const std::vector<MappedRange> ranges_;
  std::atomic<bool> broken_{false};
};

// On the stack of a thread while it copies. Guards of one thread do not nest.
class FaultGuard {
 public:
  explicit FaultGuard(GuardedRanges& ranges) noexcept;
  FaultGuard(const FaultGuard&) = delete;
  FaultGuard& operator=(const FaultGuard&) = delete;
  ~FaultGuard();

  // What the signal handler calls. False: not a fault of ours.
  static bool mend(const void* address) noexcept;
};

}  // namespace larder::devices
