// zmq_message.h - one libzmq frame as a move-only value. Private to this room.
//
// The bytes of a short frame lie inside the object: spans into it are void once it is moved.
#pragma once

#include <zmq.h>

#include <cstddef>
#include <cstring>
#include <new>
#include <span>
#include <utility>

#include "base/check.h"

namespace larder::transport {

class ZmqMessage {
 public:
  ZmqMessage() noexcept { zmq_msg_init(&message_); }

  // A copy of the bytes. Throws std::bad_alloc.
  explicit ZmqMessage(std::span<const std::byte> bytes) {
    if (zmq_msg_init_size(&message_, bytes.size()) != 0) {
      throw std::bad_alloc();
    }
    if (!bytes.empty()) {
      std::memcpy(zmq_msg_data(&message_), bytes.data(), bytes.size());
    }
  }

  // The bytes themselves: libzmq calls `release(data, hint)` when it is done, possibly on its own
  // thread. Throws std::bad_alloc, and then `release` will not be called.
  ZmqMessage(std::span<const std::byte> bytes, zmq_free_fn* release, void* hint) {
    // libzmq only reads what it sends; its interface lacks the const.
    void* data =
        const_cast<std::byte*>(bytes.data());  // NOLINT(cppcoreguidelines-pro-type-const-cast)
    if (zmq_msg_init_data(&message_, data, bytes.size(), release, hint) != 0) {
      throw std::bad_alloc();
    }
  }

  ZmqMessage(const ZmqMessage&) = delete;
  ZmqMessage& operator=(const ZmqMessage&) = delete;

  ZmqMessage(ZmqMessage&& other) noexcept {
    zmq_msg_init(&message_);
    zmq_msg_move(&message_, &other.message_);
  }

  ZmqMessage& operator=(ZmqMessage&& other) noexcept {
    if (this != &other) {
      zmq_msg_move(&message_, &other.message_);  // closes what was here
    }
    return *this;
  }

  ~ZmqMessage() { zmq_msg_close(&message_); }

  // Without waiting; false: errno says why. Replaces the content.
  bool receive(void* socket) noexcept { return zmq_msg_recv(&message_, socket, ZMQ_DONTWAIT) >= 0; }

  // Without waiting; false: errno says why and the content is still here.
  bool send(void* socket, bool more) noexcept {
    return zmq_msg_send(&message_, socket, ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0)) >= 0;
  }

  bool has_more() const noexcept { return zmq_msg_more(&message_) != 0; }

  // The descriptor of the connection it came on; -1 when libzmq does not know (peers older than
  // ZMTP 3.0).
  int descriptor() const noexcept { return zmq_msg_get(&message_, ZMQ_SRCFD); }

  std::span<const std::byte> bytes() const noexcept {
    const void* data = zmq_msg_data(&message_);
    return {static_cast<const std::byte*>(data), zmq_msg_size(&message_)};
  }

 private:
  // The reading calls of libzmq lack the const as well.
  mutable zmq_msg_t message_;
};

}  // namespace larder::transport
