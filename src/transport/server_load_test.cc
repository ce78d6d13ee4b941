// Goal: one peer's behaviour never becomes another's trouble, too much work is refused instead of
// piled up, and the server stops in bounded time whatever is going on. Method: as server_test.cc,
// with peers that do not read, requests that stand at a gate, and stops in the middle of both.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <thread>

#include "base/clock.h"
#include "transport/test_server.h"

namespace larder::transport {
namespace {

using std::chrono::milliseconds;

class ServerLoadTest : public ServerTest {
 protected:
  Duration stop_time(milliseconds drain) {
    const SteadyClock clock;
    const TimePoint begin = clock.now();
    server_->stop(drain);
    return clock.now() - begin;
  }
};

constexpr std::size_t kReplyBytes = 1U << 20;
constexpr int kBigRequests = 100;

// Reads nothing, and takes little into its buffers meanwhile.
const DealerOptions kSlowReader{.received_max = 1, .socket_bytes = 65536};

TEST_F(ServerLoadTest, APeerThatDoesNotReadCostsBoundedMemoryAndDelaysNobody) {
  ServerConfig config;
  config.unsent_bytes_max = 4 * kReplyBytes;
  start(config);
  Dealer slow(server_->port(), kSlowReader);
  for (int i = 0; i < kBigRequests; ++i) {
    ASSERT_TRUE(slow.send({std::to_string(i), "Tlarge", std::to_string(kReplyBytes)}));
  }
  Dealer other(server_->port());
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(other.ask({"1", "T", "v"}).size(), 3U);
    ASSERT_EQ(other.ask({"2", "Tlarge", "100000"}).size(), 3U);
    ASSERT_LE(dispatcher_.lent, 8);
  }
  EXPECT_GT(server_->counts().requests_waiting, 50U);

  // Once it reads, it gets every reply.
  for (int i = 0; i < kBigRequests; ++i) {
    const Frames reply = slow.receive();
    ASSERT_EQ(reply.size(), 3U);
    ASSERT_EQ(reply[0], std::to_string(i));
    ASSERT_EQ(reply[2].size(), kReplyBytes);
  }
  EXPECT_TRUE(eventually([&] { return dispatcher_.lent == 0; }));
}

TEST_F(ServerLoadTest, AReplyBeyondTheByteLimitStillArrives) {
  ServerConfig config;
  config.unsent_bytes_max = 1000;
  start(config);
  Dealer dealer(server_->port());
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(dealer.ask({"1", "Llarge", "500000"}).size(), 3U);
  }
}

TEST_F(ServerLoadTest, ASlowPeerThatLeavesGivesItsMemoryBack) {
  ServerConfig config;
  config.unsent_bytes_max = 4 * kReplyBytes;
  start(config);
  {
    RawPeer unused(server_->port());
    auto slow = std::make_unique<Dealer>(server_->port(), kSlowReader);
    for (int i = 0; i < 30; ++i) {
      ASSERT_TRUE(slow->send({std::to_string(i), "Llarge", std::to_string(kReplyBytes)}));
    }
    ASSERT_TRUE(eventually([&] { return dispatcher_.lent >= 4; }));
  }
  EXPECT_TRUE(eventually([&] { return dispatcher_.closed().size() == 1; }));
  EXPECT_TRUE(eventually([&] { return dispatcher_.lent == 0; }));
  EXPECT_TRUE(eventually([&] { return server_->counts().requests_waiting == 0; }));
  EXPECT_GT(dropped_replies("peer_gone"), 0U);
}

// The greeting and a request of so many bytes, quick or in pieces of an object.
std::string asking_for(const std::string& operation, const std::string& bytes) {
  const std::string lengths{static_cast<char>(operation.size()), static_cast<char>(bytes.size())};
  return zmtp_hello() + "\x01\x01u\x01" + lengths[0] + operation + std::string(1, '\0') +
         lengths[1] + bytes;
}

TEST_F(ServerLoadTest, OfPeersThatDoNotReadTheOneWithMostPaysForTooMuchMemory) {
  ServerConfig config;
  config.unsent_heap_bytes_max = 64U << 20;
  start(config);
  RawPeer first(server_->port());
  RawPeer greedy(server_->port());
  first.send(asking_for("Wlarge", "20000000"));
  ASSERT_TRUE(eventually([&] { return dispatcher_.lent == 1; }));
  greedy.send(asking_for("Tlarge", "40000000"));
  ASSERT_TRUE(eventually([&] { return counter("larder_transport_replies_total") == 2; }));
  EXPECT_EQ(closed_for("unread_bytes"), 0U);
  RawPeer last(server_->port());
  last.send(asking_for("Llarge", "20000000"));
  ASSERT_TRUE(eventually([&] { return closed_for("unread_bytes") == 1; }));
  EXPECT_TRUE(greedy.is_ended());
  EXPECT_TRUE(eventually([&] { return dispatcher_.lent == 2; }));
  constexpr std::size_t kAll = 107 + 3 + 8 + 9 + 20'000'000;
  EXPECT_EQ(first.receive(kAll).size(), kAll);
  EXPECT_EQ(last.receive(kAll).size(), kAll);
  EXPECT_EQ(closed_for("unread_bytes"), 1U);
}

