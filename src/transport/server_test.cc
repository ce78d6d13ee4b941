// Goal: what clients of the request port rely on: replies match their requests byte for byte, one
// connection's requests keep their order, connections do not wait for each other, and the
// dispatcher learns of each connection's end. Method: libzmq DEALER clients on loopback against a
// whole server with a scripted dispatcher.
#include "transport/server.h"

#include <gtest/gtest.h>

#include <set>

#include "transport/test_server.h"

namespace larder::transport {
namespace {

TEST_F(ServerTest, EchoesUidAndOperationByteForByteOnEveryLane) {
  start();
  Dealer dealer(server_->port());
  for (const char* lane : {"W", "L", "T"}) {
    const std::vector<std::string> uids = {
        "", "\x05", std::string("\xcd\x00\x12", 3), std::string(300, 'u')};
    for (const std::string& uid : uids) {
      const std::string operation = lane + std::string("\0\xff echo", 7);
      EXPECT_EQ(dealer.ask({uid, operation, "value"}), (Frames{uid, operation, "value"}));
    }
  }
  EXPECT_TRUE(eventually([&] { return counter("larder_transport_replies_total") == 12; }));
  EXPECT_EQ(counter("larder_transport_messages_total"), 12U);
}

TEST_F(ServerTest, AReplyWithoutValueHasTwoFramesAndAnEmptyValueIsAFrame) {
  start();
  Dealer dealer(server_->port());
  EXPECT_EQ(dealer.ask({"1", "Wnone", "value"}), (Frames{"1", "Wnone"}));
  EXPECT_EQ(dealer.ask({"2", "L"}), (Frames{"2", "L"}));
  EXPECT_EQ(dealer.ask({"3", "T", ""}), (Frames{"3", "T", ""}));
}

TEST_F(ServerTest, RequestsWithoutReplyStayUnansweredAndHoldUpNothing) {
  start();
  Dealer dealer(server_->port());
  ASSERT_TRUE(dealer.send({"1", "Wsilent"}));
  ASSERT_TRUE(dealer.send({"2", "Lsilent"}));
  ASSERT_TRUE(dealer.send({"3", "X"}));
  ASSERT_TRUE(dealer.send({"4", "!"}));
  EXPECT_EQ(dealer.ask({"5", "L"}), (Frames{"5", "L"}));
  EXPECT_EQ(dropped_messages("failed"), 1U);
}

TEST_F(ServerTest, ValuesOfAllSizesArriveWhole) {
  start();
  Dealer dealer(server_->port());
  for (const std::size_t size :
       {1U, 29U, 30U, 255U, 256U, 512U, 513U, 8191U, 70'000U, 3'000'000U}) {
    const std::string value(size, 'v');
    EXPECT_EQ(dealer.ask({"u", "Lecho", value}), (Frames{"u", "Lecho", value})) << size;
    for (const char* operation : {"Tlarge", "Lspans", "Wlarge", "Wspans"}) {
      EXPECT_EQ(dealer.ask({"u", operation, std::to_string(size)}),
                (Frames{"u", operation, std::string(size, 'x')}));
    }
  }
  EXPECT_TRUE(eventually([&] { return dispatcher_.lent == 0; }));
}

TEST_F(ServerTest, ALargePayloadIsReceivedWhereTheDispatcherWantsIt) {
  start();
  Dealer dealer(server_->port());
  EXPECT_EQ(dealer.ask({"0", "W"}).size(), 2U);  // a connection's first message is not placed
  for (const char* operation : {"Wplace", "Tplace"}) {
    for (const std::size_t size : {100U, 70'000U, 3'000'000U}) {
      const std::string value(size, 'p');
      EXPECT_EQ(dealer.ask({"u", operation, value}), (Frames{"u", operation, value}));
    }
  }
  EXPECT_TRUE(eventually([&] { return dispatcher_.placed == 0; }));
}

TEST_F(ServerTest, APlaceIsGivenBackWhenItsPeerLeavesInTheMiddle) {
  start();
  {
    Dealer dealer(server_->port());
    EXPECT_EQ(dealer.ask({"0", "W"}).size(), 2U);
    RawPeer raw(server_->port());
    raw.send(std::string(zmtp_hello()) + std::string("\x01\x01u\x00\x01W", 6));
    EXPECT_EQ(raw.receive(107 + 6).size(), 107U + 6);
    raw.send(std::string("\x01\x01u\x01\x06Tplace\x02\0\0\0\0\0\x10\0\0half", 24));
    ASSERT_TRUE(eventually([&] { return dispatcher_.placed == 1; }));
  }
  EXPECT_TRUE(eventually([&] { return dispatcher_.placed == 0; }));
}

TEST_F(ServerTest, AThrowWhereAPlaceIsAskedForEndsThatConnectionOnly) {
  start();
  Dealer other(server_->port());
  EXPECT_EQ(other.ask({"0", "W"}).size(), 2U);
  Dealer dealer(server_->port());
  EXPECT_EQ(dealer.ask({"0", "W"}).size(), 2U);
  ASSERT_TRUE(dealer.send({"1", "T!place", std::string(100'000, 'v')}));
  EXPECT_TRUE(eventually([&] { return dispatcher_.closed().size() == 1; }));
  EXPECT_EQ(other.ask({"1", "W"}).size(), 2U);
}

TEST_F(ServerTest, TenThousandPipelinedRequestsAreAllAnsweredOnce) {
  start();
  constexpr int kRequests = 10'000;
  for (const char* lane : {"W", "L"}) {
    Dealer dealer(server_->port());
    std::thread sender([&] {
      for (int i = 0; i < kRequests; ++i) {
        ASSERT_TRUE(dealer.send({std::to_string(i), lane}));
      }
    });
    sender.join();
    for (int i = 0; i < kRequests; ++i) {
      ASSERT_EQ(dealer.receive(), (Frames{std::to_string(i), lane}));
    }
  }
  EXPECT_TRUE(eventually([&] { return server_->counts().requests_waiting == 0; }));
  EXPECT_EQ(counter("larder_transport_replies_total"), 2U * kRequests);
}

TEST_F(ServerTest, OneConnectionKeepsItsOrderAcrossLanesWhileAnotherOvertakes) {
  start();
  Dealer first(server_->port());
  Dealer second(server_->port());
  ASSERT_TRUE(first.send({"0", "Tgate"}));
  for (int i = 1; i <= 200; ++i) {
    ASSERT_TRUE(first.send({std::to_string(i), i % 3 == 0 ? "T" : "L"}));
  }
  ASSERT_TRUE(dispatcher_.gate.wait_for_arrivals(1));
  EXPECT_EQ(second.ask({"a", "T"}), (Frames{"a", "T"}));
  EXPECT_EQ(second.ask({"b", "L"}), (Frames{"b", "L"}));
  EXPECT_EQ(first.ask({"now", "W"}), (Frames{"now", "W"}));  // the wire lane does not queue
  EXPECT_EQ(dispatcher_.uids_of(ConnectionId{1}), (std::vector<std::string>{"0", "now"}));
  EXPECT_TRUE(eventually([&] { return server_->counts().requests_waiting == 201; }));
  dispatcher_.gate.open();
  for (int i = 0; i <= 200; ++i) {
    ASSERT_EQ(first.receive().at(0), std::to_string(i));
  }
}

TEST_F(ServerTest, ALeavingClientIsReportedAndItsSuccessorIsANewConnection) {
  start();
  {
    Dealer dealer(server_->port());
    EXPECT_EQ(dealer.ask({"1", "W"}).size(), 2U);
    EXPECT_EQ(server_->counts().connections, 1U);
    EXPECT_TRUE(dispatcher_.closed().empty());
  }
  EXPECT_TRUE(eventually([&] { return dispatcher_.closed().size() == 1; }));
  EXPECT_EQ(server_->counts().connections, 0U);
  Dealer again(server_->port());
  EXPECT_EQ(again.ask({"1", "W"}).size(), 2U);
  EXPECT_EQ(dispatcher_.opened(), (std::vector<ConnectionId>{ConnectionId{1}, ConnectionId{2}}));
  EXPECT_EQ(dispatcher_.closed(), (std::vector<ConnectionId>{ConnectionId{1}}));
}

TEST_F(ServerTest, WhatAClientSendsBeforeItLeavesIsRunAsOneConnection) {
  start();
  for (std::uint64_t round = 1; round <= 20; ++round) {
    {
      Dealer dealer(server_->port());
      for (int i = 0; i < 50; ++i) {
        ASSERT_TRUE(dealer.send({std::to_string(i), "L"}));
      }
    }
    ASSERT_TRUE(eventually([&] { return dispatcher_.closed().size() == round; }));
    ASSERT_EQ(dispatcher_.opened().size(), round);
    ASSERT_TRUE(eventually([&] { return dispatcher_.uids_of(ConnectionId{round}).size() == 50; }));
  }
}

TEST_F(ServerTest, TheDispatcherIsToldWhereAConnectionComesFrom) {
  start();
  Dealer dealer(server_->port());
  EXPECT_EQ(dealer.ask({"1", "W"}).size(), 2U);
  ASSERT_EQ(dispatcher_.names().size(), 1U);
  EXPECT_TRUE(dispatcher_.names()[0].starts_with("127.0.0.1:")) << dispatcher_.names()[0];
  const std::vector<ConnectedPeer> peers = server_->peers(10);
  ASSERT_EQ(peers.size(), 1U);
  EXPECT_EQ(peers[0].name.text, dispatcher_.names()[0]);
  EXPECT_TRUE(server_->peers(0).empty());
}

TEST_F(ServerTest, ReqAndRouterPeersAreServedAsDealers) {
  start();
  Dealer req(server_->port(), {.socket_type = ZMQ_REQ});
  ASSERT_TRUE(req.send({"1", "W"}));  // its empty delimiter comes first: frame 1 is "1"
  EXPECT_FALSE(req.has_reply_within(0));
  Dealer router(server_->port(), {.connect_routing_id = "server", .socket_type = ZMQ_ROUTER});
  EXPECT_EQ(router.ask({"server", "2", "L", "v"}), (Frames{"server", "2", "L", "v"}));
  EXPECT_TRUE(eventually([&] { return dispatcher_.opened().size() == 2; }));
}

TEST_F(ServerTest, ClientsHeartbeatsAreAnswered) {
  start();
  Dealer dealer(server_->port(), {.heartbeat_ms = 20});
  EXPECT_EQ(dealer.ask({"1", "W"}).size(), 2U);
  EXPECT_FALSE(dealer.has_reply_within(300));  // its patience is 40 ms
  EXPECT_EQ(dealer.ask({"2", "W"}), (Frames{"2", "W"}));
  EXPECT_EQ(dispatcher_.opened().size(), 1U);  // it never had to come back
}

TEST_F(ServerTest, RequestsOfAClientThatLeftStillRun) {
  start();
  {
    Dealer dealer(server_->port());
    ASSERT_TRUE(dealer.send({"1", "Lgate"}));
    ASSERT_TRUE(dealer.send({"2", "T"}));
    ASSERT_TRUE(dispatcher_.gate.wait_for_arrivals(1));
    ASSERT_TRUE(eventually([&] { return server_->counts().requests_waiting == 2; }));
  }
  ASSERT_TRUE(eventually([&] { return dispatcher_.closed().size() == 1; }));
  dispatcher_.gate.open();
  EXPECT_TRUE(eventually([&] { return dispatcher_.runs().size() == 2; }));
  EXPECT_TRUE(eventually([&] { return server_->counts().requests_waiting == 0; }));
}

TEST_F(ServerTest, TwoClientsWithOneIdentityAreBothServed) {
  start();
  Dealer first(server_->port(), {.identity = "worker-0"});
  EXPECT_EQ(first.ask({"1", "W"}).size(), 2U);
  Dealer second(server_->port(), {.identity = "worker-0"});
  EXPECT_EQ(second.ask({"2", "W"}), (Frames{"2", "W"}));
  EXPECT_EQ(first.ask({"3", "W"}), (Frames{"3", "W"}));
  EXPECT_EQ(dispatcher_.opened().size(), 2U);
}

TEST_F(ServerTest, HundredsOfClientsComeAndGoWithoutLeavingAnythingBehind) {
  start();
  constexpr std::size_t kClients = 150;
  for (std::size_t round = 1; round <= 2; ++round) {
    {
      std::vector<std::unique_ptr<Dealer>> dealers;
      for (std::size_t i = 0; i < kClients; ++i) {
        dealers.push_back(std::make_unique<Dealer>(server_->port()));
        ASSERT_TRUE(dealers.back()->send({std::to_string(i), "L"}));
      }
      for (std::size_t i = 0; i < kClients; ++i) {
        ASSERT_EQ(dealers[i]->receive(), (Frames{std::to_string(i), "L"}));
      }
      EXPECT_EQ(server_->counts().connections, kClients);
    }
    ASSERT_TRUE(eventually([&] { return dispatcher_.closed().size() == round * kClients; }));
    EXPECT_EQ(server_->counts().connections, 0U);
    EXPECT_EQ(dispatcher_.opened().size(), round * kClients);
  }
  std::set<ConnectionId> closed;
  for (const ConnectionId connection : dispatcher_.closed()) {
    EXPECT_TRUE(closed.insert(connection).second);
  }
  EXPECT_EQ(closed.size(), 2 * kClients);
}

TEST_F(ServerTest, AMessageOfTooManyFramesEndsItsConnectionOnly) {
  ServerConfig config;
  config.frames_max = 4;
  start(config);
  Dealer well_behaved(server_->port());
  EXPECT_EQ(well_behaved.ask({"1", "W", "3", "4"}), (Frames{"1", "W", "3"}));
  Dealer greedy(server_->port());
  ASSERT_TRUE(greedy.send({"2", "W", "3", "4", "5"}));
  EXPECT_TRUE(eventually([&] { return closed_for("message_frames") == 1; }));
  EXPECT_EQ(well_behaved.ask({"3", "W"}), (Frames{"3", "W"}));
  // It comes back by itself and is served.
  EXPECT_EQ(greedy.ask({"4", "W"}), (Frames{"4", "W"}));
}

TEST_F(ServerTest, MessagesWithTooFewFramesReachTheDispatcher) {
  start();
  Dealer dealer(server_->port());
  ASSERT_TRUE(dealer.send({"1"}));
  ASSERT_TRUE(dealer.send({""}));
  EXPECT_EQ(dealer.ask({"2", "W"}), (Frames{"2", "W"}));
  EXPECT_EQ(dispatcher_.malformed, 2);
}

TEST_F(ServerTest, AMessageBeyondTheLimitEndsItsConnectionOnly) {
  ServerConfig config;
  config.message_bytes_max = 1000;
  start(config);
  Dealer well_behaved(server_->port());
  EXPECT_EQ(well_behaved.ask({"1", "W", std::string(998, 'v')}).size(), 3U);
  Dealer greedy(server_->port());
  EXPECT_EQ(greedy.ask({"1", "W"}).size(), 2U);
  ASSERT_TRUE(greedy.send({"2", "W", std::string(999, 'v')}));
  EXPECT_TRUE(eventually([&] { return dispatcher_.closed().size() == 1; }));
  EXPECT_EQ(well_behaved.ask({"2", "W"}).size(), 2U);
}

}  // namespace
}  // namespace larder::transport
