// Goal: memory that a client may still touch is not used again before its time, and not kept beyond
// it. Method: held slots and pins, a clock by hand, and the pool's usage.
#include "sessions/quarantine.h"

#include <gtest/gtest.h>

#include "sessions/test_sessions.h"

namespace larder::sessions {
namespace {

constexpr InstanceId kWorker{1};
constexpr InstanceId kOtherWorker{2};
constexpr ConnectionId kConnection{10};
constexpr ConnectionId kOtherConnection{11};

class QuarantineTest : public testing::Test {
 protected:
  Quarantine::Held slots(std::uint32_t prompt, std::uint32_t chunks) {
    Result<cache::WriteLease> lease = cache_.reserve(space_, cache::test_prompt(prompt, chunks));
    return {lease->abandon(), {}};
  }

  cache::TestCache cache_;
  const cache::KeySpace space_ = cache::test_space();
  ManualClock clock_;
  Quarantine quarantine_{clock_};
};

TEST_F(QuarantineTest, KeepsMemoryUntilItsTimeIsOver) {
  quarantine_.add(slots(1, 2), kWorker, kConnection, seconds(10));
  clock_.advance(seconds(10) - milliseconds(1));
  quarantine_.sweep();
  EXPECT_EQ(cache_.used_objects(), 2U);
  EXPECT_EQ(quarantine_.slot_count(), 2U);
  clock_.advance(milliseconds(1));
  quarantine_.sweep();
  EXPECT_EQ(cache_.used_objects(), 0U);
  EXPECT_EQ(quarantine_.slot_count(), 0U);
}

TEST_F(QuarantineTest, KeepsPinsToo) {
  cache_.store(space_, cache::test_prompt(1, 3));
  Quarantine::Held held;
  held.lease = *cache_->acquire(space_, {cache::test_prompt(1, 3), 0, keys::pack_kv_rank(1, 0)});
  quarantine_.add(std::move(held), kWorker, kConnection, seconds(10));
  EXPECT_EQ(quarantine_.slot_count(), 3U);
  EXPECT_EQ(cache_->stats().pinned_objects, 3U);
  clock_.advance(seconds(10));
  quarantine_.sweep();
  cache_.expect_at_rest();
}

TEST_F(QuarantineTest, NothingHeldIsNotKept) {
  quarantine_.add({}, kWorker, kConnection, seconds(10));
  EXPECT_EQ(quarantine_.slot_count(), 0U);
}

TEST_F(QuarantineTest, FreesAtOnceWhatItsConnectionHeld) {
  quarantine_.add(slots(1, 1), kWorker, kConnection, minutes(10));
  quarantine_.add(slots(2, 1), kOtherWorker, kOtherConnection, minutes(10));
  quarantine_.connection_closed(kConnection);
  EXPECT_EQ(cache_.used_objects(), 1U);
  quarantine_.connection_closed(kOtherConnection);
  EXPECT_EQ(cache_.used_objects(), 0U);
}

TEST_F(QuarantineTest, ShortensTheTimeOfOneInstanceOnly) {
  quarantine_.add(slots(1, 1), kWorker, kConnection, minutes(10));
  quarantine_.add(slots(2, 1), kOtherWorker, kConnection, minutes(10));
  quarantine_.shorten(kWorker, seconds(1));
  clock_.advance(seconds(1));
  quarantine_.sweep();
  EXPECT_EQ(cache_.used_objects(), 1U);
}

TEST_F(QuarantineTest, NeverLengthensATime) {
  quarantine_.add(slots(1, 1), kWorker, kConnection, seconds(1));
  quarantine_.shorten(kWorker, minutes(10));
  clock_.advance(seconds(1));
  quarantine_.sweep();
  EXPECT_EQ(cache_.used_objects(), 0U);
}

}  // namespace
}  // namespace larder::sessions
