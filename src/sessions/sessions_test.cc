// Goal: a LOOKUP's hit is a promise that is kept to every reader and to nobody else, and its locks
// always come back. Method: a small index and a clock by hand; the index's count of pinned objects
// tells what is still locked.
#include "sessions/sessions.h"

#include <gtest/gtest.h>

#include "sessions/test_sessions.h"

namespace larder::sessions {
namespace {

class SessionsTest : public testing::Test {
 protected:
  static constexpr SessionLimits kLimits{seconds(300), seconds(30), 8};

  SessionsTest() {
    for (const ConnectionId connection : {kScheduler, kOtherScheduler}) {
      sessions_.connection_opened(connection);
    }
  }

  ~SessionsTest() override {
    clock_.advance(seconds(300));
    sessions_.sweep();
    EXPECT_EQ(sessions_.count(), 0U);
    EXPECT_EQ(sessions_.unanswered_count(), 0U);
    cache_.expect_at_rest();
  }

  void store(std::uint32_t prompt, std::size_t chunks, std::uint32_t world_size = 1) {
    for (const std::uint32_t rank : cache::test_ranks(world_size)) {
      store(space_, prompt, chunks, rank);
    }
  }

  void store(const cache::KeySpace& space,
             std::uint32_t prompt,
             std::size_t chunks,
             std::uint32_t rank) {
    cache_.store(space, hashes_of(prompt, chunks), rank, prompt);
  }

  struct Asked {
    ConnectionId connection = kScheduler;
    std::string request_id = "a";
    std::uint32_t prompt = 1;
    std::size_t chunks = 4;
    std::uint32_t world_size = 1;
    std::uint32_t units = 1;
  };

  void look_up(const Asked& asked) { look_up(asked, cache::needed({space_})); }

  void look_up(const Asked& asked, const std::vector<cache::NeededSpace>& spaces) {
    Finding finding;
    finding.content = content(asked.world_size);
    finding.prompt = test_view(asked.prompt, asked.chunks);
    finding.spaces = spaces;
    finding.units = asked.units;
    finding.prefix =
        cache_->acquire_prefix(spaces, finding.prompt.hashes(), finding.content.kv_ranks);
    sessions_.begin(asked.connection, asked.request_id, std::move(finding));
  }

  static std::vector<cache::NeededSpace> of_different_engines(
      const std::vector<cache::KeySpace>& spaces) {
    std::vector<cache::NeededSpace> needed = cache::needed(spaces);
    for (std::size_t i = 0; i < needed.size(); ++i) {
      needed[i].reader = i;
    }
    return needed;
  }

  static SessionContent content(std::uint32_t world_size, const std::string& salt = "") {
    return {"model", salt, cache::test_ranks(world_size)};
  }

  std::int64_t query(ConnectionId connection = kScheduler, const std::string& request_id = "a") {
    return sessions_.answer(connection, request_id, true);
  }

  std::int64_t hits(ConnectionId connection = kScheduler, const std::string& request_id = "a") {
    return sessions_.answer(connection, request_id, false);
  }

  struct Wanted {
    std::uint32_t prompt = 1;
    keys::ChunkRange chunks{0, 4};
    std::uint32_t world_size = 1;
    std::uint32_t worker = 0;
  };

  std::optional<cache::ReadLease> take(const Wanted& wanted, const std::string& request_id = "a") {
    return take(wanted, space_, request_id);
  }

  std::optional<cache::ReadLease> take(const Wanted& wanted,
                                       const cache::KeySpace& space,
                                       const std::string& request_id = "a") {
    const auto hashes = hashes_of(wanted.prompt, wanted.chunks.end);
    return sessions_.take(
        request_id,
        {space, keys::pack_kv_rank(wanted.world_size, wanted.worker), hashes, wanted.chunks.begin});
  }

  void free(keys::ChunkRange chunks, std::uint32_t units = 1, std::uint32_t world_size = 1) {
    sessions_.free(kScheduler, "a", content(world_size), chunks, units);
  }

  std::uint64_t pinned() { return cache_->stats().pinned_objects; }

