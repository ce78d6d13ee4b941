// outbox.h - what other threads hand to the wire thread: answers, word that a held connection has
// room again, probes, and the order to wind down.
//
// Our own mutex and an eventfd instead of a socket pair: nothing is copied or serialised, and
// sanitizers see the hand-over. Any thread may push; only the wire thread takes. Shared by the
// server and by replies that libzmq still holds, so it may outlive both.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "transport/dispatcher.h"
#include "transport/unsent_bytes.h"
#include "transport/zmq_message.h"

namespace larder::transport {

struct Answer {
  ConnectionId connection{};
  ZmqMessage uid;  // the request's own frames
  ZmqMessage operation;
  Reply reply;
  Charge charge;
};

// How far the wire thread has wound down: serving; no more requests taken in; left.
enum class Phase : std::uint8_t { kServe, kDrain, kLeave };

class Outbox {
 public:
  static Result<std::shared_ptr<Outbox>> create();

  explicit Outbox(int eventfd) : descriptor_(eventfd) {}  // owns it

  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;
  ~Outbox();

  // Dropped when the wire thread has left.
  void push(Answer answer);
  void push_room(ConnectionId connection);

  // True when the wire thread has come round within the time.
  bool probe(std::chrono::milliseconds timeout);

  // Asks the wire thread for the phase and waits until it has reached it.
  void wind_down(Phase phase);

  // The wire thread's side.
  struct Batch {
    std::vector<Answer> answers;
    std::vector<ConnectionId> with_room;
    std::uint64_t probe = 0;
    Phase phase = Phase::kServe;
    bool is_awaited = false;  // somebody waits for acknowledge()
  };

  int descriptor() const { return descriptor_; }  // readable when take() has something to bring

  Batch take();
  void acknowledge(const Batch& batch);  // after the batch has been acted on

 private:
  void wake() LARDER_REQUIRES(mutex_);

  const int descriptor_;
  Mutex mutex_;
  ConditionVariable acknowledged_;
  std::vector<Answer> answers_ LARDER_GUARDED_BY(mutex_);
  std::vector<ConnectionId> with_room_ LARDER_GUARDED_BY(mutex_);
  std::uint64_t probe_wanted_ LARDER_GUARDED_BY(mutex_) = 0;
  std::uint64_t probe_answered_ LARDER_GUARDED_BY(mutex_) = 0;
  Phase phase_wanted_ LARDER_GUARDED_BY(mutex_) = Phase::kServe;
  Phase phase_reached_ LARDER_GUARDED_BY(mutex_) = Phase::kServe;
  bool signalled_ LARDER_GUARDED_BY(mutex_) = false;  // one write per wake-up, not per answer
};

}  // namespace larder::transport
