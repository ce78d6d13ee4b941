// device.h - what larder needs of the memory that engines keep their KV cache in.
//
// EngineMemory is one registration's mapped tensors. start() begins the copies of one STORE or
// RETRIEVE; `done` is called exactly once: before start() returns on the host, on the backend's
// completion thread on CUDA. Nobody may use a copy's bytes before that. `done` owns what a copy
// needs until then, the EngineMemory included: so a registration that is replaced or reaped is
// unmapped after its last copy.
//
// An engine that leaves takes its memory with it, and what is copied from there afterwards is
// somebody else's. So whoever ends a registration retires its memory first.
//
// Thread-safe: any transfer worker, several at once.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "devices/shared_tensor.h"
#include "geometry/block_lists.h"
#include "geometry/copy_runs.h"
#include "geometry/engine_cache.h"

namespace larder::devices {

enum class Direction : std::uint8_t { kStore, kRetrieve };  // engine to object, object to engine

// Bytes that travel in requests and replies and stand for a point in the work of a device.
using EventHandle = std::vector<std::byte>;

struct ObjectCopy {
  std::uint32_t object_group = 0;
  std::size_t chunk = 0;             // counted from the request's first
  std::span<const std::byte> bytes;  // in the pool; a STORE writes them
};

struct CopyJob {
  Direction direction = Direction::kStore;
  geometry::BlockIds block_ids;          // checked (geometry/block_lists.h)
  std::vector<ObjectCopy> objects;       // kept in place by what `done` owns
  std::vector<std::size_t> skipped_ids;  // RETRIEVE: of each kernel group, counted over the
                                         // request's chunks (ids_to_skip()); empty: none
  EventHandle engine_event;              // wait for it before the first byte is touched
  std::function<void(bool copied)> done;
};

class EngineMemory {
 public:
  explicit EngineMemory(geometry::CachePlan plan) : plan_(std::move(plan)) {}

  EngineMemory(const EngineMemory&) = delete;
  EngineMemory& operator=(const EngineMemory&) = delete;
  virtual ~EngineMemory() = default;  // unmaps

  const geometry::CachePlan& plan() const { return plan_; }

  struct Started {
    bool started = false;  // false: nothing was copied, and done(false) has been called
    EventHandle event;     // complete when the copies are; usable in either case
  };

  Started start(CopyJob job) LARDER_EXCLUDES(copies_mutex_);

  // The engine is about to use this memory for something else: no copy starts any more, and those
  // under way are waited for. False: after `patience` some still are; whatever becomes of them,
  // they count as failed.
  bool retire(std::chrono::milliseconds patience) LARDER_EXCLUDES(copies_mutex_);

  // kUnsupported: nobody can wait for an event of this form, so a request that carries it fails.
  virtual Result<void> check_event(std::span<const std::byte> /*engine_event*/) { return {}; }

  // An event that is complete already: for requests that fail before they start.
  virtual EventHandle completed_event() = 0;

  virtual std::string_view device_name() const = 0;  // "cpu", "cuda:0"; for logs and status

 private:
  // What start() promises, but for its own part of it.
  virtual Started do_start(CopyJob job) = 0;

  bool begin_copy() LARDER_EXCLUDES(copies_mutex_);
  void end_copy() LARDER_EXCLUDES(copies_mutex_);
  bool is_retired() const LARDER_EXCLUDES(copies_mutex_);

  const geometry::CachePlan plan_;
  mutable Mutex copies_mutex_;
  ConditionVariable copies_ended_;
  std::size_t copies_under_way_ LARDER_GUARDED_BY(copies_mutex_) = 0;
  bool is_closed_ LARDER_GUARDED_BY(copies_mutex_) = false;   // no copy starts
  bool is_retired_ LARDER_GUARDED_BY(copies_mutex_) = false;  // none succeeds
};

// The runs of one object of a job, over all kernel groups of its object group.
void append_object_runs(const geometry::CachePlan& plan,
                        std::span<const std::uint64_t> bases,
                        const CopyJob& job,
                        const ObjectCopy& object,
                        std::vector<geometry::CopyRun>& runs);

}  // namespace larder::devices