  cache::TestCache cache_;
  const cache::KeySpace space_ = cache::test_space();
  ManualClock clock_;
  Sessions sessions_{cache_.index(), kLimits, clock_};
};

// Answers (engine.md 9.2).

TEST_F(SessionsTest, AnUnknownRequestHasNoHit) {
  EXPECT_EQ(query(), 0);
  EXPECT_EQ(hits(), 0);
}

TEST_F(SessionsTest, TheAnswerIsGivenOnceAndHitsOnlyLooks) {
  store(1, 3);
  look_up({});
  EXPECT_EQ(sessions_.unanswered_count(), 1U);
  EXPECT_EQ(hits(), 3);
  EXPECT_EQ(hits(), 3);
  EXPECT_EQ(query(), 3);
  EXPECT_EQ(sessions_.unanswered_count(), 0U);
  EXPECT_EQ(query(), 0);
  EXPECT_EQ(hits(), 0);
}

TEST_F(SessionsTest, AnEmptyLookupAnswersNothing) {
  sessions_.begin_empty(kScheduler, "a");
  EXPECT_EQ(hits(), 0);
  EXPECT_EQ(query(), 0);
  EXPECT_EQ(sessions_.count(), 1U);
}

TEST_F(SessionsTest, ANewLookupReplacesTheOldAndItsLocks) {
  store(1, 4);
  store(2, 2);
  look_up({});
  look_up({.prompt = 2, .chunks = 2});
  EXPECT_EQ(pinned(), 2U);
  EXPECT_EQ(query(), 2);
  EXPECT_EQ(sessions_.count(), 1U);
  sessions_.begin_empty(kScheduler, "a");
  EXPECT_EQ(pinned(), 0U);
  EXPECT_EQ(query(), 0);
}

TEST_F(SessionsTest, APartialRankIsNeverLocked) {
  store(space_, 1, 4, keys::pack_kv_rank(2, 0));
  store(space_, 1, 3, keys::pack_kv_rank(2, 1));
  look_up({.world_size = 2});
  EXPECT_EQ(query(), 3);
  EXPECT_EQ(pinned(), 6U);
}

// Units.

TEST_F(SessionsTest, EachReaderOfAnObjectTakesOneUnit) {
  store(1, 4);
  look_up({.units = 3});  // world size 1, three tensor-parallel readers
  std::vector<cache::ReadLease> readers;
  for (int reader = 0; reader < 3; ++reader) {
    std::optional<cache::ReadLease> lease = take({});
    ASSERT_TRUE(lease.has_value());
    EXPECT_EQ(lease->size(), 4U);
    EXPECT_TRUE(cache::has_pattern(lease->bytes(3), 1));
    readers.push_back(std::move(*lease));
  }
  EXPECT_FALSE(take({}).has_value()) << "the fourth has no units";
  EXPECT_EQ(pinned(), 4U);
  readers.clear();
  EXPECT_EQ(pinned(), 0U) << "the ledger holds nothing more";
}

TEST_F(SessionsTest, ARankTakesItsOwnObjectsOnly) {
  store(1, 4, 2);
  look_up({.world_size = 2});
  EXPECT_TRUE(take({.world_size = 2, .worker = 1}).has_value());
  EXPECT_EQ(pinned(), 4U);
  EXPECT_FALSE(take({.world_size = 2, .worker = 1}).has_value());
  EXPECT_TRUE(take({.world_size = 2, .worker = 0}).has_value());
  EXPECT_EQ(pinned(), 0U);
}

TEST_F(SessionsTest, ATakeOfAPartLeavesTheRest) {
  store(1, 4);
  look_up({});
  const std::optional<cache::ReadLease> part = take({.chunks = {1, 3}});
  ASSERT_TRUE(part.has_value());
  EXPECT_EQ(part->size(), 2U);
  EXPECT_FALSE(take({.chunks = {0, 4}}).has_value()) << "not all of it is owed";
  EXPECT_TRUE(take({.chunks = {0, 1}}).has_value());
  EXPECT_TRUE(take({.chunks = {3, 4}}).has_value());
  EXPECT_EQ(pinned(), 2U);
}

TEST_F(SessionsTest, AFailedTakeTakesNothing) {
  store(1, 4);
  look_up({});
  EXPECT_FALSE(take({.chunks = {2, 6}}).has_value());
  EXPECT_FALSE(take({.prompt = 2}).has_value());
  EXPECT_FALSE(take({.chunks = {0, 0}}).has_value());
  EXPECT_EQ(pinned(), 4U);
  EXPECT_TRUE(take({}).has_value());
}

TEST_F(SessionsTest, FreeGivesUnitsBackAndNeverMoreThanAreOwed) {
  store(1, 4);
  look_up({.units = 3});
  free({0, 2}, 2);
  EXPECT_EQ(pinned(), 4U) << "one unit is left of each";
  free({0, 2}, 3);
  EXPECT_EQ(pinned(), 2U);
  free({0, 2}, 3);
  EXPECT_EQ(pinned(), 2U);
  for (int reader = 0; reader < 3; ++reader) {
    EXPECT_TRUE(take({.chunks = {2, 4}}).has_value()) << "the others are untouched";
  }
}

TEST_F(SessionsTest, FreeRoundsToWholeChunksOfTheRange) {
  store(1, 4);
  look_up({});
  // Tokens [1, 15) of 16 with chunks of 4: the chunks that begin at or after 1 and end by 15.
  free(keys::chunks_within(16, 1, 15, kTestChunkTokens));
  EXPECT_EQ(pinned(), 2U);
  EXPECT_TRUE(take({.chunks = {0, 1}}).has_value());
  EXPECT_TRUE(take({.chunks = {3, 4}}).has_value());
}

TEST_F(SessionsTest, FreeBeyondTheHitOrInvertedFreesWhatThereIs) {
  store(1, 2);
  look_up({});
  free({3, 9});
  free({2, 1});
  EXPECT_EQ(pinned(), 2U);
  free({1, 9});
  EXPECT_EQ(pinned(), 1U);
}

TEST_F(SessionsTest, FreeOfOtherContentOrOfAStrangerFreesNothing) {
  store(1, 2);
  look_up({});
  sessions_.free(kScheduler, "a", content(1, "alice"), {0, 2}, 1);
  sessions_.free(kScheduler, "a", content(2), {0, 2}, 1);
  sessions_.free(kScheduler, "b", content(1), {0, 2}, 1);
  sessions_.free(kOtherScheduler, "a", content(1), {0, 2}, 1);
  EXPECT_EQ(pinned(), 2U);
}

TEST_F(SessionsTest, FreeCoversAllRanksAndLayouts) {
  const std::vector<cache::KeySpace> spaces = {space_, cache::other_layout(space_)};
  for (const cache::KeySpace& space : spaces) {
    for (const std::uint32_t rank : cache::test_ranks(2)) {
      store(space, 1, 3, rank);
    }
  }
  look_up({.world_size = 2}, of_different_engines(spaces));
  EXPECT_EQ(pinned(), 12U);
  free({0, 2}, 1, 2);
  EXPECT_EQ(pinned(), 4U);
}

// Content and collisions.

TEST_F(SessionsTest, TakesOnlyFromALedgerOfTheSameContent) {
  store(1, 4);
  look_up({});
  EXPECT_FALSE(take({.prompt = 2}).has_value());
  EXPECT_FALSE(take({}, cache::test_space("other")).has_value());
  EXPECT_FALSE(take({}, cache::test_space("model", "alice")).has_value());
  EXPECT_FALSE(take({}, cache::other_layout(space_)).has_value());
  EXPECT_FALSE(take({.world_size = 2}).has_value());
  EXPECT_FALSE(take({}, "b").has_value());
  EXPECT_EQ(pinned(), 4U);
}

TEST_F(SessionsTest, APromptThatDivergesIsAnotherContent) {
  store(1, 4);
  look_up({});
  std::vector<std::uint32_t> tokens = test_tokens(1, 4);
  tokens.back() ^= 1;
  const auto hashes = hashes_of(tokens);
  EXPECT_FALSE(sessions_.take("a", {space_, keys::pack_kv_rank(1, 0), hashes, 0}).has_value());
  const std::span<const keys::ChunkHash> head = std::span(hashes).first(3);
  EXPECT_TRUE(sessions_.take("a", {space_, keys::pack_kv_rank(1, 0), head, 0}).has_value());
}

TEST_F(SessionsTest, TwoConnectionsWithOneRequestIdLeaveEachOtherAlone) {
  store(1, 4);
  store(2, 3);
  look_up({});
  look_up({.connection = kOtherScheduler, .prompt = 2, .chunks = 3});
  EXPECT_EQ(pinned(), 7U);
  EXPECT_EQ(query(kOtherScheduler), 3);
  EXPECT_EQ(query(kScheduler), 4);
  EXPECT_TRUE(take({.prompt = 2, .chunks = {0, 3}}).has_value())
      << "a worker finds the ledger by content";
  EXPECT_EQ(pinned(), 4U);
  look_up({.connection = kOtherScheduler, .prompt = 2, .chunks = 3});
  sessions_.end(kScheduler, "a");
  EXPECT_EQ(pinned(), 3U) << "one engine's end leaves the other's locks";
  EXPECT_EQ(query(kOtherScheduler), 3);
}

// Same prompt, same id: nobody can tell whose worker reads.
TEST_F(SessionsTest, EnginesWithOneRequestIdAndOnePromptKeepTheirOwnPromises) {
  store(1, 4);
  look_up({});
  look_up({.connection = kOtherScheduler});
  EXPECT_TRUE(take({.prompt = 1, .chunks = {0, 4}}).has_value());
  sessions_.end(kOtherScheduler, "a");
  EXPECT_EQ(pinned(), 4U) << "the first engine's promise still stands";
  EXPECT_TRUE(take({.prompt = 1, .chunks = {0, 4}}).has_value());
  EXPECT_EQ(pinned(), 0U) << "now there is no doubt whose it was";
}

TEST_F(SessionsTest, ALookupThatOutlivesItsConnectionLeavesNothing) {
  store(1, 4);
  sessions_.connection_closed(kScheduler);
  look_up({});
  EXPECT_EQ(pinned(), 4U);
  clock_.advance(seconds(30) + milliseconds(1));
  EXPECT_EQ(sessions_.sweep(), 1U);
  EXPECT_EQ(pinned(), 0U);
}

TEST_F(SessionsTest, AQuestionFindsTheOnlySessionOfTheIdOverAnyConnection) {
  store(1, 4);
  look_up({});
  EXPECT_EQ(hits(ConnectionId{9}), 4);
  look_up({.connection = kOtherScheduler});
  EXPECT_EQ(hits(ConnectionId{9}), 0) << "two sessions have the id, so neither is meant";
}

TEST_F(SessionsTest, AnEndOverAnotherLivingConnectionEndsNothing) {
  store(1, 4);
  look_up({});
  EXPECT_FALSE(sessions_.end(kOtherScheduler, "a").has_value());
  EXPECT_EQ(pinned(), 4U);
}

TEST_F(SessionsTest, AReconnectedSchedulerFindsItsOrphans) {
  store(1, 4);
  look_up({});
  sessions_.connection_closed(kScheduler);
  EXPECT_EQ(query(kOtherScheduler), 4);
  sessions_.free(kOtherScheduler, "a", content(1), {0, 1}, 1);
  EXPECT_EQ(pinned(), 3U);
  EXPECT_TRUE(sessions_.end(kOtherScheduler, "a").has_value());
  EXPECT_EQ(pinned(), 0U);
}

TEST_F(SessionsTest, AConnectionsOwnSessionComesBeforeAnOrphan) {
  store(1, 4);
  store(2, 3);
  look_up({});
  look_up({.connection = kOtherScheduler, .prompt = 2, .chunks = 3});
  sessions_.connection_closed(kScheduler);
  EXPECT_EQ(query(kOtherScheduler), 3);
  sessions_.end(kOtherScheduler, "a");
  EXPECT_EQ(pinned(), 4U);
}

TEST_F(SessionsTest, AnOrphanEndsAfterTheGrace) {
  store(1, 4);
  store(2, 2);
  look_up({});
  look_up({.connection = kOtherScheduler, .request_id = "b", .prompt = 2, .chunks = 2});
  sessions_.connection_closed(kScheduler);
  clock_.advance(seconds(30));
  EXPECT_EQ(sessions_.sweep(), 0U);
  clock_.advance(milliseconds(1));
  EXPECT_EQ(sessions_.sweep(), 1U);
  EXPECT_EQ(pinned(), 2U);
}

// Layouts.

TEST_F(SessionsTest, LayoutsOfOtherEnginesAreGivenUpAtTheFirstTake) {
  const std::vector<cache::KeySpace> spaces = {space_, cache::other_layout(space_)};
  for (const std::uint32_t rank : cache::test_ranks(2)) {
    store(spaces[0], 1, 4, rank);
    store(spaces[1], 1, 4, rank);
  }
  look_up({.world_size = 2, .units = 2}, of_different_engines(spaces));
  EXPECT_EQ(query(), 4);
  EXPECT_EQ(pinned(), 16U);
  EXPECT_TRUE(take({.world_size = 2}, spaces[1]).has_value());
  EXPECT_EQ(pinned(), 12U) << "rank 0 needs no promise in the first layout any more";
  EXPECT_FALSE(take({.world_size = 2}, spaces[0]).has_value());
  EXPECT_TRUE(take({.world_size = 2}, spaces[1]).has_value());
  EXPECT_EQ(pinned(), 8U);
  EXPECT_TRUE(take({.world_size = 2, .worker = 1}, spaces[1]).has_value());
  EXPECT_EQ(pinned(), 4U);
}

// A model with sliding windows: the groups of one engine are read one after the other, and taking
// one leaves the promise of the other alone.
TEST_F(SessionsTest, TheGroupsOfOneEngineAreOwedEach) {
  cache::KeySpace sliding = space_;
  sliding.object_group = 1;
  store(space_, 1, 4, keys::pack_kv_rank(1, 0));
  store(sliding, 1, 4, keys::pack_kv_rank(1, 0));
  look_up({}, {{space_, std::nullopt, 0}, {sliding, 2, 0}});
  EXPECT_EQ(query(), 4);
  EXPECT_EQ(pinned(), 6U) << "four of the full group, two of the window";
  EXPECT_TRUE(take({}, space_).has_value());
  EXPECT_EQ(pinned(), 2U);
  EXPECT_FALSE(take({}, sliding).has_value()) << "chunks before the window were not promised";
  EXPECT_TRUE(take({.chunks = {2, 4}}, sliding).has_value());
  EXPECT_EQ(pinned(), 0U);
}

TEST_F(SessionsTest, FreeingAWindowsPrefixFreesWhatWasPinned) {
  cache::KeySpace sliding = space_;
  sliding.object_group = 1;
  store(space_, 1, 4, keys::pack_kv_rank(1, 0));
  store(sliding, 1, 4, keys::pack_kv_rank(1, 0));
  look_up({}, {{space_, std::nullopt, 0}, {sliding, 2, 0}});
  free({0, 3});
  EXPECT_EQ(pinned(), 2U);
  free({0, 4});
  EXPECT_EQ(pinned(), 0U);
}

// Ends.

TEST_F(SessionsTest, TheEndGivesBackWhatIsOwedAndTellsWhatWasUsed) {
  store(1, 4);
  look_up({.units = 2});
  const std::optional<cache::ReadLease> reading = take({.chunks = {0, 1}});
  const std::optional<Ended> ended = sessions_.end(kScheduler, "a");
  ASSERT_TRUE(ended.has_value());
  EXPECT_EQ(ended->prompt.chunk_count(), 4U);
  EXPECT_EQ(ended->content.model_name, "model");
  ASSERT_EQ(ended->spaces.size(), 1U);
  EXPECT_EQ(ended->spaces[0].space, space_);
  EXPECT_EQ(pinned(), 1U) << "a transfer that is under way keeps its pin";
  EXPECT_TRUE(cache::has_pattern(reading->bytes(0), 1));
  EXPECT_FALSE(sessions_.end(kScheduler, "a").has_value());
}

TEST_F(SessionsTest, LocksHaveATimeOfTheirOwnFromTheLookup) {
  store(1, 4);
  look_up({});
  clock_.advance(seconds(200));
  look_up({.request_id = "b"});
  clock_.advance(seconds(100) - milliseconds(1));
  EXPECT_EQ(sessions_.sweep(), 0U);
  clock_.advance(milliseconds(1));
  EXPECT_EQ(sessions_.sweep(), 1U);
  EXPECT_EQ(query(), 0);
  EXPECT_EQ(pinned(), 4U);
  EXPECT_EQ(query(kScheduler, "b"), 4);
}

TEST_F(SessionsTest, APromiseHoldsUnderPressure) {
  store(1, 4);
  look_up({});
  for (std::uint32_t prompt = 2; prompt < 60; ++prompt) {
    store(prompt, 4);
  }
  const std::optional<cache::ReadLease> lease = take({});
  ASSERT_TRUE(lease.has_value());
  EXPECT_TRUE(cache::has_pattern(lease->bytes(0), 1));
}

TEST_F(SessionsTest, BeyondTheBoundTheOldestEnds) {
  store(1, 1);
  for (int i = 0; i < 9; ++i) {
    look_up({.request_id = "r" + std::to_string(i), .chunks = 1});
  }
  EXPECT_EQ(sessions_.count(), 8U);
  EXPECT_EQ(sessions_.unanswered_count(), 8U);
  EXPECT_EQ(query(kScheduler, "r0"), 0);
  EXPECT_EQ(query(kScheduler, "r1"), 1);
}

TEST_F(SessionsTest, AfterAClearOpenAnswersAreZeroAndGivenPromisesHold) {
  store(1, 4);
  look_up({.request_id = "open"});
  look_up({.request_id = "given"});
  EXPECT_EQ(query(kScheduler, "given"), 4);
  cache_->clear();
  sessions_.forget_answers();
  EXPECT_EQ(query(kScheduler, "open"), 0);
  EXPECT_EQ(sessions_.unanswered_count(), 0U);
  const std::optional<cache::ReadLease> lease = take({}, "given");
  ASSERT_TRUE(lease.has_value());
  EXPECT_TRUE(cache::has_pattern(lease->bytes(3), 1));
}

}  // namespace
}  // namespace larder::sessions
