// Goal: each COMMIT ends the right transfer, once, and nothing of an instance outlives it. Method:
// an instance with leases of a small cache; which lease came back is told by its memory's offset.
#include "sessions/instance.h"

#include <gtest/gtest.h>

#include "sessions/test_sessions.h"

namespace larder::sessions {
namespace {

const std::uint32_t kRank = keys::pack_kv_rank(1, 0);

class InstanceTest : public testing::Test {
 protected:
  InstanceTest() { cache_.store(space_, cache::test_prompt(9, 4)); }

  static TransferKey key(std::uint32_t prompt, std::size_t end = 2) {
    return {"model",
            "",
            kRank,
            {0, end},
            cache::test_hash(prompt, static_cast<std::uint32_t>(end) - 1)};
  }

  cache::WriteLease write(std::uint32_t prompt) {
    Result<cache::WriteLease> lease = cache_.reserve(space_, cache::test_prompt(prompt, 2));
    EXPECT_TRUE(lease.has_value());
    return std::move(*lease);
  }

  cache::ReadLease read(std::size_t chunks) {
    return std::move(*cache_->acquire(
        space_, {cache::test_prompt(9, static_cast<std::uint32_t>(chunks)), 0, kRank}));
  }

  std::size_t open_store(std::uint32_t prompt, const std::string& request_id) {
    cache::WriteLease lease = write(prompt);
    const std::size_t offset = lease.slot(0).offset();
    EXPECT_TRUE(instance_.open_store(key(prompt), request_id, std::move(lease), clock_.now()));
    return offset;
  }

  // The offset tells which of the open stores was ended.
  std::optional<std::size_t> close_store(std::uint32_t prompt, const std::string& request_id) {
    std::optional<cache::WriteLease> lease = instance_.close_store(key(prompt), request_id);
    return lease.has_value() ? std::optional(lease->slot(0).offset()) : std::nullopt;
  }

  // The size tells which of the open retrieves was ended.
  std::optional<std::size_t> close_retrieve(const std::string& request_id) {
    std::optional<cache::ReadLease> lease = instance_.close_retrieve(key(9), request_id);
    return lease.has_value() ? std::optional(lease->size()) : std::nullopt;
  }