TEST_F(ServerLoadTest, WhatIsSentFromWhereItLiesCountsForNobodysMemory) {
  ServerConfig config;
  config.unsent_heap_bytes_max = 1U << 20;
  start(config);
  RawPeer reader(server_->port());
  reader.send(asking_for("Tspans", "40000000"));
  ASSERT_TRUE(eventually([&] { return counter("larder_transport_replies_total") == 1; }));
  Dealer other(server_->port());
  EXPECT_EQ(other.ask({"1", "T"}).size(), 2U);
  constexpr std::size_t kAll = 107 + 3 + 8 + 9 + 40'000'000;
  EXPECT_EQ(reader.receive(kAll).size(), kAll);
  EXPECT_EQ(closed_for("unread_bytes"), 0U);
}

TEST_F(ServerLoadTest, APeerThatReadsNoQuickRepliesIsNotReadEitherAndLosesNone) {
  ServerConfig config;
  config.unsent_bytes_max = 2 * kReplyBytes;
  start(config);
  Dealer slow(server_->port(), kSlowReader);
  for (int i = 0; i < kBigRequests; ++i) {
    ASSERT_TRUE(slow.send({std::to_string(i), "Wlarge", std::to_string(kReplyBytes)}));
  }
  EXPECT_TRUE(eventually([&] { return pauses("unread") > 0; }));
  Dealer other(server_->port());
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(other.ask({"1", "W"}).size(), 2U);
    ASSERT_LE(dispatcher_.lent, 4);
  }
  for (int i = 0; i < kBigRequests; ++i) {
    ASSERT_EQ(slow.receive().at(0), std::to_string(i));
  }
  EXPECT_EQ(slow.ask({"last", "W"}), (Frames{"last", "W"}));
}

TEST_F(ServerLoadTest, APeerWithTooManyRequestsInFlightIsNotReadUntilSomeHaveRun) {
  ServerConfig config;
  config.requests_in_flight_max = 3;
  start(config);
  Dealer dealer(server_->port());
  ASSERT_TRUE(dealer.send({"1", "Lgate"}));
  for (int i = 2; i <= 50; ++i) {
    ASSERT_TRUE(dealer.send({std::to_string(i), "T", "v"}));
  }
  EXPECT_TRUE(eventually([&] { return pauses("requests") == 1; }));
  EXPECT_EQ(server_->counts().requests_waiting, 3U);
  Dealer other(server_->port());
  EXPECT_EQ(other.ask({"1", "T", "v"}), (Frames{"1", "T", "v"}));
  EXPECT_TRUE(eventually([&] { return server_->counts().requests_waiting == 3; }));
  dispatcher_.gate.open();
  EXPECT_EQ(dealer.receive(), (Frames{"1", "Lgate"}));
  for (int i = 2; i <= 50; ++i) {
    ASSERT_EQ(dealer.receive(), (Frames{std::to_string(i), "T", "v"}));
  }
}

TEST_F(ServerLoadTest, APeerWithTooManyBytesInFlightIsNotReadUntilSomeHaveRun) {
  ServerConfig config;
  config.request_bytes_in_flight_max = 1000;
  start(config);
  Dealer dealer(server_->port());
  ASSERT_TRUE(dealer.send({"1", "Lgate", std::string(5000, 'v')}));  // alone, any size is taken
  ASSERT_TRUE(dealer.send({"2", "L"}));
  EXPECT_TRUE(eventually([&] { return pauses("request_bytes") == 1; }));
  EXPECT_EQ(server_->counts().requests_waiting, 1U);
  EXPECT_GE(server_->counts().buffered_bytes, 5000U);
  dispatcher_.gate.open();
  EXPECT_EQ(dealer.receive().at(0), "1");
  EXPECT_EQ(dealer.receive().at(0), "2");
}

