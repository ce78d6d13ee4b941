#include "transport/strands.h"

#include <pthread.h>

#include <utility>

#include "base/check.h"
#include "base/clock.h"

namespace larder::transport {

void Strands::ReadyQueue::push(Strand& strand) {
  strand.next_ready = nullptr;
  if (last_ == nullptr) {
    first_ = &strand;
  } else {
    last_->next_ready = &strand;
  }
  last_ = &strand;
}

Strands::Strand& Strands::ReadyQueue::pop() {
  LARDER_CHECK(first_ != nullptr);
  Strand& strand = *first_;
  first_ = strand.next_ready;
  if (first_ == nullptr) {
    last_ = nullptr;
  }
  strand.next_ready = nullptr;
  return strand;
}

Strands::Strands(const StrandWorkers& workers, Run run)
    : worker_counts_(workers), run_(std::move(run)) {
  LARDER_CHECK(worker_counts_.lookup > 0 && worker_counts_.transfer > 0);
}

Strands::~Strands() {
  stop(std::chrono::milliseconds(0));
}

void Strands::start() {
  LARDER_CHECK(workers_.empty());
  for (std::size_t i = 0; i < worker_counts_.lookup; ++i) {
    workers_.emplace_back([this] {
      pthread_setname_np(pthread_self(), "larder-lookup");
      work(Lane::kLookup);
    });
  }
  for (std::size_t i = 0; i < worker_counts_.transfer; ++i) {
    workers_.emplace_back([this] {
      pthread_setname_np(pthread_self(), "larder-transfer");
      work(Lane::kTransfer);
    });
  }
}

Strands::LaneQueue& Strands::queue_of(Lane lane) {
  return lanes_[static_cast<std::size_t>(lane)];
}

void Strands::make_ready(Strand& strand) {
  strand.state = State::kQueued;
  LaneQueue& lane = queue_of(strand.waiting.front().route.lane);
  lane.ready.push(strand);
  lane.work.notify_one();
}

bool Strands::push(Request& request) {
  LARDER_CHECK(request.route.lane != Lane::kWire);
  const ConnectionId connection = request.connection;
  std::list<Request> node;
  node.emplace_back();  // allocated outside the lock, spliced in without failing
  const MutexLock lock(mutex_);
  if (stopping_) {
    return false;
  }
  const auto [place, is_new] = strands_.try_emplace(connection);
  Strand& strand = place->second;
  node.front() = std::move(request);
  strand.waiting.splice(strand.waiting.end(), node);
  size_.fetch_add(1, std::memory_order_relaxed);
  if (is_new) {
    make_ready(strand);
  }
  return true;
}

void Strands::resume(ConnectionId connection) {
  const MutexLock lock(mutex_);
  const auto place = strands_.find(connection);
  if (place == strands_.end()) {
    return;
  }
  Strand& strand = place->second;
  if (strand.state == State::kRunning) {
    strand.resumed = true;
  } else if (strand.state == State::kHeld && strand.waiting.empty()) {
    strands_.erase(place);
  } else if (strand.state == State::kHeld) {
    make_ready(strand);
  }
}

std::optional<Request> Strands::take(Lane lane) {
  const MutexLock lock(mutex_);
  LaneQueue& queue = queue_of(lane);
  while (queue.ready.empty() && !leaving_) {
    queue.work.wait(mutex_);
  }
  if (queue.ready.empty()) {
    return std::nullopt;
  }
  Strand& strand = queue.ready.pop();
  strand.state = State::kRunning;
  strand.resumed = false;
  Request request = std::move(strand.waiting.front());
  strand.waiting.pop_front();
  return request;
}

void Strands::finish_run(ConnectionId connection, After after) {
  const MutexLock lock(mutex_);
  const auto place = strands_.find(connection);
  LARDER_CHECK(place != strands_.end());
  Strand& strand = place->second;
  if (size_.fetch_sub(1, std::memory_order_relaxed) == 1) {
    emptied_.notify_all();
  }
  if (after == After::kHold && !strand.resumed) {
    // An empty strand is held as well: what its connection sends next waits until the peer has
    // read.
    strand.state = State::kHeld;
  } else if (strand.waiting.empty()) {
    strands_.erase(place);
  } else {
    make_ready(strand);
  }
}

void Strands::work(Lane lane) {
  while (std::optional<Request> request = take(lane)) {
    const ConnectionId connection = request->connection;
    const After after = run_(std::move(*request));
    finish_run(connection, after);
  }
}

std::list<Request> Strands::take_all_waiting() {
  std::list<Request> dropped;
  for (LaneQueue& lane : lanes_) {
    lane.ready = ReadyQueue();
  }
  for (auto place = strands_.begin(); place != strands_.end();) {
    Strand& strand = place->second;
    size_.fetch_sub(strand.waiting.size(), std::memory_order_relaxed);
    dropped.splice(dropped.end(), strand.waiting);
    place = strand.state == State::kRunning ? std::next(place) : strands_.erase(place);
  }
  return dropped;
}

std::size_t Strands::stop(std::chrono::milliseconds drain) {
  const SteadyClock clock;
  const TimePoint deadline = clock.now() + drain;
  std::list<Request>
      dropped;  // destroyed after the lock is released: freeing large frames takes time
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    Duration left = drain;
    while (size_.load(std::memory_order_relaxed) > 0 && left > Duration::zero()) {
      emptied_.wait_for(mutex_, left);
      left = deadline - clock.now();
    }
    leaving_ = true;
    dropped = take_all_waiting();
    for (LaneQueue& lane : lanes_) {
      lane.work.notify_all();
    }
  }
  for (std::thread& worker : workers_) {
    worker.join();
  }
  workers_.clear();
  return dropped.size();
}

}  // namespace larder::transport
