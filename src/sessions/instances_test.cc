// Goal: who is registered, who is reaped and when, what a LOOKUP of a model has to satisfy, and
// when memory that was taken from an instance may be used again. Method: a clock by hand; the
// pool's usage tells when memory is free.
#include "sessions/instances.h"

#include <gtest/gtest.h>

#include "sessions/test_sessions.h"

namespace larder::sessions {
namespace {

using Registered = Instances::Registered;

constexpr InstanceId kWorker{100};
constexpr InstanceId kOtherWorker{101};
constexpr ConnectionId kConnection{10};
constexpr ConnectionId kNewConnection{11};
const std::uint32_t kRank = keys::pack_kv_rank(1, 0);

class InstancesTest : public testing::Test {
 protected:
  static Registration registration(std::int64_t layers = 2, const std::string& model = "model") {
    return {model, 1, 16, false, {{{tensors::Dtype::kUint8, {layers, 100}}}}};
  }

  // Opens a store of two objects; the key's range tells stores apart.
  void open_store(InstanceId id, std::uint32_t prompt = 1) {
    const std::shared_ptr<Instance> instance = instances_.find(id, kConnection);
    ASSERT_NE(instance, nullptr);
    Result<cache::WriteLease> lease = cache_.reserve(space_, cache::test_prompt(prompt, 2));
    ASSERT_TRUE(instance->open_store(key(prompt), "a", std::move(*lease), clock_.now()));
  }

  static TransferKey key(std::uint32_t prompt) {
    return {"model", "", kRank, {0, 2}, cache::test_hash(prompt, 1)};
  }

  bool commit(const std::shared_ptr<Instance>& instance, std::uint32_t prompt = 1) {
    std::optional<cache::WriteLease> lease = instance->close_store(key(prompt), "a");
    return lease.has_value() && lease->commit();
  }

  void pass(Duration time) {
    clock_.advance(time);
    instances_.sweep();
    quarantine_.sweep();
  }

  std::size_t layouts() { return instances_.layouts_of("model", 1).layouts.size(); }

