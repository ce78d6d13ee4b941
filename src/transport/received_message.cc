#include "transport/received_message.h"

#include <new>

#include "base/check.h"

namespace larder::transport {

Request make_request(ConnectionId connection,
                     zmtp::Message message,
                     std::shared_ptr<UnsentBytes> unsent) {
  Request request;
  request.connection = connection;
  request.frames = std::move(message.frames);
  request.placed = std::move(message.placed);
  request.storage = std::make_unique<ReceivedMessage>(std::move(message.owners), std::move(unsent));
  return request;
}

void leave_blocks(Request& request) {
  LARDER_CHECK(request.storage != nullptr);
  auto& received = static_cast<ReceivedMessage&>(*request.storage);
  zmtp::Message message{std::move(request.frames), std::move(received.owners()), {}};
  const auto put_back = [&] {
    request.frames = std::move(message.frames);
    received.owners() = std::move(message.owners);
  };
  try {
    message.leave_blocks();
  } catch (const std::bad_alloc&) {
    put_back();
    throw;
  }
  put_back();
}

const std::shared_ptr<UnsentBytes>& unsent_of(const Request& request) {
  LARDER_CHECK(request.storage != nullptr);
  return static_cast<const ReceivedMessage&>(*request.storage).unsent();
}

}  // namespace larder::transport
