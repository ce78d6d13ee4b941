// Goal: bytes that no client of ours sends leave the server alive, serving others, and without a
// trace. Method: raw TCP peers (other protocols, half handshakes, seeded garbage behind a valid
// handshake, mass connect-and-close) beside a well-behaved client.
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "base/test_random.h"
#include "transport/test_server.h"

namespace larder::transport {
namespace {

using namespace std::string_literals;

// Greeting and READY of a DEALER.
std::string handshake() {
  std::string bytes = "\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01NULL"s;
  bytes.resize(64, '\0');
  return bytes +
         "\x04\x29\x05READY\x0bSocket-Type\0\0\0\x06"
         "DEALER\x08Identity\0\0\0\0"s;
}

constexpr std::size_t kHelloBytes = 107;

class ServerHostileTest : public ServerTest {
 protected:
  static void shake_hands(RawPeer& raw) {
    raw.send(handshake());
    EXPECT_EQ(raw.receive(kHelloBytes).size(), kHelloBytes);
  }

  void expect_service() {
    Dealer dealer(server_->port());
    EXPECT_EQ(dealer.ask({"1", "W", "v"}), (Frames{"1", "W", "v"}));
    EXPECT_EQ(dealer.ask({"2", "L", "v"}), (Frames{"2", "L", "v"}));
  }

  void expect_nobody_left() {
    EXPECT_TRUE(
        eventually([&] { return dispatcher_.closed().size() == dispatcher_.opened().size(); }));
    EXPECT_EQ(server_->counts().connections, 0U);
  }
};

TEST_F(ServerHostileTest, OtherProtocolsAreClosedAtTheirFirstBytesAndCounted) {
  start();
  const std::vector<std::pair<std::string, const char*>> openings = {
      {"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "http"},
      {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"s + std::string(200, 'r'), "tls"},
      {"SSH-2.0-OpenSSH_9.2\r\n", "foreign"},
      {"\n", "foreign"},
      {"*1\r\n$4\r\nPING\r\n", "foreign"},
      {std::string(100'000, '\0'), "foreign"},
      {"\x01\x00\x02\x00\x41"s, "old_zmtp"},  // what ends the reference server
      {"\xff\0\0\0\0\0\0\0\x01\x7f\x01"s, "old_zmtp"},
      {handshake().replace(12, 5, "PLAIN"), "mechanism"},
  };
  for (const auto& [opening, reason] : openings) {
    const std::uint64_t before = closed_for(reason);
    RawPeer raw(server_->port());
    raw.send(opening);
    // The server ends it, although the peer does not.
    EXPECT_TRUE(raw.is_ended()) << reason;
    EXPECT_EQ(closed_for(reason), before + 1) << reason;
    expect_service();
  }
  expect_nobody_left();
}

TEST_F(ServerHostileTest, GreetingAndReadyAreSentAtOnceAndNothingElseBeforeTheClientsReady) {
  start();
  RawPeer raw(server_->port());
  const std::string hello = raw.receive(kHelloBytes);
  EXPECT_EQ(hello.substr(0, 16), handshake().substr(0, 16));
  EXPECT_NE(hello.find("ROUTER"), std::string::npos);
  raw.send("\xff");
  EXPECT_FALSE(raw.has_input_within(50));
}

TEST_F(ServerHostileTest, AMessageOfOneFrameReachesTheDispatcherAndItsEndIsSeen) {
  start();
  {
    RawPeer raw(server_->port());
    shake_hands(raw);
    raw.send("\x00\x01\x41"s);
    EXPECT_TRUE(eventually([&] { return dispatcher_.malformed == 1; }));
    EXPECT_EQ(server_->counts().connections, 1U);
  }
  expect_service();
  expect_nobody_left();
}

TEST_F(ServerHostileTest, MessagesAheadOfAnImpossibleFrameAreServedAsOneConnection) {
  start();
  constexpr std::size_t kMessages = 20;
  std::string bytes = handshake();
  for (std::size_t i = 0; i < kMessages; ++i) {
    bytes += "\x01\x01u\x00\x01L"s;
  }
  bytes += "\x02\x00\x00\x01\x00\x00\x00\x00\x00"s;  // a frame of 2^40 bytes
  for (std::size_t round = 1; round <= 20; ++round) {
    RawPeer raw(server_->port());
    raw.send(bytes);
    ASSERT_TRUE(eventually([&] { return dispatcher_.closed().size() == round; }));
    EXPECT_EQ(dispatcher_.opened().size(), round);
    EXPECT_EQ(closed_for("message_bytes"), round);
    ASSERT_TRUE(eventually([&] { return dispatcher_.runs().size() == round * kMessages; }));
  }
}

TEST_F(ServerHostileTest, AStartedMessageOfALostPeerIsNeverSeen) {
  start();
  {
    RawPeer raw(server_->port());
    shake_hands(raw);
    raw.send("\x01\x01u\x01\x01L\x00\x0atwo of ten"s.substr(0, 10));
  }
  expect_service();
  expect_nobody_left();
  EXPECT_EQ(dispatcher_.runs().size(), 2U);  // expect_service()'s own
}

TEST_F(ServerHostileTest, MassConnectAndCloseLeavesNothingBehind) {
  start();
  for (int i = 0; i < 500; ++i) {
    RawPeer raw(server_->port());
    ASSERT_TRUE(raw.is_connected()) << i;
    if (i % 3 == 1) {
      raw.send(handshake().substr(0, static_cast<std::size_t>(i) % 107));
    }
  }
  expect_service();
  expect_nobody_left();
}

TEST_F(ServerHostileTest, MuteConnectionsDelayNobody) {
  start();
  std::vector<std::unique_ptr<RawPeer>> mute;
  for (int i = 0; i < 100; ++i) {
    mute.push_back(std::make_unique<RawPeer>(server_->port()));
  }
  expect_service();
  EXPECT_LE(server_->counts().connections, 2U);  // only who sends a message is one
}

TEST_F(ServerHostileTest, RandomBytesBeforeAndAfterTheHandshakeLeaveItAlive) {
  start();
  std::mt19937_64 random(test_seed());
  for (int i = 0; i < 300; ++i) {
    RawPeer raw(server_->port());
    std::string bytes = i % 2 == 0 ? handshake() : "";
    for (std::uint64_t left = random() % 400; left > 0; --left) {
      // Small numbers are likely flags and lengths: these get further into the decoder.
      bytes.push_back(static_cast<char>(random() % (random() % 2 == 0 ? 4 : 256)));
    }
    raw.send(bytes.substr(0, 64));
    raw.send(bytes.size() > 64 ? bytes.substr(64) : "");
  }
  expect_service();
  expect_nobody_left();
  EXPECT_TRUE(server_->probe(kPatience));
}

}  // namespace
}  // namespace larder::transport
