// Goal: a peer that exceeds a limit of size, time or number is closed, counted, and harms nobody:
// a second client is answered throughout. Method: raw TCP peers against a whole server with small
// limits; no waiting but for the events themselves.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <string>
#include <thread>

#include "base/log.h"
#include "transport/test_server.h"

namespace larder::transport {
namespace {

using namespace std::string_literals;
using std::chrono::milliseconds;

constexpr std::size_t kMebibyte = 1U << 20;

const std::string kClientHello = zmtp_hello();

class ServerLimitsTest : public ServerTest {
 protected:
  // Starts a server and a client of it that is served before, during and after.
  void start_with_bystander(const ServerConfig& config) {
    start(config);
    bystander_ = std::make_unique<Dealer>(server_->port());
    expect_service();
  }

  void expect_service() {
    EXPECT_EQ(bystander_->ask({"1", "W", "v"}), (Frames{"1", "W", "v"}));
    EXPECT_EQ(bystander_->ask({"2", "L", "v"}), (Frames{"2", "L", "v"}));
  }

  // Serves the bystander until something was counted.
  void expect_closed(const char* reason, std::uint64_t count = 1) {
    EXPECT_TRUE(eventually([&] {
      expect_service();
      return closed_for(reason) == count;
    })) << reason;
    EXPECT_TRUE(eventually([&] { return server_->counts().buffered_bytes == 0; }));
  }

