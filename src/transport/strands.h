// strands.h - runs requests so that one connection's stay in order while connections run in
// parallel.
//
// A strand is the queue of one connection. It takes requests of both slow lanes and runs one at a
// time, in order of arrival, each on a worker thread of its own lane. A worker runs one request of
// a strand and then turns to the next strand, so a connection with much to do does not hold back
// the others of its lane. A run that returns After::kHold parks its strand until resume(): this is
// how a peer that does not read its replies stops costing memory, without occupying a worker.
//
// push() and resume() may be called from any thread. start() and stop() belong to the owner.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "transport/dispatcher.h"

namespace larder::transport {

enum class After : std::uint8_t { kNext, kHold };

struct StrandWorkers {
  std::size_t lookup;
  std::size_t transfer;
};

class Strands {
 public:
  // `run` is called on worker threads and must not throw.
  using Run = std::function<After(Request)>;

  // REQUIRES: at least one worker of each lane.
  Strands(const StrandWorkers& workers, Run run);
  Strands(const Strands&) = delete;
  Strands& operator=(const Strands&) = delete;
  ~Strands();  // stop() without drain

  void start();

  // Takes the request, or leaves it untouched and returns false: stop() has begun. How much may
  // wait is for the caller to bound. REQUIRES: request.route.lane is not kWire. Throws
  // std::bad_alloc and leaves the request untouched then as well.
  bool push(Request& request);

  // Ends the hold of a connection's strand. A call during the run that is about to ask for the hold
  // cancels it. Unknown connections are ignored.
  void resume(ConnectionId connection);

  // Requests waiting or running.
  std::uint64_t size() const { return size_.load(std::memory_order_relaxed); }

  // Takes nothing more, lets what is queued run for up to `drain`, drops the rest, waits for the
  // runs in progress and joins the threads. Returns how many were dropped. Idempotent.
  std::size_t stop(std::chrono::milliseconds drain);

 private:
  enum class State : std::uint8_t { kQueued, kRunning, kHeld };

  struct Strand {
    std::list<Request> waiting;
    State state = State::kQueued;
    bool resumed = false;          // while kRunning: the hold that this run may ask for is void
    Strand* next_ready = nullptr;  // link of ReadyQueue
  };

  // Strands whose first request runs on one lane. Intrusive, so that queueing a strand cannot fail.
  class ReadyQueue {
   public:
    bool empty() const { return first_ == nullptr; }

    void push(Strand& strand);
    Strand& pop();  // REQUIRES: not empty()

   private:
    Strand* first_ = nullptr;
    Strand* last_ = nullptr;
  };

  struct LaneQueue {
    ReadyQueue ready;
    ConditionVariable work;
  };

  LaneQueue& queue_of(Lane lane) LARDER_REQUIRES(mutex_);
  void make_ready(Strand& strand) LARDER_REQUIRES(mutex_);
  std::optional<Request> take(Lane lane);  // nullopt: the worker leaves
  void finish_run(ConnectionId connection, After after);
  void work(Lane lane);
  std::list<Request> take_all_waiting() LARDER_REQUIRES(mutex_);

  const StrandWorkers worker_counts_;
  const Run run_;
  std::atomic<std::uint64_t> size_{0};

  Mutex mutex_;
  std::unordered_map<ConnectionId, Strand> strands_ LARDER_GUARDED_BY(mutex_);
  std::array<LaneQueue, kLaneCount> lanes_ LARDER_GUARDED_BY(mutex_);
  ConditionVariable emptied_;
  bool stopping_ LARDER_GUARDED_BY(mutex_) = false;
  bool leaving_ LARDER_GUARDED_BY(mutex_) = false;

  std::vector<std::thread> workers_;  // touched by start() and stop() only
};

}  // namespace larder::transport
