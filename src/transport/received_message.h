// received_message.h - the storage behind the frames of every Request of this room.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "transport/dispatcher.h"
#include "transport/unsent_bytes.h"
#include "zmtp/message.h"

namespace larder::transport {

class ReceivedMessage final : public FrameStorage {
 public:
  ReceivedMessage(std::vector<zmtp::BufferRef> owners, std::shared_ptr<UnsentBytes> unsent)
      : owners_(std::move(owners)), unsent_(std::move(unsent)) {}

  const std::shared_ptr<UnsentBytes>& unsent() const { return unsent_; }

  std::vector<zmtp::BufferRef>& owners() { return owners_; }

 private:
  std::vector<zmtp::BufferRef> owners_;
  std::shared_ptr<UnsentBytes> unsent_;  // of the connection; shared with it and its replies
};

// A request whose frames lie in a ReceivedMessage.
Request make_request(ConnectionId connection,
                     zmtp::Message message,
                     std::shared_ptr<UnsentBytes> unsent);

// For a request that has to wait: keeps no receive block from being used again meanwhile
// (message.h). REQUIRES: made by make_request(). Throws std::bad_alloc and leaves it as it was.
void leave_blocks(Request& request);

// Of the connection that the request came on. REQUIRES: made by make_request().
const std::shared_ptr<UnsentBytes>& unsent_of(const Request& request);

}  // namespace larder::transport
