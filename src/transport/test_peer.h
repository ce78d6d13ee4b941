// test_peer.h - for tests of this room: clients (a libzmq DEALER and a bare TCP socket) and a
// dispatcher whose behaviour the request's operation frame selects.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "transport/dispatcher.h"
#include "transport/test_gate.h"

namespace larder::transport {

using Frames = std::vector<std::string>;

inline std::string text_of(Frame frame) {
  return {reinterpret_cast<const char*>(frame.data()), frame.size()};
}

inline std::vector<std::byte> bytes_of(std::string_view text) {
  const auto* first = reinterpret_cast<const std::byte*>(text.data());
  return {first, first + text.size()};
}

struct DealerOptions {
  std::string identity = {};
  int received_max = 1000;
  int socket_bytes = 0;                 // of the kernel's receive buffer; 0: as it is
  std::string connect_routing_id = {};  // of a ROUTER: how it calls the server
  int heartbeat_ms = 0;                 // between its PINGs; 0: none
  int socket_type = ZMQ_DEALER;
  int send_ms = static_cast<int>(std::chrono::milliseconds(kPatience).count());
};

// A client. Closing it sends what it still has, as LMCache's clients do.
class Dealer {
 public:
  explicit Dealer(std::uint16_t port, const DealerOptions& options = {})
      : Dealer("tcp://127.0.0.1:" + std::to_string(port), options) {}

  explicit Dealer(const std::string& endpoint, const DealerOptions& options = {})
      : context_(zmq_ctx_new()), socket_(zmq_socket(context_, options.socket_type)) {
    const int patience_ms = std::chrono::milliseconds(kPatience).count();
    zmq_setsockopt(socket_, ZMQ_RCVTIMEO, &patience_ms, sizeof patience_ms);
    zmq_setsockopt(socket_, ZMQ_SNDTIMEO, &options.send_ms, sizeof options.send_ms);
    const int linger_ms = 2000;
    zmq_setsockopt(socket_, ZMQ_LINGER, &linger_ms, sizeof linger_ms);
    zmq_setsockopt(socket_, ZMQ_RCVHWM, &options.received_max, sizeof options.received_max);
    if (options.socket_bytes > 0) {
      zmq_setsockopt(socket_, ZMQ_RCVBUF, &options.socket_bytes, sizeof options.socket_bytes);
    }
    if (!options.identity.empty()) {
      zmq_setsockopt(socket_, ZMQ_ROUTING_ID, options.identity.data(), options.identity.size());
    }
    if (!options.connect_routing_id.empty()) {
      zmq_setsockopt(socket_,
                     ZMQ_CONNECT_ROUTING_ID,
                     options.connect_routing_id.data(),
                     options.connect_routing_id.size());
      const int mandatory = 1;
      zmq_setsockopt(socket_, ZMQ_ROUTER_MANDATORY, &mandatory, sizeof mandatory);
    }
    if (options.heartbeat_ms > 0) {
      const int patience = 2 * options.heartbeat_ms;
      zmq_setsockopt(
          socket_, ZMQ_HEARTBEAT_IVL, &options.heartbeat_ms, sizeof options.heartbeat_ms);
      zmq_setsockopt(socket_, ZMQ_HEARTBEAT_TIMEOUT, &patience, sizeof patience);
    }
    const int ipv6 = 1;
    zmq_setsockopt(socket_, ZMQ_IPV6, &ipv6, sizeof ipv6);
    zmq_connect(socket_, endpoint.c_str());
  }

  Dealer(const Dealer&) = delete;
  Dealer& operator=(const Dealer&) = delete;

  ~Dealer() {
    zmq_close(socket_);
    zmq_ctx_term(context_);
  }

  bool send(const Frames& frames) {
    for (std::size_t i = 0; i < frames.size(); ++i) {
      const int flags = i + 1 < frames.size() ? ZMQ_SNDMORE : 0;
      if (zmq_send(socket_, frames[i].data(), frames[i].size(), flags) < 0) {
        return false;
      }
    }
    return true;
  }

  // Empty when nothing came in time.
  Frames receive() {
    Frames frames;
    for (bool more = true; more;) {
      zmq_msg_t message;
      zmq_msg_init(&message);
      if (zmq_msg_recv(&message, socket_, 0) < 0) {
        return {};
      }
      frames.emplace_back(static_cast<const char*>(zmq_msg_data(&message)), zmq_msg_size(&message));
      more = zmq_msg_more(&message) != 0;
      zmq_msg_close(&message);
    }
    return frames;
  }

