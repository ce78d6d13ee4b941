// outbox.h - what other threads hand to the wire thread: answers, probes, and the order to wind
// down.
//
// Our own mutex and an eventfd instead of a socket pair: nothing is copied or serialised, and
// sanitizers see the hand-over. The eventfd is written once for each batch and never read: the
// poller watches it edge-triggered. Any thread may push; only the wire thread takes.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "transport/descriptor.h"
#include "transport/dispatcher.h"
#include "transport/send_queue.h"

namespace larder::transport {

// A request has been run.
struct Answer {
  ConnectionId connection{};
  std::size_t request_bytes = 0;           // no longer in flight
  std::optional<OutgoingMessage> message;  // nullopt: it stays unanswered
};

// How far the wire thread has wound down: serving; no more requests taken in; left.
enum class Phase : std::uint8_t { kServe, kDrain, kLeave };

class Outbox {
 public:
  static Result<std::unique_ptr<Outbox>> create();

  explicit Outbox(Descriptor eventfd) : descriptor_(std::move(eventfd)) {}

  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;
  ~Outbox() = default;

  // Dropped when the wire thread has left.
  void push(Answer answer);

  // True when the wire thread has come round within the time.
  bool probe(std::chrono::milliseconds timeout);

  // Asks the wire thread for the phase and waits until it has reached it.
  void wind_down(Phase phase);

  // The wire thread's side.
  struct Batch {
    std::vector<Answer> answers;
    std::uint64_t probe = 0;
    Phase phase = Phase::kServe;
    bool is_awaited = false;  // somebody waits for acknowledge()
  };

  int descriptor() const { return descriptor_.get(); }  // has an edge when take() brings something

  Batch take();
  void acknowledge(const Batch& batch);  // after the batch has been acted on

 private:
  void wake() LARDER_REQUIRES(mutex_);

  const Descriptor descriptor_;
  Mutex mutex_;
  ConditionVariable acknowledged_;
  std::vector<Answer> answers_ LARDER_GUARDED_BY(mutex_);
  std::uint64_t probe_wanted_ LARDER_GUARDED_BY(mutex_) = 0;
  std::uint64_t probe_answered_ LARDER_GUARDED_BY(mutex_) = 0;
  Phase phase_wanted_ LARDER_GUARDED_BY(mutex_) = Phase::kServe;
  Phase phase_reached_ LARDER_GUARDED_BY(mutex_) = Phase::kServe;
  bool signalled_ LARDER_GUARDED_BY(mutex_) = false;  // one write per wake-up, not per answer
};

}  // namespace larder::transport