  std::unique_ptr<Dealer> bystander_;
};

TEST_F(ServerLimitsTest, AMutePeerIsClosedWhenItsHandshakeTakesTooLong) {
  ServerConfig config;
  config.handshake_time = milliseconds(50);
  start_with_bystander(config);
  RawPeer mute(server_->port());
  RawPeer half(server_->port());
  half.send(kClientHello.substr(0, 70));
  expect_closed("handshake_time", 2);
  EXPECT_TRUE(mute.is_ended());
  EXPECT_TRUE(half.is_ended());
}

TEST_F(ServerLimitsTest, AnEndlessMessageOfSmallFramesIsClosedAtTheLimit) {
  start_with_bystander({});
  RawPeer endless(server_->port());
  endless.send(kClientHello);
  for (int i = 0; i < 1000; ++i) {
    endless.send("\x01\x00\x01\x00"s);
  }
  expect_closed("message_frames");
  EXPECT_TRUE(endless.is_ended());
  EXPECT_EQ(dispatcher_.opened().size(), 1U);
}

TEST_F(ServerLimitsTest, ASlowWriterIsClosedWhenItsMessageTakesTooLong) {
  ServerConfig config;
  config.message_time = milliseconds(100);
  start_with_bystander(config);
  RawPeer slow(server_->port());
  slow.send(kClientHello + "\x01\x01u\x01\x01W\x02"s + std::string(6, '\0') + "\x10\x00"s);
  // A byte with every service of the bystander; it never ends.
  EXPECT_TRUE(eventually([&] {
    slow.send("x");
    expect_service();
    return closed_for("message_time") == 1;
  }));
}

TEST_F(ServerLimitsTest, MessagesThatFollowEachOtherDoNotAddUpToOneSlowMessage) {
  ServerConfig config;
  config.message_time = milliseconds(400);
  start_with_bystander(config);
  RawPeer raw(server_->port());
  raw.send(kClientHello);
  const SteadyClock clock;
  const TimePoint end = clock.now() + milliseconds(1200);
  // Each segment ends one message and begins the next.
  raw.send("\x01\x01u\x00"s);
  while (clock.now() < end) {
    raw.send("\x01W\x01\x01u\x00"s);
    expect_service();
  }
  EXPECT_EQ(closed_for("message_time"), 0U);
}

TEST_F(ServerLimitsTest, APeerThatReadsNothingIsClosedAfterItsTime) {
  ServerConfig config;
  config.unread_time = milliseconds(100);
  config.unsent_bytes_max = kMebibyte;
  start_with_bystander(config);
  RawPeer deaf(server_->port());
  deaf.send(kClientHello +
            "\x01\x01u\x01\x06Tlarge\x00\x08"
            "40000000"s);
  ASSERT_TRUE(eventually([&] { return dispatcher_.lent == 1; }));
  expect_closed("unread_time");
  EXPECT_TRUE(eventually([&] { return dispatcher_.lent == 0; }));
  EXPECT_TRUE(eventually([&] { return dispatcher_.closed().size() == 1; }));
}

TEST_F(ServerLimitsTest, APeerThatReadsSlowlyIsNotClosed) {
  ServerConfig config;
  config.unread_time = milliseconds(500);
  start_with_bystander(config);
  constexpr std::size_t kBytes = 30'000'000;
  RawPeer slow(server_->port());
  slow.send(kClientHello +
            "\x01\x01u\x01\x06Tlarge\x00\x08"
            "30000000"s);
  const SteadyClock clock;
  const TimePoint end = clock.now() + milliseconds(1500);
  std::size_t read = 0;
  while (read < kBytes) {
    // Slow for longer than the limit, then as fast as it goes.
    const std::size_t piece = clock.now() < end ? kBytes / 400 : kMebibyte;
    const std::size_t got = slow.receive(std::min(piece, kBytes - read)).size();
    ASSERT_GT(got, 0U);
    read += got;
    expect_service();
  }
  EXPECT_EQ(closed_for("unread_time"), 0U);
}

TEST_F(ServerLimitsTest, APeersOwnTimeToLiveIsKept) {
  start_with_bystander({});
  RawPeer pinger(server_->port());
  pinger.send(kClientHello + "\x04\x07\x04PING\x00\x01"s);  // a tenth of a second
  EXPECT_EQ(pinger.receive(107 + 7).substr(107), "\x04\x05\x04PONG"s);
  RawPeer alive(server_->port());
  alive.send(kClientHello + "\x04\x07\x04PING\x00\x01\x04\x07\x04PING\x00\x00"s);
  expect_closed("time_to_live");
  EXPECT_TRUE(pinger.is_ended());
  EXPECT_FALSE(alive.receive(107 + 14).empty());
  alive.send("\x01\x01u\x00\x01W"s);
  EXPECT_EQ(alive.receive(6), "\x01\x01u\x00\x01W"s);
}

TEST_F(ServerLimitsTest, OfAllUnfinishedMessagesTheLargestPaysForTooMuchMemory) {
  ServerConfig config;
  config.buffered_bytes_max = 8 * kMebibyte;
  start_with_bystander(config);
  const std::string begin =
      kClientHello + "\x01\x01u\x01\x01L\x02"s + std::string(4, '\0') + "\x01\x00\x00\x00"s;
  RawPeer small(server_->port());
  small.send(begin + std::string(kMebibyte, 's'));
  ASSERT_TRUE(eventually([&] { return server_->counts().buffered_bytes > kMebibyte; }));
  RawPeer greedy(server_->port());
  greedy.send(begin);
  for (int i = 0; i < 10 && closed_for("buffered_bytes") == 0; ++i) {
    greedy.send(std::string(kMebibyte, 'g'));
    expect_service();
  }
  EXPECT_TRUE(eventually([&] { return closed_for("buffered_bytes") == 1; }));
  EXPECT_TRUE(greedy.is_ended());
  EXPECT_TRUE(eventually([&] { return server_->counts().buffered_bytes < 2 * kMebibyte; }));
  EXPECT_GT(server_->counts().buffered_bytes, kMebibyte);  // the small one goes on
  expect_service();
}

TEST_F(ServerLimitsTest, LargeMessagesWaitWhileRequestsInFlightHoldTheMemory) {
  ServerConfig config;
  config.buffered_bytes_max = 8 * kMebibyte;
  start_with_bystander(config);
  Dealer first(server_->port());
  ASSERT_TRUE(first.send({"1", "Tgate", std::string(7 * kMebibyte, 'a')}));
  ASSERT_TRUE(dispatcher_.gate.wait_for_arrivals(1));
  Dealer second(server_->port());
  ASSERT_TRUE(second.send({"2", "T", std::string(7 * kMebibyte, 'b')}));
  EXPECT_TRUE(eventually([&] { return pauses("memory") == 1; }));
  expect_service();
  dispatcher_.gate.open();
  EXPECT_EQ(first.receive().at(0), "1");
  EXPECT_EQ(second.receive().at(0), "2");
  EXPECT_EQ(closed_for("buffered_bytes"), 0U);
}

// A message as bytes of a connection.
std::string framed(const Frames& frames) {
  std::string bytes;
  for (std::size_t i = 0; i < frames.size(); ++i) {
    bytes += i + 1 < frames.size() ? '\x03' : '\x02';
    for (int shift = 56; shift >= 0; shift -= 8) {
      bytes += static_cast<char>(frames[i].size() >> shift & 0xFFU);
    }
    bytes += frames[i];
  }
  return bytes;
}

// Reads nothing. Its second request is answered with more than its connection takes, when the gate
// has opened for the first; the last one has to wait for that.
class DeafPeer : public RawPeer {
 public:
  DeafPeer(std::uint16_t port, std::size_t held_bytes) : RawPeer(port) {
    send(kClientHello + framed({"1", "Tgate"}) + framed({"2", "Tlarge", "40000000"}) +
         framed({"3", "T", std::string(held_bytes, 'h')}));
  }
};

TEST_F(ServerLimitsTest, RequestsThatWaitForADeafPeerAreNotWaitedFor) {
  ServerConfig config;
  config.buffered_bytes_max = 8 * kMebibyte;
  config.unsent_bytes_max = kMebibyte;
  start_with_bystander(config);
  DeafPeer more(server_->port(), 2'900'000);
  DeafPeer less(server_->port(), 2'800'000);
  ASSERT_TRUE(eventually([&] { return server_->counts().requests_waiting == 6; }));
  dispatcher_.gate.open();
  ASSERT_TRUE(eventually([&] { return server_->counts().requests_waiting == 2; }));
  expect_service();
  EXPECT_EQ(closed_for("unread_bytes"), 0U);  // there is enough for all
  Dealer patient(server_->port());
  EXPECT_EQ(patient.ask({"1", "T", std::string(kMebibyte, 'v')}).size(), 3U);
  EXPECT_EQ(closed_for("unread_bytes"), 1U);
  EXPECT_TRUE(more.is_ended());
  EXPECT_TRUE(eventually([&] { return server_->counts().requests_waiting == 1; }));
  expect_service();
}

TEST_F(ServerLimitsTest, WhoWaitsForRunningRequestsGoesOnWhenTheyAreHeld) {
  ServerConfig config;
  config.buffered_bytes_max = 8 * kMebibyte;
  config.unsent_bytes_max = kMebibyte;
  start_with_bystander(config);
  DeafPeer deaf(server_->port(), 7 * kMebibyte);
  ASSERT_TRUE(eventually([&] { return server_->counts().requests_waiting == 3; }));
  Dealer patient(server_->port());
  ASSERT_TRUE(patient.send({"1", "T", std::string(kMebibyte, 'v')}));
  ASSERT_TRUE(eventually([&] { return pauses("memory") == 1; }));
  dispatcher_.gate.open();
  EXPECT_EQ(patient.receive().size(), 3U);
  EXPECT_EQ(closed_for("unread_bytes"), 1U);
  expect_service();
}

TEST_F(ServerLimitsTest, UnfinishedMessagesAndALittleThatRunsStopNobody) {
  ServerConfig config;
  config.buffered_bytes_max = 8 * kMebibyte;
  start_with_bystander(config);
  Dealer busy(server_->port());
  ASSERT_TRUE(busy.send({"1", "Tgate", std::string(1000, 'v')}));
  ASSERT_TRUE(dispatcher_.gate.wait_for_arrivals(1));
  RawPeer idle(server_->port());
  idle.send(kClientHello +
            framed({"1", "T", std::string(7 * kMebibyte, 'i')}).substr(0, 13 * kMebibyte / 2));
  ASSERT_TRUE(eventually([&] { return server_->counts().buffered_bytes > 6 * kMebibyte; }));
  Dealer patient(server_->port());
  EXPECT_EQ(patient.ask({"1", "T", std::string(kMebibyte, 'v')}).size(), 3U);
  dispatcher_.gate.open();
  EXPECT_EQ(busy.receive().size(), 3U);
  EXPECT_EQ(closed_for("buffered_bytes"), 0U);
}

TEST_F(ServerLimitsTest, OneConnectionTooManyIsClosedAndMayComeBack) {
  ServerConfig config;
  config.connections_max = 3;
  start_with_bystander(config);
  auto one = std::make_unique<RawPeer>(server_->port());
  RawPeer two(server_->port());
  EXPECT_EQ(one->receive(107).size(), 107U);
  EXPECT_EQ(two.receive(107).size(), 107U);
  RawPeer three(server_->port());
  EXPECT_TRUE(three.is_ended());
  EXPECT_EQ(closed_for("connections"), 1U);
  Dealer patient(server_->port());
  ASSERT_TRUE(patient.send({"1", "W"}));
  one.reset();
  EXPECT_EQ(patient.receive(), (Frames{"1", "W"}));
  expect_service();
}

TEST_F(ServerLimitsTest, AHalfOpenPeerIsServedUntilItIsGone) {
  start_with_bystander({});
  {
    RawPeer half(server_->port());
    half.send(kClientHello + "\x01\x01u\x00\x01W\x01\x01v\x00\x01Lgate"s.substr(0, 12));
    half.half_close();
    // Its end is ours, but what was due is sent.
    EXPECT_EQ(half.receive(107 + 6).substr(107), "\x01\x01u\x00\x01W"s);
    EXPECT_TRUE(half.is_ended());
  }
  EXPECT_TRUE(eventually([&] { return dispatcher_.closed().size() == 1; }));
  expect_service();
}

TEST_F(ServerLimitsTest, ALastReplyArrivesAlthoughInputIsLeftUnread) {
  ServerConfig config;
  config.message_bytes_max = kMebibyte;
  start_with_bystander(config);
  for (int round = 0; round < 5; ++round) {
    RawPeer raw(server_->port());
    // A reply of a megabyte, then a frame that is refused, with more behind it.
    raw.send(kClientHello +
             "\x01\x01u\x01\x06Wlarge\x00\x07"
             "1000000"s +
             "\x02\x7f\x00\x00\x00\x00\x00\x00\x00"s + std::string(100'000, 'x'));
    const std::string reply = raw.receive(107 + 3 + 8 + 9 + 1'000'000);
    EXPECT_EQ(reply.size(), 107U + 3 + 8 + 9 + 1'000'000);
    EXPECT_TRUE(raw.is_ended());
  }
  EXPECT_EQ(closed_for("message_bytes"), 5U);
  expect_service();
}

TEST_F(ServerLimitsTest, WithoutDescriptorsThoseItHasAreServedAndOthersWait) {
  start_with_bystander({});
  // The sanitizer looks at each type with virtual functions once, and needs descriptors for that.
  log::error("about to use up the descriptors of {}", "this process");
  ASSERT_TRUE(eventually([] { return true; }));
  auto leaving = std::make_unique<Dealer>(server_->port());
  EXPECT_EQ(leaving->ask({"1", "W"}).size(), 2U);
  RawPeer waiting;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next = dup(STDERR_FILENO);  // all below are in use
  ASSERT_GE(next, 0);
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(next) + 1;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  waiting.connect_to(server_->port());
  ASSERT_TRUE(eventually([&] { return counter("larder_transport_accept_failures_total") > 0; }));
  for (int i = 0; i < 50; ++i) {
    expect_service();
  }
  // It does not try again and again.
  EXPECT_LE(counter("larder_transport_accept_failures_total"), 10U);
  leaving.reset();
  EXPECT_EQ(waiting.receive(107).size(), 107U);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  close(next);
  expect_service();
}

TEST_F(ServerLimitsTest, TwoThousandConnectionsAreServed) {
  constexpr std::size_t kPeers = 2000;
  start_with_bystander({});
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);  // raised by the server
  if (limit.rlim_cur < 2 * kPeers + 200) {
    GTEST_SKIP() << "only " << limit.rlim_cur << " descriptors here";
  }
  std::vector<std::unique_ptr<RawPeer>> peers;
  for (std::size_t i = 0; i < kPeers; ++i) {
    peers.push_back(std::make_unique<RawPeer>(server_->port()));
    peers.back()->send(kClientHello + "\x01\x01u\x01\x01W\x00\x01v"s);
  }
  for (const auto& peer : peers) {
    ASSERT_EQ(peer->receive(107 + 9).substr(107), "\x01\x01u\x01\x01W\x00\x01v"s);
  }
  EXPECT_EQ(server_->counts().connections, kPeers + 1);
  expect_service();
  peers.clear();
  EXPECT_TRUE(eventually([&] { return server_->counts().connections == 1; }));
  EXPECT_EQ(dispatcher_.closed().size(), kPeers);
}

TEST_F(ServerLimitsTest, ADisconnectAtAnyByteLeavesNothingBehind) {
  start_with_bystander({});
  const std::string stream = kClientHello + "\x01\x01u\x01\x01W\x00\x02vv"s +
                             "\x04\x07\x04PING\x00\x00"s + "\x01\x01u\x01\x01L\x00\x02vv"s +
                             "\x01\x01u\x01\x06Tlarge\x00\x06"
                             "300000"s +
                             "\x03"s + std::string(6, '\0') + "\x01\x2cu"s;
  std::size_t connections = 1;
  for (std::size_t end = 0; end <= stream.size(); ++end) {
    {
      RawPeer raw(server_->port());
      raw.send(std::string_view(stream).substr(0, end));
      if (end % 2 == 1) {
        raw.reset_when_closed();
      }
    }
    if (end % 16 == 0) {
      expect_service();
    }
    ++connections;
  }
  EXPECT_TRUE(
      eventually([&] { return closed_for("left") + closed_for("reset") == connections - 1; }));
  EXPECT_TRUE(
      eventually([&] { return dispatcher_.closed().size() + 1 == dispatcher_.opened().size(); }));
  EXPECT_TRUE(eventually([&] { return server_->counts().buffered_bytes == 0; }));
  EXPECT_TRUE(eventually([&] { return dispatcher_.lent == 0; }));
  expect_service();
}

TEST_F(ServerLimitsTest, APeerWithAMountainOfRequestsOrBytesDoesNotStarveAnother) {
  ServerConfig config;
  config.message_bytes_max = 2000 * kMebibyte;
  config.buffered_bytes_max = 2000 * kMebibyte;
  start_with_bystander(config);
  std::atomic<bool> done{false};
  std::thread many([&] {
    RawPeer raw(server_->port());
    raw.send(kClientHello);
    std::string requests;
    for (int i = 0; i < 2000; ++i) {
      requests += "\x01\x01u\x01\x07Wsilent\x00\x01v"s;
    }
    while (!done) {
      raw.send(requests);
    }
  });
  std::thread large([&] {
    RawPeer raw(server_->port());
    raw.send(kClientHello + "\x01\x01u\x01\x01W\x02"s + std::string(3, '\0') + "\x01"s +
             std::string(4, '\0'));
    const std::string piece(kMebibyte, 'x');
    for (int i = 0; i < 1000 && !done; ++i) {
      raw.send(piece);
    }
  });
  for (int i = 0; i < 500; ++i) {
    expect_service();
  }
  done = true;
  many.join();
  large.join();
}

TEST_F(ServerLimitsTest, ALocalSocketIsServedAndItsPeersAreNamedByProcess) {
  const std::string path = "/tmp/larder-" + std::to_string(getpid()) + ".sock";
  ServerConfig config;
  config.host = "ipc://" + path;
  start(config);
  EXPECT_EQ(server_->port(), 0);
  EXPECT_EQ(server_->endpoint(), config.host);
  Dealer dealer(config.host);
  const std::string value(300'000, 'v');
  EXPECT_EQ(dealer.ask({"1", "T", value}), (Frames{"1", "T", value}));
  EXPECT_EQ(dispatcher_.names().at(0),
            "pid " + std::to_string(getpid()) + ", uid " + std::to_string(getuid()));
  server_->stop();
  EXPECT_NE(access(path.c_str(), F_OK), 0);
}

TEST_F(ServerLimitsTest, LocalhostIsServedOnIpv6Too) {
  ServerConfig config;
  config.host = "localhost";
  start(config);
  Dealer four("tcp://127.0.0.1:" + std::to_string(server_->port()));
  EXPECT_EQ(four.ask({"1", "W"}).size(), 2U);
  if (access("/proc/net/if_inet6", F_OK) != 0) {
    GTEST_SKIP() << "no IPv6 here";
  }
  Dealer six("tcp://[::1]:" + std::to_string(server_->port()));
  EXPECT_EQ(six.ask({"1", "W"}).size(), 2U);
  EXPECT_TRUE(dispatcher_.names().at(1).starts_with("[::1]:")) << dispatcher_.names().at(1);
}

}  // namespace
}  // namespace larder::transport