  cache::TestCache cache_{128};
  const cache::KeySpace space_ = cache::test_space();
  ManualClock clock_;
  Instance instance_{
      InstanceId{1}, {"model", 1, 16, false, {{space_.layout}}}, kWorkerConnection, clock_.now()};
};

TEST_F(InstanceTest, ACommitEndsItsStoreOnce) {
  const std::size_t offset = open_store(1, "a");
  EXPECT_EQ(close_store(1, "a"), offset);
  EXPECT_EQ(close_store(1, "a"), std::nullopt);
}

TEST_F(InstanceTest, ACommitOfAnotherKeyEndsNothing) {
  open_store(1, "a");
  EXPECT_EQ(close_store(2, "a"), std::nullopt);
  TransferKey salted = key(1);
  salted.cache_salt = "alice";
  EXPECT_FALSE(instance_.close_store(salted, "a").has_value());
  TransferKey longer = key(1);
  longer.range.end = 3;
  EXPECT_FALSE(instance_.close_store(longer, "a").has_value());
  TransferKey other_rank = key(1);
  other_rank.kv_rank = keys::pack_kv_rank(2, 0);
  EXPECT_FALSE(instance_.close_store(other_rank, "a").has_value());
}

// Its slots may not be written yet.
TEST_F(InstanceTest, ACommitOfAnotherRequestEndsNobodysStore) {
  const std::size_t offset = open_store(1, "a");
  EXPECT_EQ(close_store(1, "another"), std::nullopt);
  EXPECT_EQ(close_store(1, "a"), offset);
}

TEST_F(InstanceTest, StoresOfOneKeyEndByTheirRequest) {
  const std::size_t first = open_store(1, "a");
  const std::size_t second = open_store(1, "b");
  EXPECT_EQ(close_store(1, "b"), second);
  EXPECT_EQ(close_store(1, "b"), std::nullopt);
  EXPECT_EQ(close_store(1, "a"), first);
}

// A second one would have other slots, and a COMMIT does not say which it means.
TEST_F(InstanceTest, OneStoreOfAKeyAndRequestIsOpenAtATime) {
  EXPECT_FALSE(instance_.has_store(key(1), "a"));
  const std::size_t offset = open_store(1, "a");
  EXPECT_TRUE(instance_.has_store(key(1), "a"));
  EXPECT_FALSE(instance_.has_store(key(1), "b"));
  EXPECT_FALSE(instance_.open_store(key(1), "a", write(2), clock_.now()));
  EXPECT_EQ(close_store(1, "a"), offset);
  EXPECT_EQ(close_store(1, "a"), std::nullopt);
  const std::size_t next = open_store(1, "a");
  EXPECT_EQ(close_store(1, "a"), next);
}

TEST_F(InstanceTest, RetrievesOfOneKeyAreCountedNotOverwritten) {
  ASSERT_TRUE(instance_.open_retrieve(key(9), "a", read(1)));
  ASSERT_TRUE(instance_.open_retrieve(key(9), "b", read(2)));
  ASSERT_TRUE(instance_.open_retrieve(key(9), "a", read(3)));
  EXPECT_EQ(close_retrieve("b"), 2U);
  EXPECT_EQ(close_retrieve("a"), 1U) << "the older of its own";
  EXPECT_EQ(close_retrieve("c"), std::nullopt) << "its own was a miss";
  EXPECT_EQ(close_retrieve("a"), 3U);
  EXPECT_EQ(close_retrieve("a"), std::nullopt);
  cache_.expect_at_rest();
}

TEST_F(InstanceTest, AnOpenRetrieveHasNoTimeLimit) {
  ASSERT_TRUE(instance_.open_retrieve(key(9), "a", read(4)));
  clock_.advance(std::chrono::hours(24));
  const Quarantine::Held held = instance_.expire_stores(clock_.now(), seconds(600));
  EXPECT_TRUE(held.lease.empty());
  cache_->evict_down_to(0, 100);
  EXPECT_EQ(close_retrieve("a"), 4U);
}

TEST_F(InstanceTest, KnowsWhatItIsStoring) {
  open_store(1, "a");
  EXPECT_EQ(instance_.staged(space_).size(), 2U);
  EXPECT_TRUE(instance_.staged(space_).contains({cache::test_hash(1, 1), kRank}));
  EXPECT_TRUE(instance_.staged(cache::test_space("model", "alice")).empty());
  close_store(1, "a");
  EXPECT_TRUE(instance_.staged(space_).empty());
}

TEST_F(InstanceTest, AStoreExpiresOnlyWhenOlderThanItsTime) {
  open_store(1, "a");
  clock_.advance(seconds(100));
  const std::size_t younger = open_store(2, "a");
  clock_.advance(seconds(500));
  EXPECT_TRUE(instance_.expire_stores(clock_.now(), seconds(600)).slots.empty());
  clock_.advance(milliseconds(1));
  const Quarantine::Held held = instance_.expire_stores(clock_.now(), seconds(600));
  EXPECT_EQ(held.slots.size(), 2U);
  EXPECT_EQ(close_store(1, "a"), std::nullopt) << "its COMMIT answers false";
  EXPECT_EQ(close_store(2, "a"), younger);
  EXPECT_EQ(cache_.hit(space_, cache::test_prompt(1, 2)), 0U) << "expiry never publishes";
  EXPECT_EQ(cache_.used_objects(), 4U + 2U) << "the memory is with whom it was handed to";
}

TEST_F(InstanceTest, ClosingHandsOverAllAndOpensNothingMore) {
  open_store(1, "a");
  ASSERT_TRUE(instance_.open_retrieve(key(9), "a", read(1)));
  ASSERT_TRUE(instance_.open_retrieve(key(9), "b", read(2)));
  const Quarantine::Held held = instance_.close();
  EXPECT_EQ(held.slots.size(), 2U);
  EXPECT_EQ(held.lease.size(), 3U);
  EXPECT_FALSE(instance_.open_store(key(2), "a", write(2), clock_.now()));
  EXPECT_FALSE(instance_.open_retrieve(key(9), "a", read(4)));
  EXPECT_EQ(close_retrieve("a"), std::nullopt);
  EXPECT_EQ(cache_->stats().pinned_objects, 2U) << "what was refused is not kept";
  EXPECT_EQ(cache_->stats().reserved_objects, 0U);
}

// Memory whose copies end when the test says so.
class SlowMemory final : public devices::EngineMemory {
 public:
  SlowMemory() : EngineMemory({}) {}