TEST_F(ServerLoadTest, TheProbeMeasuresTheWireThreadNotTheWorkers) {
  start();
  Dealer dealer(server_->port());
  ASSERT_TRUE(dealer.send({"1", "Lgate"}));
  ASSERT_TRUE(dealer.send({"1", "Tgate"}));
  ASSERT_TRUE(dispatcher_.gate.wait_for_arrivals(1));
  EXPECT_TRUE(server_->probe(kPatience));
  ASSERT_TRUE(dealer.send({"2", "Wgate"}));
  ASSERT_TRUE(dispatcher_.gate.wait_for_arrivals(2));
  EXPECT_FALSE(server_->probe(milliseconds(30)));
  dispatcher_.gate.open();
  EXPECT_TRUE(server_->probe(kPatience));
  server_->stop();
  EXPECT_FALSE(server_->probe(milliseconds(10)));
}

TEST_F(ServerLoadTest, StopLetsWaitingRequestsFinishAndTheirRepliesLeave) {
  start();
  Dealer dealer(server_->port());
  for (int i = 0; i < 500; ++i) {
    ASSERT_TRUE(dealer.send({std::to_string(i), i % 2 == 0 ? "Llarge" : "Tlarge", "100000"}));
  }
  ASSERT_TRUE(eventually([&] { return counter("larder_transport_messages_total") == 500; }));
  std::thread reader([&] {
    for (int i = 0; i < 500; ++i) {
      ASSERT_EQ(dealer.receive().size(), 3U) << i;
    }
  });
  server_->stop(kPatience);
  reader.join();
  EXPECT_EQ(dispatcher_.lent, 0);
  EXPECT_EQ(dispatcher_.closed(), dispatcher_.opened());
}

TEST_F(ServerLoadTest, StopDropsWhatDoesNotFinishInTimeButWaitsForTheRunningOne) {
  start();
  Dealer dealer(server_->port());
  ASSERT_TRUE(dealer.send({"1", "Lgate"}));
  ASSERT_TRUE(dealer.send({"2", "L"}));
  ASSERT_TRUE(dispatcher_.gate.wait_for_arrivals(1));
  ASSERT_TRUE(eventually([&] { return server_->counts().requests_waiting == 2; }));
  std::thread opener([&] {
    EXPECT_TRUE(eventually([&] { return server_->counts().requests_waiting == 1; }));
    dispatcher_.gate.open();
  });
  server_->stop(milliseconds(10));
  opener.join();
  EXPECT_EQ(dealer.receive(), (Frames{"1", "Lgate"}));
  EXPECT_EQ(dispatcher_.runs().size(), 1U);
  EXPECT_EQ(counter("larder_transport_requests_cut_off_total"), 1U);
  server_->stop();  // again: nothing to do
}

TEST_F(ServerLoadTest, StopEndsWhilePeersKeepSendingAndOneDoesNotRead) {
  start();
  std::atomic<bool> done{false};
  std::vector<std::thread> senders;
  for (const char* operation : {"W", "L", "T"}) {
    senders.emplace_back([&, operation] {
      Dealer dealer(server_->port(), {.send_ms = 100});  // blocks for good once the server is gone
      while (!done && dealer.send({"1", operation, "value"})) {
        while (dealer.has_reply_within(0)) {
          dealer.receive();
        }
      }
    });
  }
  Dealer slow(server_->port(), kSlowReader);
  ASSERT_TRUE(slow.send({"1", "Llarge", "30000000"}));
  ASSERT_TRUE(
      eventually([&] { return dispatcher_.runs().size() > 1000 && dispatcher_.lent == 1; }));
  const Duration took = stop_time(milliseconds(2000));
  done = true;
  EXPECT_LT(took, std::chrono::seconds(10));
  EXPECT_EQ(dispatcher_.lent, 0);
  for (std::thread& sender : senders) {
    sender.join();
  }
}

TEST_F(ServerLoadTest, AServerThatWasNeverStartedStops) {
  ServerConfig config;
  config.host = "127.0.0.1";
  Result<std::unique_ptr<Server>> server = Server::create(config, dispatcher_, metrics_);
  ASSERT_TRUE(server.has_value());
  EXPECT_FALSE((*server)->probe(milliseconds(1)));
  (*server)->stop();
}

TEST_F(ServerLoadTest, AnIdleServerSleeps) {
  start();
  Dealer dealer(server_->port());
  EXPECT_EQ(dealer.ask({"1", "W"}).size(), 2U);
  EXPECT_TRUE(server_->probe(kPatience));
  const auto switches = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_nvcsw;
  };
  const long before = switches();
  EXPECT_FALSE(dealer.has_reply_within(500));
  EXPECT_LT(switches() - before, 20);
}

}  // namespace
}  // namespace larder::transport