  cache::TestCache cache_;
  const cache::KeySpace space_ = cache::test_space();
  ManualClock clock_;
  Quarantine quarantine_{clock_};
  Instances instances_{kTestInstanceLimits, quarantine_, clock_};
};

TEST_F(InstancesTest, FindsWhoIsRegistered) {
  EXPECT_EQ(instances_.find(kWorker, kConnection), nullptr);
  EXPECT_EQ(instances_.add(kWorker, registration(), kConnection), Registered::kNew);
  EXPECT_EQ(instances_.find(kWorker, kConnection)->id, kWorker);
  EXPECT_EQ(instances_.count(), 1U);
  EXPECT_EQ(instances_.status().at(0).registration, registration());
}

TEST_F(InstancesTest, RefusesMoreInstancesThanTheBound) {
  for (std::uint64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(instances_.add(InstanceId{i}, registration(), kConnection), Registered::kNew);
  }
  EXPECT_EQ(instances_.add(InstanceId{9}, registration(9), kConnection), Registered::kTooMany);
  EXPECT_EQ(layouts(), 1U);
  EXPECT_EQ(instances_.add(InstanceId{0}, registration(), kConnection), Registered::kAgain);
  EXPECT_EQ(instances_.add(InstanceId{0}, registration(3), kConnection), Registered::kReplaced);
}

TEST_F(InstancesTest, UnregisteringEndsIt) {
  instances_.add(kWorker, registration(), kConnection);
  EXPECT_TRUE(instances_.remove(kWorker));
  EXPECT_FALSE(instances_.remove(kWorker));
  EXPECT_EQ(instances_.find(kWorker, kConnection), nullptr);
  EXPECT_EQ(layouts(), 0U);
}

// Reaping.

TEST_F(InstancesTest, OneThatPingedIsReapedAfterTheTimeout) {
  instances_.add(kWorker, registration(), kConnection);
  EXPECT_TRUE(instances_.ping(kWorker, kConnection));
  pass(seconds(120));
  EXPECT_EQ(instances_.count(), 1U) << "only beyond the timeout";
  clock_.advance(milliseconds(1));
  EXPECT_EQ(instances_.sweep(), 1U);
  EXPECT_EQ(instances_.count(), 0U);
  EXPECT_EQ(layouts(), 0U);
}

TEST_F(InstancesTest, OneThatNeverPingedHasTheGraceOfRegistration) {
  instances_.add(kWorker, registration(), kConnection);
  pass(seconds(3600));
  EXPECT_EQ(instances_.count(), 1U);
  pass(milliseconds(1));
  EXPECT_EQ(instances_.count(), 0U);
}

TEST_F(InstancesTest, PingsTransfersAndRegistrationsAreSignsOfLife) {
  instances_.add(kWorker, registration(), kConnection);
  instances_.ping(kWorker, kConnection);
  pass(seconds(119));
  instances_.ping(kWorker, kConnection);
  pass(seconds(119));
  instances_.find(kWorker, kConnection);
  pass(seconds(119));
  instances_.add(kWorker, registration(), kConnection);
  pass(seconds(119));
  EXPECT_EQ(instances_.count(), 1U);
}

TEST_F(InstancesTest, ThatItPingedIsRememberedWhenItRegistersAgain) {
  for (const std::int64_t layers : {2, 3}) {
    instances_.add(kWorker, registration(), kConnection);
    instances_.ping(kWorker, kConnection);
    instances_.add(kWorker, registration(layers), kConnection);
    pass(seconds(121));
    EXPECT_EQ(instances_.count(), 0U) << "layers " << layers;
  }
}

TEST_F(InstancesTest, ThatItPingedIsForgottenWithTheRegistration) {
  instances_.add(kWorker, registration(), kConnection);
  instances_.ping(kWorker, kConnection);
  instances_.remove(kWorker);
  instances_.add(kWorker, registration(), kConnection);
  pass(seconds(121));
  EXPECT_EQ(instances_.count(), 1U);
}

TEST_F(InstancesTest, ATimeoutOfZeroReapsNobodyForSilence) {
  InstanceLimits limits = kTestInstanceLimits;
  limits.reap_timeout = Duration::zero();
  Instances never(limits, quarantine_, clock_);
  never.add(kWorker, registration(), kConnection);
  never.ping(kWorker, kConnection);
  clock_.advance(std::chrono::hours(1000));
  EXPECT_EQ(never.sweep(), 0U);
}

TEST_F(InstancesTest, WhoseConnectionIsGoneIsReapedAfterTheGrace) {
  instances_.add(kWorker, registration(), kConnection);
  instances_.connection_closed(kConnection);
  pass(seconds(30));
  EXPECT_EQ(instances_.count(), 1U);
  pass(milliseconds(1));
  EXPECT_EQ(instances_.count(), 0U);
}

TEST_F(InstancesTest, OneThatComesBackOverANewConnectionStays) {
  instances_.add(kWorker, registration(), kConnection);
  instances_.connection_closed(kConnection);
  pass(seconds(29));
  instances_.ping(kWorker, kNewConnection);
  pass(seconds(60));
  EXPECT_EQ(instances_.count(), 1U);
}

TEST_F(InstancesTest, AReapedReservationIsNeverPublished) {
  instances_.add(kWorker, registration(), kConnection);
  instances_.ping(kWorker, kConnection);
  open_store(kWorker);
  const std::shared_ptr<Instance> in_a_handler = instances_.find(kWorker, kConnection);
  pass(seconds(121));
  EXPECT_FALSE(commit(in_a_handler));
  EXPECT_EQ(cache_.hit(space_, cache::test_prompt(1, 2)), 0U);
  Result<cache::WriteLease> late = cache_.reserve(space_, cache::test_prompt(2, 2));
  EXPECT_FALSE(in_a_handler->open_store(key(2), "a", std::move(*late), clock_.now()))
      << "a handler that was under way owns nothing afterwards";
}

// Memory of instances that are gone.

TEST_F(InstancesTest, WhatASilentInstanceHeldRestsUntilTheCap) {
  instances_.add(kWorker, registration(), kConnection);
  instances_.ping(kWorker, kConnection);
  open_store(kWorker);
  pass(seconds(121));
  EXPECT_EQ(cache_->stats().reserved_objects, 0U);
  EXPECT_EQ(cache_.used_objects(), 2U);
  pass(minutes(10) - milliseconds(1));
  EXPECT_EQ(cache_.used_objects(), 2U);
  pass(milliseconds(1));
  EXPECT_EQ(cache_.used_objects(), 0U);
}

TEST_F(InstancesTest, WhatASilentInstanceHeldIsFreedWhenItsConnectionGoes) {
  instances_.add(kWorker, registration(), kConnection);
  instances_.ping(kWorker, kConnection);
  open_store(kWorker);
  pass(seconds(121));
  instances_.connection_closed(kConnection);
  EXPECT_EQ(cache_.used_objects(), 0U);
}

TEST_F(InstancesTest, WhatAnInstanceWithoutAConnectionHeldIsFreedWhenItIsReaped) {
  instances_.add(kWorker, registration(), kConnection);
  open_store(kWorker);
  instances_.connection_closed(kConnection);
  EXPECT_EQ(cache_.used_objects(), 2U);
  pass(seconds(31));
  EXPECT_EQ(instances_.count(), 0U);
  EXPECT_EQ(cache_.used_objects(), 0U) << "the process is gone, nobody can write any more";
}

TEST_F(InstancesTest, WhatAnInstanceHeldRestsShortlyAfterItUnregistered) {
  instances_.add(kWorker, registration(), kConnection);
  open_store(kWorker);
  instances_.remove(kWorker);
  EXPECT_EQ(cache_.used_objects(), 2U);
  pass(seconds(1));
  EXPECT_EQ(cache_.used_objects(), 0U);
}

TEST_F(InstancesTest, ASilentInstanceThatUnregistersLateEndsItsQuarantine) {
  instances_.add(kWorker, registration(), kConnection);
  instances_.ping(kWorker, kConnection);
  open_store(kWorker);
  pass(seconds(121));
  EXPECT_FALSE(instances_.remove(kWorker));
  pass(seconds(1));
  EXPECT_EQ(cache_.used_objects(), 0U);
}

TEST_F(InstancesTest, AReapedInstanceThatRegistersAgainShortensItsQuarantine) {
  instances_.add(kWorker, registration(), kConnection);
  instances_.ping(kWorker, kConnection);
  open_store(kWorker);
  pass(seconds(121));
  EXPECT_EQ(instances_.add(kWorker, registration(), kNewConnection), Registered::kNew);
  pass(seconds(29));
  EXPECT_EQ(cache_.used_objects(), 2U) << "its copies of before may still run";
  pass(seconds(1));
  EXPECT_EQ(cache_.used_objects(), 0U);
}

TEST_F(InstancesTest, AnExpiredReservationRestsUntilItsInstanceStartsOver) {
  for (const std::int64_t layers : {2, 3}) {
    instances_.add(kWorker, registration(), kConnection);
    open_store(kWorker);
    pass(seconds(601));
    EXPECT_EQ(cache_->stats().reserved_objects, 0U) << "expired, and not published";
    EXPECT_EQ(cache_.used_objects(), 2U);
    instances_.add(kWorker, registration(layers), kConnection);
    pass(seconds(30));
    EXPECT_EQ(cache_.used_objects(), 0U) << "layers " << layers;
    instances_.remove(kWorker);
  }
}

TEST_F(InstancesTest, AReservationExpiresOnlyAfterItsTime) {
  instances_.add(kWorker, registration(), kConnection);
  open_store(kWorker);
  pass(seconds(600));
  EXPECT_TRUE(commit(instances_.find(kWorker, kConnection)));
}

// Registering again.

TEST_F(InstancesTest, RegisteringTheSameAgainKeepsTheInstanceAndDropsItsTransfers) {
  instances_.add(kWorker, registration(), kConnection);
  open_store(kWorker);
  const std::shared_ptr<Instance> before = instances_.find(kWorker, kConnection);
  before->learn_kind(ClientKind::kCopy);
  EXPECT_EQ(instances_.add(kWorker, registration(), kNewConnection), Registered::kAgain);
  EXPECT_EQ(instances_.find(kWorker, kNewConnection), before);
  EXPECT_EQ(before->kind(), ClientKind::kUnknown);
  EXPECT_FALSE(commit(before));
  open_store(kWorker, 2);
  EXPECT_TRUE(commit(before, 2));
  EXPECT_EQ(layouts(), 1U);
}

TEST_F(InstancesTest, RegisteringWithOtherParametersMakesANewGeneration) {
  instances_.add(kWorker, registration(2), kConnection);
  open_store(kWorker);
  const std::shared_ptr<Instance> before = instances_.find(kWorker, kConnection);
  EXPECT_EQ(instances_.add(kWorker, registration(3), kConnection), Registered::kReplaced);
  const std::shared_ptr<Instance> after = instances_.find(kWorker, kConnection);
  EXPECT_NE(before, after);
  EXPECT_FALSE(commit(before)) << "what the old generation reserved never commits";
  EXPECT_FALSE(commit(after));
  ASSERT_EQ(layouts(), 1U);
  EXPECT_EQ(instances_.layouts_of("model", 1).layouts.at(0), registration(3).groups);
}

TEST_F(InstancesTest, MemoryRestsWhenItsOwnerRegistersAgainAlsoWithoutTheOldConnection) {
  for (const std::int64_t layers : {2, 3}) {
    const ConnectionId old_connection{20 + static_cast<std::uint64_t>(layers)};
    instances_.add(kWorker, registration(), kConnection);
    open_store(kWorker);
    instances_.ping(kWorker, old_connection);
    instances_.connection_closed(old_connection);
    instances_.add(kWorker, registration(layers), kNewConnection);
    EXPECT_EQ(cache_.used_objects(), 2U) << "it lives, so its copies may still run";
    pass(seconds(30));
    EXPECT_EQ(cache_.used_objects(), 0U);
    instances_.remove(kWorker);
  }
}

// PING of strangers.

TEST_F(InstancesTest, AStrangerIsToldOnce) {
  EXPECT_FALSE(instances_.ping(kWorker, kConnection));
  EXPECT_TRUE(instances_.ping(kWorker, kConnection));
  EXPECT_FALSE(instances_.ping(kOtherWorker, kConnection)) << "each is told";
  EXPECT_EQ(instances_.count(), 0U) << "a PING registers nobody";
}

TEST_F(InstancesTest, AReapedInstanceIsToldOnceMore) {
  EXPECT_FALSE(instances_.ping(kWorker, kConnection));
  instances_.add(kWorker, registration(), kConnection);
  EXPECT_TRUE(instances_.ping(kWorker, kConnection));
  pass(seconds(121));
  EXPECT_FALSE(instances_.ping(kWorker, kConnection));
  EXPECT_TRUE(instances_.ping(kWorker, kConnection));
}

TEST_F(InstancesTest, WhoWasToldIsForgottenBeyondTheBound) {
  for (std::uint64_t i = 0; i < 4; ++i) {
    EXPECT_FALSE(instances_.ping(InstanceId{i}, kConnection));
  }
  EXPECT_TRUE(instances_.ping(InstanceId{3}, kConnection));
  EXPECT_TRUE(instances_.ping(InstanceId{1}, kConnection));
  EXPECT_FALSE(instances_.ping(InstanceId{0}, kConnection)) << "the oldest may be told twice";
}

TEST_F(InstancesTest, WhoWasToldMayComeAndGoWithoutPushingOthersOut) {
  for (int round = 0; round < 20; ++round) {
    EXPECT_FALSE(instances_.ping(kWorker, kConnection)) << "round " << round;
    instances_.add(kWorker, registration(), kConnection);
    instances_.remove(kWorker);
  }
  EXPECT_FALSE(instances_.ping(kOtherWorker, kConnection));
  EXPECT_FALSE(instances_.ping(kWorker, kConnection));
  EXPECT_TRUE(instances_.ping(kWorker, kConnection));
  EXPECT_TRUE(instances_.ping(kOtherWorker, kConnection));
}

// Layouts and refused instances.

TEST_F(InstancesTest, ALookupHasToSatisfyEveryLayoutOfTheModel) {
  instances_.add(InstanceId{1}, registration(2), kConnection);
  instances_.add(InstanceId{2}, registration(3), kConnection);
  instances_.add(InstanceId{3}, registration(3), kConnection);
  instances_.add(InstanceId{4}, registration(4, "another"), kConnection);
  EXPECT_EQ(layouts(), 2U);
  instances_.remove(InstanceId{2});
  EXPECT_EQ(layouts(), 2U);
  instances_.remove(InstanceId{3});
  ASSERT_EQ(layouts(), 1U);
  EXPECT_EQ(instances_.layouts_of("model", 1).layouts.at(0), registration(2).groups);
  EXPECT_TRUE(instances_.layouts_of("model", 2).layouts.empty());
  EXPECT_FALSE(instances_.layouts_of("model", 1).refused);
}

TEST_F(InstancesTest, ARefusedInstanceCountsForItsModelUntilItUnregisters) {
  instances_.add(kWorker, registration(), kConnection);
  instances_.add_refused(kOtherWorker, "model", 1, kConnection);
  EXPECT_TRUE(instances_.layouts_of("model", 1).refused);
  EXPECT_EQ(instances_.refused_ids(), std::vector<InstanceId>{kOtherWorker});
  EXPECT_EQ(instances_.find(kOtherWorker, kConnection), nullptr);
  EXPECT_TRUE(instances_.remove_refused(kOtherWorker));
  EXPECT_FALSE(instances_.remove_refused(kOtherWorker));
  EXPECT_FALSE(instances_.layouts_of("model", 1).refused);
  EXPECT_EQ(layouts(), 1U);
}

TEST_F(InstancesTest, ARefusedInstanceMovesWithItsModel) {
  instances_.add_refused(kWorker, "model", 1, kConnection);
  instances_.add_refused(kWorker, "another", 1, kConnection);
  EXPECT_FALSE(instances_.layouts_of("model", 1).refused);
  EXPECT_TRUE(instances_.layouts_of("another", 1).refused);
}

TEST_F(InstancesTest, ARefusedInstanceIsReapedLikeOthers) {
  instances_.add_refused(kWorker, "model", 1, kConnection);
  EXPECT_TRUE(instances_.ping(kWorker, kConnection));
  pass(seconds(120));
  EXPECT_TRUE(instances_.layouts_of("model", 1).refused);
  pass(milliseconds(1));
  EXPECT_FALSE(instances_.layouts_of("model", 1).refused);
  instances_.add_refused(kWorker, "model", 1, kConnection);
  instances_.connection_closed(kConnection);
  pass(seconds(31));
  EXPECT_TRUE(instances_.refused_ids().empty());
}

TEST_F(InstancesTest, ThatARefusedInstancePingedIsRememberedToo) {
  instances_.add_refused(kWorker, "model", 1, kConnection);
  instances_.ping(kWorker, kConnection);
  instances_.add_refused(kWorker, "model", 1, kConnection);
  pass(seconds(121));
  EXPECT_FALSE(instances_.layouts_of("model", 1).refused);
}

TEST_F(InstancesTest, ARefusedInstanceThatIsTurnedAwayLeavesTheCachePath) {
  instances_.add_refused(kWorker, "model", 1, kConnection);
  EXPECT_TRUE(instances_.ping(kWorker, kConnection));
  instances_.turn_away(kWorker);
  EXPECT_FALSE(instances_.ping(kWorker, kConnection));
  EXPECT_FALSE(instances_.ping(kWorker, kConnection)) << "for as long as it asks";
}

TEST_F(InstancesTest, OneThatRegistersInAServedWayIsNoLongerRefused) {
  instances_.add_refused(kWorker, "model", 1, kConnection);
  instances_.add(kWorker, registration(), kConnection);
  EXPECT_FALSE(instances_.layouts_of("model", 1).refused);
  EXPECT_TRUE(instances_.refused_ids().empty());
}

// Clients before 0.5.0 do not say who pings.

TEST_F(InstancesTest, APingWithoutANameIsASignOfLifeOfAllOnItsConnection) {
  instances_.add(kWorker, registration(), kConnection);
  instances_.add(kOtherWorker, registration(), kNewConnection);
  EXPECT_TRUE(instances_.ping_connection(kConnection, false));
  EXPECT_TRUE(instances_.ping_connection(kNewConnection, false));
  pass(seconds(100));
  EXPECT_TRUE(instances_.ping_connection(kConnection, false));
  pass(seconds(100));
  EXPECT_NE(instances_.find(kWorker, kConnection), nullptr);
  EXPECT_EQ(instances_.find(kOtherWorker, kNewConnection), nullptr);
}

TEST_F(InstancesTest, AReconnectedClientThatRegisteredNobodyIsToldSoOnce) {
  EXPECT_FALSE(instances_.ping_connection(kConnection, true));
  EXPECT_TRUE(instances_.ping_connection(kConnection, true));
  EXPECT_TRUE(instances_.ping_connection(kNewConnection, false)) << "it has just begun";
  instances_.connection_closed(kConnection);
  instances_.add(kWorker, registration(), ConnectionId{12});
  EXPECT_TRUE(instances_.ping_connection(ConnectionId{12}, true));
}

TEST_F(InstancesTest, OneThatIsTurnedAwayIsToldSoWithoutANameToo) {
  instances_.add_refused(kWorker, "model", 1, kConnection);
  EXPECT_TRUE(instances_.ping_connection(kConnection, false));
  instances_.turn_away(kWorker);
  EXPECT_FALSE(instances_.ping_connection(kConnection, false));
  EXPECT_FALSE(instances_.ping_connection(kConnection, false));
}

}  // namespace
}  // namespace larder::sessions