  Frames ask(const Frames& request) { return send(request) ? receive() : Frames{}; }

  bool has_reply_within(int milliseconds) {
    zmq_pollitem_t item{socket_, 0, ZMQ_POLLIN, 0};
    return zmq_poll(&item, 1, milliseconds) > 0;
  }

 private:
  void* context_;
  void* socket_;
};

// Greeting and READY without properties: what a client sends first.
inline std::string zmtp_hello() {
  std::string bytes("\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01NULL", 16);
  bytes.resize(64, '\0');
  return bytes + "\x04\x06\x05READY";
}

// Bytes on a TCP connection.
class RawPeer {
 public:
  RawPeer() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}

  explicit RawPeer(std::uint16_t port) : RawPeer() { connect_to(port); }

  void connect_to(std::uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    is_connected_ =
        connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }

  RawPeer(const RawPeer&) = delete;
  RawPeer& operator=(const RawPeer&) = delete;

  ~RawPeer() { close(socket_); }

  bool is_connected() const { return is_connected_; }

  int descriptor() const { return socket_; }

  void send(std::string_view bytes) {
    static_cast<void>(::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL));
  }

  // Waits for so many bytes; fewer when the server closed or patience ran out.
  std::string receive(std::size_t count) {
    const timeval patience{kPatience.count(), 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    std::string bytes(count, '\0');
    const ssize_t received = recv(socket_, bytes.data(), count, MSG_WAITALL);
    bytes.resize(received < 0 ? 0 : static_cast<std::size_t>(received));
    return bytes;
  }

  bool has_input_within(int milliseconds) const {
    pollfd item{socket_, POLLIN, 0};
    return poll(&item, 1, milliseconds) > 0;
  }

  // Whether the server ends the connection before patience runs out; what it still sent is gone.
  bool is_ended() {
    while (has_input_within(std::chrono::milliseconds(kPatience).count())) {
      std::array<char, 4096> bytes{};
      const ssize_t received = recv(socket_, bytes.data(), bytes.size(), 0);
      if (received <= 0) {
        return true;
      }
    }
    return false;
  }

  // The peer sees a reset, and what it has not read is gone.
  void reset_when_closed() {
    const linger at_once{1, 0};
    setsockopt(socket_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  }

  void half_close() { shutdown(socket_, SHUT_WR); }

 private:
  int socket_;
  bool is_connected_ = false;
};

// The operation frame's first letter is the lane: W(ire), L(ookup), T(ransfer); X: dropped; !:
// route() throws. Words in the rest change what run() does: "gate" waits for the gate, "none"
// replies without value, "silent" does not reply, "large" replies with as many bytes as the third
// frame says, "spans" the same in several pieces, "place" takes a large third frame in a sink of
// its own and echoes it from there, "!place" throws there. Otherwise the third frame is echoed, if
// there is one.
class FakeDispatcher final : public Dispatcher {
 public:
  struct Run {
    ConnectionId connection;
    std::string uid;
  };

  std::optional<Route> route(const Request& request) override {
    if (request.frames.size() < 2 || request.frames[1].empty()) {
      ++malformed;
      return std::nullopt;
    }
    switch (text_of(request.frames[1]).front()) {
      case 'W':
        return Route{Lane::kWire, 0, 0};
      case 'L':
        return Route{Lane::kLookup, 0, 0};
      case 'T':
        return Route{Lane::kTransfer, 0, 0};
      case '!':
        throw std::runtime_error("route");
      default:
        return std::nullopt;
    }
  }

  Reply run(const Request& request) noexcept override {
    const std::string operation = text_of(request.frames[1]);
    {
      const MutexLock lock(mutex_);
      runs_.push_back({request.connection, text_of(request.frames[0])});
    }
    const auto says = [&](const char* word) { return operation.find(word) != std::string::npos; };
    if (says("gate")) {
      gate.pass();
    }
    Reply reply;
    reply.send = !says("silent");
    reply.has_value = !says("none") && request.frames.size() > 2;
    if (!request.placed.empty()) {
      const auto& sink = static_cast<const PlaceSink&>(*request.placed[0].sink);
      reply.small.assign(sink.bytes.begin(), sink.bytes.end());
    } else if (says("large")) {
      lend(reply, std::stoull(text_of(request.frames[2])));
    } else if (says("spans")) {
      lend(reply, std::stoull(text_of(request.frames[2])));
      cut(reply);
    } else if (reply.has_value) {
      reply.small.assign(request.frames[2].begin(), request.frames[2].end());
    }
    return reply;
  }

  std::unique_ptr<FrameSink> place(ConnectionId /*connection*/,
                                   std::span<const Frame> begun,
                                   std::uint64_t frame_bytes) override {
    if (begun.size() != 2 || text_of(begun[1]).find("place") == std::string::npos) {
      return nullptr;
    }
    if (text_of(begun[1]).find("!place") != std::string::npos) {
      throw std::runtime_error("place");
    }
    return std::make_unique<PlaceSink>(frame_bytes, placed);
  }

  Reply refuse(const Request& /*request*/) noexcept override {
    Reply reply;
    reply.has_value = true;
    reply.small = bytes_of("refused");
    return reply;
  }

  void connection_opened(ConnectionId connection, const PeerName& peer) override {
    const MutexLock lock(mutex_);
    opened_.push_back(connection);
    names_.push_back(peer.text);
  }

  void connection_closed(ConnectionId connection, ConnectionEnd) override {
    const MutexLock lock(mutex_);
    closed_.push_back(connection);
  }

  std::vector<Run> runs() {
    const MutexLock lock(mutex_);
    return runs_;
  }

  std::vector<std::string> uids_of(ConnectionId connection) {
    std::vector<std::string> uids;
    for (const Run& one : runs()) {
      if (one.connection == connection) {
        uids.push_back(one.uid);
      }
    }
    return uids;
  }

  std::vector<ConnectionId> opened() {
    const MutexLock lock(mutex_);
    return opened_;
  }

  // Of the opened ones, in the same order.
  std::vector<std::string> names() {
    const MutexLock lock(mutex_);
    return names_;
  }

  std::vector<ConnectionId> closed() {
    const MutexLock lock(mutex_);
    return closed_;
  }

  Gate gate;
  std::atomic<int> malformed{0};
  std::atomic<int> lent{0};    // large replies whose owner still lives
  std::atomic<int> placed{0};  // sinks that still live

 private:
  class PlaceSink final : public FrameSink {
   public:
    PlaceSink(std::size_t size, std::atomic<int>& count) : bytes(size), alive_(count) { ++alive_; }

    PlaceSink(const PlaceSink&) = delete;
    PlaceSink& operator=(const PlaceSink&) = delete;

    ~PlaceSink() override { --alive_; }

    std::span<std::byte> room() override { return std::span(bytes).subspan(used_); }

    void arrived(std::size_t count) override { used_ += count; }

    std::size_t keep(std::span<const std::byte> rest) override { return rest.size(); }

    std::size_t kept_ahead() const override { return 0; }

    void finish(std::span<std::byte> /*kept*/) override {}

    std::vector<std::byte> bytes;

   private:
    std::size_t used_ = 0;
    std::atomic<int>& alive_;
  };

  struct LentBytes {
    LentBytes(std::size_t size, std::atomic<int>& count)
        : bytes(size, std::byte{'x'}), alive(count) {
      ++alive;
    }

    LentBytes(const LentBytes&) = delete;
    LentBytes& operator=(const LentBytes&) = delete;

    ~LentBytes() { --alive; }

    std::vector<std::byte> bytes;
    std::atomic<int>& alive;
  };

  void lend(Reply& reply, std::size_t size) {
    auto owner = std::make_shared<LentBytes>(size, lent);
    reply.large = owner->bytes;
    reply.owner = std::move(owner);
  }

  // The same value in pieces of growing size, an empty one among them.
  static void cut(Reply& reply) {
    Frame rest = std::exchange(reply.large, Frame());
    for (std::size_t size = 0; !rest.empty(); size = size * 2 + 1) {
      reply.spans.push_back(rest.first(std::min(size, rest.size())));
      rest = rest.subspan(reply.spans.back().size());
    }
  }

  Mutex mutex_;
  std::vector<Run> runs_ LARDER_GUARDED_BY(mutex_);
  std::vector<ConnectionId> opened_ LARDER_GUARDED_BY(mutex_);
  std::vector<std::string> names_ LARDER_GUARDED_BY(mutex_);
  std::vector<ConnectionId> closed_ LARDER_GUARDED_BY(mutex_);
};

}  // namespace larder::transport