  void end_copies() {
    for (const devices::CopyJob& job : jobs_) {
      job.done(true);
    }
  }

  devices::EventHandle completed_event() override { return {}; }

  std::string_view device_name() const override { return "slow"; }

 private:
  Started do_start(devices::CopyJob job) override {
    jobs_.push_back(std::move(job));
    return {.started = true, .event = {}};
  }

  std::vector<devices::CopyJob> jobs_;
};

// It was reaped, replaced or has left: its memory may be used for something else already.
TEST_F(InstanceTest, ClosingLetsNoCopyOfItsMemorySucceed) {
  const auto memory = std::make_shared<SlowMemory>();
  Registration registration{"model", 1, 16, false, {{space_.layout}}};
  registration.memory = memory;
  Instance instance{InstanceId{2}, registration, kWorkerConnection, clock_.now()};
  std::vector<bool> outcomes;
  const auto start = [&] {
    devices::CopyJob job;
    job.done = [&outcomes](bool copied) { outcomes.push_back(copied); };
    return memory->start(std::move(job)).started;
  };
  EXPECT_TRUE(start());
  instance.close();
  memory->end_copies();
  EXPECT_FALSE(start());
  EXPECT_EQ(outcomes, (std::vector{false, false}));
}

TEST_F(InstanceTest, DroppingItsTransfersLetsNewOnesOpen) {
  open_store(1, "a");
  EXPECT_EQ(instance_.drop_transfers().slots.size(), 2U);
  EXPECT_EQ(close_store(1, "a"), std::nullopt);
  const std::size_t offset = open_store(1, "a");
  EXPECT_EQ(close_store(1, "a"), offset);
}

TEST_F(InstanceTest, OpenTransfersHaveABound) {
  for (std::size_t i = 0; i < Instance::kTransfersMax; ++i) {
    ASSERT_TRUE(instance_.open_retrieve(key(9), "a", read(1)));
  }
  EXPECT_FALSE(instance_.open_retrieve(key(9), "a", read(1)));
  EXPECT_FALSE(instance_.open_store(key(1), "a", write(1), clock_.now()));
  EXPECT_TRUE(close_retrieve("a").has_value());
  EXPECT_TRUE(instance_.open_retrieve(key(9), "a", read(1)));
}

TEST_F(InstanceTest, LearnsItsKindOnce) {
  EXPECT_EQ(instance_.kind(), ClientKind::kUnknown);
  EXPECT_TRUE(instance_.learn_kind(ClientKind::kCopy));
  EXPECT_FALSE(instance_.learn_kind(ClientKind::kCopy));
  EXPECT_EQ(instance_.kind(), ClientKind::kCopy);
}

TEST_F(InstanceTest, RemembersWhenAndOverWhatItWasSeen) {
  clock_.advance(seconds(5));
  instance_.seen(ConnectionId{77}, clock_.now());
  EXPECT_EQ(instance_.last_seen(), clock_.now());
  EXPECT_EQ(instance_.connection(), ConnectionId{77});
}

}  // namespace
}  // namespace larder::sessions
