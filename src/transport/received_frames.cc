#include "transport/received_frames.h"

#include "base/check.h"
#include "transport/reply_sender.h"

namespace larder::transport {

Answer ReceivedFrames::make_answer(ConnectionId connection, Reply reply) {
  LARDER_CHECK(frames_.size() >= 2);
  Answer answer;
  answer.connection = connection;
  answer.uid = std::move(frames_[0]);
  answer.operation = std::move(frames_[1]);
  const std::size_t bytes = charged_bytes(reply);
  if (bytes > 0) {
    answer.charge = Charge(unsent_, bytes);
  }
  answer.reply = std::move(reply);
  return answer;
}

Request make_request(ConnectionId connection,
                     std::vector<ZmqMessage> frames,
                     std::shared_ptr<UnsentBytes> unsent) {
  auto storage = std::make_unique<ReceivedFrames>(std::move(frames), std::move(unsent));
  Request request;
  request.connection = connection;
  request.frames.reserve(storage->frames().size());
  for (const ZmqMessage& frame : storage->frames()) {
    request.frames.emplace_back(frame.bytes());
  }
  request.storage = std::move(storage);
  return request;
}

ReceivedFrames& frames_of(const Request& request) {
  LARDER_CHECK(request.storage != nullptr);
  return static_cast<ReceivedFrames&>(*request.storage);
}

}  // namespace larder::transport
