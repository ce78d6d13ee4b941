// Goal: a connection opens once, closes once, and is never mixed up with the one that has its
// descriptor or its identity next. Method: the orders in which libzmq can report messages, ACCEPTED
// and DISCONNECTED, played by hand; then a seeded simulation whose end state is checked.
#include "transport/connections.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "transport/test_gate.h"

namespace larder::transport {
namespace {

class ConnectionsTest : public testing::Test {
 protected:
  // What the loop does with a message after it has read the monitor.
  ConnectionId message(std::string_view identity, int descriptor) {
    Peer* peer = table_.find(identity, descriptor);
    return peer != nullptr ? peer->id : table_.open(identity, descriptor).id;
  }

  void find_empty_twice() {
    table_.round_ended(true);
    table_.round_ended(true);
  }

  std::vector<ConnectionId> closed_;
  std::vector<ConnectionId> with_room_;
  Connections table_{1000,
                     [this](ConnectionId id) { with_room_.push_back(id); },
                     [this](ConnectionId id) { closed_.push_back(id); }};
};

using Ids = std::vector<ConnectionId>;

TEST_F(ConnectionsTest, MessagesOfOnePeerAreOneConnection) {
  table_.accepted(5);
  const ConnectionId first = message("a", 5);
  EXPECT_EQ(message("a", 5), first);
  EXPECT_EQ(table_.size(), 1U);
  EXPECT_EQ(table_.find(first)->identity, "a");
  EXPECT_FALSE(table_.has_departing());
}

TEST_F(ConnectionsTest, ADisconnectedPeerClosesOnceWhatItSentHasBeenRead) {
  table_.accepted(5);
  const ConnectionId first = message("a", 5);
  table_.disconnected(5);
  table_.round_ended(false);
  EXPECT_EQ(message("a", 5), first);  // still queued when the monitor spoke
  table_.round_ended(true);
  EXPECT_TRUE(closed_.empty());
  table_.round_ended(true);
  EXPECT_EQ(closed_, Ids{first});
  EXPECT_EQ(table_.find(first), nullptr);
  EXPECT_EQ(table_.size(), 0U);
}

TEST_F(ConnectionsTest, ABusySocketDoesNotKeepADepartedPeerForEver) {
  table_.accepted(5);
  message("a", 5);
  table_.disconnected(5);
  for (int i = 0; i < Connections::kRoundsToClose; ++i) {
    table_.round_ended(false);
  }
  EXPECT_EQ(closed_.size(), 1U);
}

TEST_F(ConnectionsTest, APeerThatWasGoneBeforeItsFirstMessageWasReadCloses) {
  table_.accepted(5);
  table_.disconnected(5);
  const ConnectionId first = message("a", 5);
  EXPECT_EQ(message("a", 5), first);
  find_empty_twice();
  EXPECT_EQ(closed_, Ids{first});
}

TEST_F(ConnectionsTest, AReusedDescriptorIsTheNewPeers) {
  table_.accepted(5);
  const ConnectionId old_peer = message("a", 5);
  table_.disconnected(5);
  table_.accepted(5);
  const ConnectionId new_peer = message("b", 5);
  EXPECT_NE(new_peer, old_peer);
  EXPECT_EQ(message("a", 5), old_peer);  // its tail
  find_empty_twice();
  EXPECT_EQ(closed_, Ids{old_peer});
  EXPECT_EQ(message("b", 5), new_peer);
  table_.disconnected(5);
  find_empty_twice();
  EXPECT_EQ(closed_, (Ids{old_peer, new_peer}));
}

TEST_F(ConnectionsTest, AnUnreadPeerWhoseDescriptorWasReusedDepartsWhenTheNewOneSpeaks) {
  table_.accepted(5);
  table_.disconnected(5);
  table_.accepted(5);
  const ConnectionId old_peer = message("a", 5);
  const ConnectionId new_peer = message("b", 5);
  find_empty_twice();
  EXPECT_EQ(closed_, Ids{old_peer});
  EXPECT_NE(table_.find(new_peer), nullptr);
}

TEST_F(ConnectionsTest, AnIdentityThatMovesToAnotherConnectionIsANewOne) {
  table_.accepted(5);
  const ConnectionId first = message("fixed", 5);
  table_.accepted(6);
  const ConnectionId second = message("fixed", 6);
  EXPECT_NE(second, first);
  EXPECT_EQ(closed_, Ids{first});
  table_.accepted(5);  // libzmq reports no DISCONNECTED for the one that lost its identity
  find_empty_twice();
  EXPECT_EQ(closed_, Ids{first});
  EXPECT_EQ(message("fixed", 6), second);
}

TEST_F(ConnectionsTest, ReportsOfConnectionsWithoutMessagesChangeNothing) {
  table_.accepted(5);
  table_.disconnected(5);
  table_.disconnected(77);
  find_empty_twice();
  EXPECT_TRUE(closed_.empty());
  EXPECT_EQ(table_.size(), 0U);
}

TEST_F(ConnectionsTest, RoomForRepliesIsReportedForItsConnection) {
  table_.accepted(5);
  const ConnectionId id = message("a", 5);
  const std::shared_ptr<UnsentBytes> unsent = table_.find(id)->unsent;
  {
    const Charge small(unsent, 999);
    EXPECT_FALSE(unsent->is_full());
    Charge large(unsent, 5000);
    EXPECT_TRUE(unsent->is_full());
    const Charge moved(std::move(large));
    EXPECT_EQ(unsent->value(), 5999U);
  }
  EXPECT_EQ(with_room_, Ids{id});
  EXPECT_EQ(unsent->value(), 0U);
}

TEST_F(ConnectionsTest, ClosingAllClosesEachOnce) {
  for (int i = 1; i <= 10; ++i) {
    table_.accepted(i);
    message("peer" + std::to_string(i), i);
  }
  table_.disconnected(3);
  table_.close_all();
  EXPECT_EQ(std::set<ConnectionId>(closed_.begin(), closed_.end()).size(), 10U);
  EXPECT_EQ(closed_.size(), 10U);
  EXPECT_FALSE(table_.has_departing());
}

// Peers connect, send and leave at random; the table sees their messages late, and the monitor
// always up to date before an opening, as the loop does it.
TEST_F(ConnectionsTest, RandomComingsAndGoingsNeverMixPeersUpAndLeaveNothing) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("LARDER_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);

  struct Live {
    std::string identity;
    std::size_t unread = 0;
  };

  std::map<int, Live> live;                            // by descriptor
  std::vector<std::pair<std::string, int>> queue;      // messages not read yet
  std::map<ConnectionId, std::string> identity_of_id;  // what each connection has been seen as
  int born = 0;
  for (int step = 0; step < 20'000; ++step) {
    const int descriptor = static_cast<int>(random() % 6);
    switch (random() % 4) {
      case 0:
        if (!live.contains(descriptor)) {
          live[descriptor] = {"peer" + std::to_string(++born)};
          table_.accepted(descriptor);
        }
        break;
      case 1:
        if (live.contains(descriptor)) {
          queue.emplace_back(live[descriptor].identity, descriptor);
        }
        break;
      case 2:
        if (live.erase(descriptor) > 0) {
          table_.disconnected(descriptor);
        }
        break;
      default:
        for (const auto& [identity, from] : queue) {
          const ConnectionId id = message(identity, from);
          const auto [seen, is_new] = identity_of_id.try_emplace(id, identity);
          ASSERT_EQ(seen->second, identity);
        }
        queue.clear();
        table_.round_ended(true);
    }
  }
  for (const auto& [descriptor, peer] : live) {
    table_.disconnected(descriptor);
  }
  for (const auto& [identity, from] : queue) {
    identity_of_id.try_emplace(message(identity, from), identity);
  }
  // A peer that was read only after its descriptor was reused leaves with that descriptor's next
  // report.
  for (int descriptor = 0; descriptor < 6; ++descriptor) {
    table_.accepted(descriptor);
    table_.disconnected(descriptor);
  }
  find_empty_twice();
  EXPECT_EQ(table_.size(), 0U);
  EXPECT_EQ(closed_.size(), identity_of_id.size());
  EXPECT_EQ(std::set<ConnectionId>(closed_.begin(), closed_.end()).size(), closed_.size());
}

}  // namespace
}  // namespace larder::transport
