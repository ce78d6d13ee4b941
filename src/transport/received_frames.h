// received_frames.h - the storage behind the frames of every Request of this room.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "transport/dispatcher.h"
#include "transport/outbox.h"
#include "transport/unsent_bytes.h"
#include "transport/zmq_message.h"

namespace larder::transport {

class ReceivedFrames final : public FrameStorage {
 public:
  ReceivedFrames(std::vector<ZmqMessage> frames, std::shared_ptr<UnsentBytes> unsent)
      : frames_(std::move(frames)), unsent_(std::move(unsent)) {}

  const std::vector<ZmqMessage>& frames() const { return frames_; }

  const std::shared_ptr<UnsentBytes>& unsent() const { return unsent_; }

  // The reply to this request, with the uid and operation frames moved out of it: libzmq sends the
  // very bytes that came, and the payloads can be freed now. REQUIRES: at least two frames; the
  // request's spans are void afterwards.
  Answer make_answer(ConnectionId connection, Reply reply);

 private:
  std::vector<ZmqMessage> frames_;
  std::shared_ptr<UnsentBytes> unsent_;  // of the connection; shared with it and its replies
};

// A request whose frames lie in ReceivedFrames.
Request make_request(ConnectionId connection,
                     std::vector<ZmqMessage> frames,
                     std::shared_ptr<UnsentBytes> unsent);

// REQUIRES: made by make_request().
ReceivedFrames& frames_of(const Request& request);

}  // namespace larder::transport
