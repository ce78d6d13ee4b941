// Goal: our decoder and libzmq read the same messages from the same bytes.
// Method: a libzmq ROUTER on a loopback port is fed a random valid stream (LARDER_TEST_SEED) in
// random pieces by a plain socket that has shaken hands as libzmq wants it; what its application
// gets is compared with what the decoder makes of the same stream. Left out is what we mean to read
// differently: commands that libzmq hands to the application, contexts and times it cuts.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include "base/test_random.h"
#include "zmtp/test_conversations.h"

namespace larder::zmtp {
namespace {

constexpr int kPatienceMs = 20'000;
constexpr std::size_t kHelloBytes = 107;

class LibzmqRouter {
 public:
  LibzmqRouter() : context_(zmq_ctx_new()), router_(zmq_socket(context_, ZMQ_ROUTER)) {
    zmq_setsockopt(router_, ZMQ_RCVTIMEO, &kPatienceMs, sizeof kPatienceMs);
    EXPECT_EQ(zmq_bind(router_, "tcp://127.0.0.1:*"), 0);
    std::array<char, 64> endpoint{};
    std::size_t size = endpoint.size();
    EXPECT_EQ(zmq_getsockopt(router_, ZMQ_LAST_ENDPOINT, endpoint.data(), &size), 0);
    const std::string text = endpoint.data();
    port_ = static_cast<std::uint16_t>(std::stoi(text.substr(text.rfind(':') + 1)));
  }

  LibzmqRouter(const LibzmqRouter&) = delete;
  LibzmqRouter& operator=(const LibzmqRouter&) = delete;

  ~LibzmqRouter() {
    zmq_close(router_);
    zmq_ctx_term(context_);
  }

  std::uint16_t port() const { return port_; }

  // Without the identity; empty when nothing came in time.
  TextFrames receive() {
    TextFrames frames;
    for (int more = 1; more != 0;) {
      zmq_msg_t message;
      zmq_msg_init(&message);
      if (zmq_msg_recv(&message, router_, 0) < 0) {
        return {};
      }
      frames.emplace_back(static_cast<const char*>(zmq_msg_data(&message)), zmq_msg_size(&message));
      more = zmq_msg_more(&message);
      zmq_msg_close(&message);
    }
    frames.erase(frames.begin());
    return frames;
  }

 private:
  void* context_;
  void* router_;
  std::uint16_t port_ = 0;
};

// Sends and, for the handshake, waits for what the other side says.
class Wire {
 public:
  explicit Wire(std::uint16_t port) : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }

  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  ~Wire() { close(socket_); }

  void send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      ASSERT_GT(sent, 0);
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
  }

  void await(std::size_t count) {
    std::string bytes(count, '\0');
    ASSERT_EQ(recv(socket_, bytes.data(), count, MSG_WAITALL), static_cast<ssize_t>(count));
  }

 private:
  int socket_;
};

class RandomStream {
 public:
  explicit RandomStream(std::uint64_t seed) : random_(seed) {}

  std::size_t below(std::size_t bound) { return random_() % bound; }

  std::string message() {
    std::string bytes;
    for (std::size_t left = 1 + below(6); left > 0; --left) {
      if (below(6) == 0) {
        bytes +=
            frame_bytes("\x04PING" + std::string(2, '\0') + text(below(16)), FrameKind::kCommand);
      }
      if (below(8) == 0) {
        bytes += frame_bytes("\x05WEIRD" + text(below(20)), FrameKind::kCommand);
      }
      std::string frame = text(below(5) == 0 ? below(120'000) : below(300));
      std::string framed = frame_bytes(frame, left > 1 ? FrameKind::kMore : FrameKind::kLast);
      if (below(4) == 0) {
        framed[0] = static_cast<char>(framed[0] | static_cast<char>(0xf8));  // reserved bits
      }
      bytes += framed;
    }
    return bytes;
  }

 private:
  std::string text(std::size_t size) {
    std::string bytes(size, '\0');
    for (char& byte : bytes) {
      byte = static_cast<char>(random_());
    }
    return bytes;
  }

  std::mt19937_64 random_;
};

TEST(DifferentialReading, LibzmqReadsTheSameMessages) {
  const std::uint64_t seed = test_seed();
  RandomStream random(seed);
  for (int round = 0; round < 20; ++round) {
    std::string stream;
    for (std::size_t messages = 1 + random.below(20); messages > 0; --messages) {
      stream += random.message();
    }
    ReceiveMemory memory;
    Feeder feeder(memory);
    ASSERT_TRUE(feeder.feed(dealer_hello() + stream));
    LibzmqRouter router;
    Wire wire(router.port());
    wire.send(dealer_hello());
    wire.await(kHelloBytes);
    for (std::size_t at = 0; at < stream.size();) {
      const std::size_t piece = 1 + random.below(random.below(2) == 0 ? 20 : 100'000);
      wire.send(std::string_view(stream).substr(at, piece));
      at += piece;
    }
    for (const TextFrames& ours : feeder.reading().messages) {
      ASSERT_EQ(router.receive(), ours) << "round " << round;
    }
  }
}

}  // namespace
}  // namespace larder::zmtp
