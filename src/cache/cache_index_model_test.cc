// Goal: under any interleaving the index shows exactly what was committed and not evicted, evicts
// exactly what it should, and nobody's bytes ever change under a lease. Method: random operations
// on the index and on a naive model; after each one all answers, all counts and all bytes under
// every lease must agree. LARDER_TEST_SEED repeats a run, LARDER_TEST_SCALE makes it
// longer.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <random>

#include "cache/test_cache.h"
#include "cache/test_model.h"

namespace larder::cache {
namespace {

constexpr std::size_t kSlots = 56;
constexpr std::uint32_t kChunksMax = 7;
constexpr std::uint32_t kSharedChunks = 3;
constexpr std::size_t kLeasesMax = 6;

struct HeldRead {
  ReadLease lease;
  std::vector<Model::Object> objects;
};

struct HeldWrite {
  WriteLease lease;
  std::vector<ModelName> names;
  std::vector<Model::Object> objects;
  ModelPrompt prompt;
  std::size_t space;
  std::size_t rank;
  std::uint32_t end;
  std::uint64_t clears;
};

struct Abandoned {
  std::vector<pool::Slot> slots;
  std::vector<Model::Object> patterns;
};

class ModelRun {
 public:
  explicit ModelRun(std::uint64_t seed) : random_(seed) {}

  void step() {
    switch (below(24)) {
      case 0:
      case 1:
      case 2:
        look_up();
        break;
      case 3:
      case 4:
        acquire();
        break;
      case 5:
      case 6:
      case 7:
      case 8:
        reserve();
        break;
      case 9:
      case 10:
      case 11:
      case 12:
        commit();
        break;
      case 13:
        discard();
        break;
      case 14:
        abandon();
        break;
      case 15:
        share();
        break;
      case 16:
        move_pin();
        break;
      case 17:
        touch();
        break;
      case 18:
        evict_ahead();
        break;
      case 19:
        if (one_in(30)) {
          cache_->clear();
          model_.clear();
        }
        break;
      case 20:
        free_abandoned();
        break;
      default:
        release();
    }
  }

  void check() {
    const CacheStats stats = cache_->stats();
    ASSERT_EQ(stats.resident_objects, model_.resident_count());
    ASSERT_EQ(stats.pinned_objects, model_.pinned_count());
    ASSERT_EQ(stats.reserved_objects, model_.reserved);
    ASSERT_EQ(stats.evictable_bytes, model_.evictable_count() * kTestAlign);
    ASSERT_EQ(cache_.used_objects(), model_.used());
    for (const HeldRead& held : reads_) {
      expect_bytes(held);
    }
    for (const HeldWrite& held : writes_) {
      for (std::size_t i = 0; i < held.objects.size(); ++i) {
        ASSERT_TRUE(has_pattern(held.lease.slot(i).bytes(), held.objects[i]));
      }
    }
    for (const Abandoned& held : abandoned_) {
      for (std::size_t i = 0; i < held.slots.size(); ++i) {
        ASSERT_TRUE(has_pattern(held.slots[i].bytes(), held.patterns[i]));
      }
    }
  }

  void end() {
    reads_.clear();
    writes_.clear();
    abandoned_.clear();
    cache_.expect_at_rest();
    EXPECT_EQ(cache_->stats().resident_objects * kTestAlign, cache_.pool().usage().used_bytes);
    EXPECT_GT(model_.evictions, 100U) << "the run was not under pressure";
    EXPECT_GT(hits_, 50U) << "too little was found for the run to mean anything";
    cache_->clear();
    EXPECT_EQ(cache_.used_objects(), 0U);
  }

 private:
  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(random_() % bound); }

  bool one_in(std::size_t times) { return below(times) == 0; }

  std::uint32_t a_length() { return static_cast<std::uint32_t>(1 + below(kChunksMax)); }

  ModelPrompt a_prompt() {
    return {static_cast<std::uint32_t>(below(2)),
            static_cast<std::uint32_t>(1 + below(2)),
            kSharedChunks};
  }

  static std::vector<keys::ChunkHash> hashes_of(const ModelPrompt& prompt, std::uint32_t end) {
    std::vector<keys::ChunkHash> hashes;
    for (std::uint32_t chunk = 0; chunk < end; ++chunk) {
      const ModelName name = prompt.name(0, 0, chunk);
      hashes.push_back(test_hash(name.family * 10 + name.branch, chunk));
    }
    return hashes;
  }

  static void expect_bytes(const HeldRead& held) {
    for (std::size_t i = 0; i < held.objects.size(); ++i) {
      ASSERT_EQ(held.lease.bytes(i).size(), kTestObjectBytes);
      ASSERT_TRUE(has_pattern(held.lease.bytes(i), held.objects[i])) << "position " << i;
    }
  }

  void keep(ReadLease lease, std::vector<Model::Object> objects) {
    for (const Model::Object object : objects) {
      model_.pin(object);
    }
    ASSERT_EQ(lease.size(), objects.size());
    reads_.push_back({std::move(lease), std::move(objects)});
    expect_bytes(reads_.back());
    if (reads_.size() > kLeasesMax) {
      release();
    }
  }

  void look_up() {
    const ModelPrompt prompt = a_prompt();
    const std::uint32_t length = a_length();
    Asked asked;
    const std::size_t first_space = below(2);
    const std::size_t space_count = one_in(3) ? 2 - first_space : 1;
    for (std::size_t i = 0; i < space_count; ++i) {
      const auto window = static_cast<std::uint32_t>(1 + below(3));
      const std::size_t space = first_space + i;
      asked.windows[space] =
          space == kSlidingSpace && one_in(2) ? std::optional(window) : std::nullopt;
    }
    asked.ranks = 1 + below(3);
    std::uint32_t expected = 0;
    for (std::uint32_t chunks = 1; chunks <= length; ++chunks) {
      expected = can_serve(prompt, asked, chunks) ? chunks : expected;
    }
    std::vector<Model::Object> objects;
    std::vector<NeededSpace> spaces;
    for (const auto& [space, window] : asked.windows) {
      spaces.push_back({spaces_[space], window, 0});
      for (std::uint32_t chunk = first_needed(window, expected); chunk < expected; ++chunk) {
        for (std::size_t rank = 0; rank < asked.ranks; ++rank) {
          objects.push_back(model_.object(prompt.name(space, rank, chunk)));
        }
      }
    }
    PrefixLookup found = cache_->acquire_prefix(
        spaces, hashes_of(prompt, length), std::span(ranks_).first(asked.ranks));
    ASSERT_EQ(found.chunks, expected);
    ASSERT_EQ(found.lease.size(), expected * asked.ranks * spaces.size());
    hits_ += found.chunks > 0 ? 1 : 0;
    touch_all(prompt, asked, expected);
    ReadLease held;
    for (std::size_t place = 0; place < found.lease.size(); ++place) {
      if (found.lease.holds(place)) {
        found.lease.move_to(place, held);
      }
    }
    keep(std::move(held), std::move(objects));
  }

  struct Asked {
    std::map<std::size_t, std::optional<std::uint32_t>> windows;  // by space
    std::size_t ranks = 0;
  };

  static std::uint32_t first_needed(std::optional<std::uint32_t> window, std::uint32_t chunks) {
    return window.has_value() && *window < chunks ? chunks - *window : 0;
  }

  bool can_serve(const ModelPrompt& prompt, const Asked& asked, std::uint32_t chunks) {
    for (const auto& [space, window] : asked.windows) {
      for (std::uint32_t chunk = first_needed(window, chunks); chunk < chunks; ++chunk) {
        for (std::size_t rank = 0; rank < asked.ranks; ++rank) {
          if (!model_.has(prompt.name(space, rank, chunk))) {
            return false;
          }
        }
      }
    }
    return true;
  }

  // Chunk by chunk from the last: all that a lookup needs of a chunk goes together.
  void touch_all(const ModelPrompt& prompt, const Asked& asked, std::uint32_t end) {
    for (std::uint32_t chunk = end; chunk > 0; --chunk) {
      for (const auto& [space, window] : asked.windows) {
        for (std::size_t rank = 0; rank < asked.ranks; ++rank) {
          if (chunk - 1 >= first_needed(window, end)) {
            model_.touch(prompt.name(space, rank, chunk - 1));
          }
        }
      }
    }
  }

  void acquire() {
    const ModelPrompt prompt = a_prompt();
    const std::uint32_t end = a_length();
    const auto first = static_cast<std::uint32_t>(below(end));
    const std::size_t space = below(2);
    const std::size_t rank = below(3);
    std::vector<Model::Object> objects;
    bool there = true;
    for (std::uint32_t chunk = first; chunk < end && there; ++chunk) {
      const ModelName name = prompt.name(space, rank, chunk);
      there = model_.has(name);
      if (there) {
        objects.push_back(model_.object(name));
      }
    }
    Result<ReadLease> lease =
        cache_->acquire(spaces_[space], {hashes_of(prompt, end), first, ranks_[rank]});
    ASSERT_EQ(lease.has_value(), there);
    if (there) {
      ++hits_;
      model_.touch_prefix(prompt, space, rank, end);
      keep(std::move(*lease), std::move(objects));
    }
  }

  void reserve() {
    if (writes_.size() >= kLeasesMax) {
      return;
    }
    const ModelPrompt prompt = a_prompt();
    const std::uint32_t end = a_length();
    const auto first = static_cast<std::uint32_t>(one_in(2) ? 0 : below(end));
    const std::size_t space = below(2);
    const std::size_t rank = below(3);
    const std::optional<std::size_t> skipped = one_in(3) ? std::optional(below(end)) : std::nullopt;
    std::set<ModelName> own;
    std::vector<std::uint32_t> missing;
    for (std::uint32_t chunk = 0; chunk < end; ++chunk) {
      if (model_.has(prompt.name(space, rank, chunk))) {
        own.insert(prompt.name(space, rank, chunk));
      } else if (chunk >= first && skipped != chunk) {
        missing.push_back(chunk);
      }
    }
    const std::vector<keys::ChunkHash> hashes = hashes_of(prompt, end);
    Result<WriteLease> lease = cache_->reserve(
        spaces_[space], {hashes, first, ranks_[rank]}, [&](const keys::ObjectId& id) {
          return skipped.has_value() && id.chunk_hash == hashes[*skipped];
        });
    std::size_t taken = 0;
    std::uint32_t kept = 0;  // chunks of the other ranks, up to one that none of them has
    bool has_ended = false;
    for (; taken < missing.size(); ++taken) {
      for (; kept <= missing[taken] && model_.is_full() && !has_ended; ++kept) {
        has_ended = true;
        for (std::size_t peer = 0; peer < ranks_.size(); ++peer) {
          const ModelName name = prompt.name(space, peer, kept);
          if (peer != rank && model_.has(name)) {
            own.insert(name);
            has_ended = false;
          }
        }
      }
      if (!model_.reserve(own)) {
        break;
      }
    }
    if (taken == 0 && !missing.empty()) {
      ASSERT_FALSE(lease.has_value());
      ASSERT_EQ(lease.error().code, Code::kNoSpace);
      return;
    }
    ASSERT_TRUE(lease.has_value());
    ASSERT_EQ(lease->size(), taken);
    ASSERT_EQ(lease->missing(), missing.size());
    HeldWrite held{std::move(*lease), {}, {}, prompt, space, rank, end, model_.clears()};
    for (std::size_t i = 0; i < taken; ++i) {
      ASSERT_EQ(held.lease.chunk(i), missing[i]);
      held.names.push_back(prompt.name(space, rank, missing[i]));
      held.objects.push_back(++last_object_);
      write_pattern(held.lease.slot(i).bytes(), last_object_);
    }
    writes_.push_back(std::move(held));
  }

  HeldWrite take_write() {
    const std::size_t at = below(writes_.size());
    HeldWrite held = std::move(writes_[at]);
    writes_.erase(writes_.begin() + static_cast<std::ptrdiff_t>(at));
    model_.reserved -= held.names.size();
    return held;
  }

  void commit() {
    if (writes_.empty()) {
      return;
    }
    HeldWrite held = take_write();
    const bool expected = held.clears == model_.clears();
    ASSERT_EQ(held.lease.commit(), expected);
    if (!expected) {
      return;
    }
    for (std::size_t i = 0; i < held.names.size(); ++i) {
      if (!model_.has(held.names[i])) {
        const std::uint32_t chunk = held.names[i].chunk;
        model_.publish(held.names[i],
                       held.objects[i],
                       chunk == 0
                           ? std::nullopt
                           : std::optional(held.prompt.name(held.space, held.rank, chunk - 1)));
      }
    }
    if (!held.names.empty()) {
      model_.touch_prefix(held.prompt, held.space, held.rank, held.end);
    }
  }

  void discard() {
    if (!writes_.empty()) {
      const HeldWrite dropped = take_write();
    }
  }

  void abandon() {
    if (!writes_.empty()) {
      HeldWrite held = take_write();
      model_.abandoned += held.names.size();
      abandoned_.push_back({held.lease.abandon(), held.objects});
    }
  }

  void free_abandoned() {
    if (!abandoned_.empty()) {
      model_.abandoned -= abandoned_.front().slots.size();
      abandoned_.erase(abandoned_.begin());
    }
  }

  void share() {
    if (reads_.empty()) {
      return;
    }
    const HeldRead& from = reads_[below(reads_.size())];
    std::vector<std::size_t> positions;
    std::vector<Model::Object> objects;
    for (std::size_t i = 0; i < from.objects.size(); ++i) {
      if (one_in(2)) {
        positions.push_back(i);
        objects.push_back(from.objects[i]);
      }
    }
    keep(cache_->share(from.lease, positions), std::move(objects));
  }

  // One pin out of a lease into a new one; the rest is joined into a third.
  void move_pin() {
    if (reads_.empty() || reads_.front().objects.empty()) {
      return;
    }
    HeldRead from = std::move(reads_.front());
    reads_.erase(reads_.begin());
    HeldRead one;
    HeldRead rest;
    const std::size_t chosen = below(from.objects.size());
    for (std::size_t i = 0; i < from.objects.size(); ++i) {
      HeldRead& to = i == chosen ? one : rest;
      from.lease.move_to(i, to.lease);
      to.objects.push_back(from.objects[i]);
    }
    if (!reads_.empty()) {
      rest.lease.absorb(std::move(reads_.front().lease));
      rest.objects.insert(
          rest.objects.end(), reads_.front().objects.begin(), reads_.front().objects.end());
      reads_.erase(reads_.begin());
    }
    reads_.push_back(std::move(one));
    reads_.push_back(std::move(rest));
  }

  void touch() {
    const ModelPrompt prompt = a_prompt();
    const std::uint32_t end = a_length();
    const std::size_t rank_count = 1 + below(3);
    cache_->touch(needed(spaces_), hashes_of(prompt, end), std::span(ranks_).first(rank_count));
    touch_all(prompt, {{{0, std::nullopt}, {1, std::nullopt}}, rank_count}, end);
  }

  void evict_ahead() {
    const std::size_t used_max = kSlots - below(8);
    const std::size_t objects_max = 1 + below(4);
    const std::size_t expected = model_.evict_down_to(used_max, objects_max);
    ASSERT_EQ(cache_->evict_down_to(used_max * kTestAlign, objects_max), expected);
  }

  void release() {
    if (reads_.empty()) {
      return;
    }
    const std::size_t at = below(reads_.size());
    for (const Model::Object object : reads_[at].objects) {
      model_.unpin(object);
    }
    reads_.erase(reads_.begin() + static_cast<std::ptrdiff_t>(at));
  }

  std::mt19937_64 random_;
  TestCache cache_{kSlots};
  Model model_{kSlots};
  const std::vector<KeySpace> spaces_ = {test_space(), other_layout(test_space())};
  const std::vector<std::uint32_t> ranks_ = test_ranks(3);
  std::vector<HeldRead> reads_;
  std::vector<HeldWrite> writes_;
  std::vector<Abandoned> abandoned_;
  Model::Object last_object_ = 0;
  std::size_t hits_ = 0;
};

TEST(CacheIndexModel, AgreesWithAListOfObjectsInOrderOfUse) {
  const std::uint64_t seed = test_seed();
  for (std::uint64_t run = 0; run < 8; ++run) {
    ModelRun model_run(seed + run);
    for (std::uint64_t step = 0; step < test_steps(20'000); ++step) {
      SCOPED_TRACE(testing::Message() << "run " << run << ", step " << step);
      model_run.step();
      ASSERT_NO_FATAL_FAILURE(model_run.check());
      ASSERT_FALSE(testing::Test::HasFailure());
    }
    model_run.end();
  }
}

// Objects of several sizes fragment the pool, so what fits cannot be foretold; what was promised
// must hold all the same.
class MixedSizes {
 public:
  explicit MixedSizes(std::uint64_t seed) : random_(seed) {
    for (const std::int64_t bytes : {200, 700, 1500, 5000}) {
      KeySpace space = test_space();
      space.layout.shape = {bytes};
      spaces_.push_back(space);
    }
  }

  void step() {
    const std::size_t space = random_() % spaces_.size();
    const auto prompt = static_cast<std::uint32_t>(random_() % 5);
    const auto chunks = static_cast<std::uint32_t>(1 + random_() % 6);
    if (random_() % 3 == 0 && !held_.empty()) {
      held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(random_() % held_.size()));
    }
    if (random_() % 2 == 0) {
      store(space, prompt, chunks);
    } else {
      read(space, prompt, chunks);
    }
    for (const Held& held : held_) {
      for (std::size_t i = 0; i < held.lease.size(); ++i) {
        ASSERT_TRUE(has_pattern(held.lease.bytes(i), held.pattern));
      }
    }
  }

  void end() {
    held_.clear();
    cache_.expect_at_rest();
    KeySpace all = test_space();
    all.layout.shape = {std::int64_t{kSlots * kTestAlign}};
    EXPECT_EQ(cache_.store(all, test_prompt(9, 1)), 1U)
        << "one object of the pool's size takes everybody's room";
    EXPECT_EQ(cache_->stats().resident_objects, 1U);
    EXPECT_GT(hits_, 100U);
  }

 private:
  struct Held {
    ReadLease lease;
    std::uint64_t pattern;
  };

  void store(std::size_t space, std::uint32_t prompt, std::uint32_t chunks) {
    const CacheStats before = cache_->stats();
    Result<WriteLease> lease = cache_.reserve(spaces_[space], test_prompt(prompt, chunks));
    if (!lease) {
      ASSERT_EQ(lease.error().code, Code::kNoSpace);
      ASSERT_TRUE(before.pinned_objects > 0 || holds_any(space, prompt, chunks))
          << "with nothing held, and nothing of the prompt's own to keep, one object always finds "
             "room";
      return;
    }
    for (std::size_t i = 0; i < lease->size(); ++i) {
      ASSERT_TRUE(i == 0 || lease->chunk(i) > lease->chunk(i - 1));
      write_pattern(lease->slot(i).bytes(), space * 100 + prompt);
    }
    ASSERT_TRUE(lease->commit());
    ASSERT_LE(cache_.pool().usage().used_bytes, cache_.pool().usage().capacity_bytes);
  }

  bool holds_any(std::size_t space, std::uint32_t prompt, std::uint32_t chunks) {
    const auto hashes = test_prompt(prompt, chunks);
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
      if (cache_.has(spaces_[space], hashes, chunk)) {
        return true;
      }
    }
    return false;
  }

  void read(std::size_t space, std::uint32_t prompt, std::uint32_t chunks) {
    PrefixLookup found =
        cache_->acquire_prefix(needed({spaces_[space]}), test_prompt(prompt, chunks), ranks_);
    hits_ += found.chunks > 0 ? 1 : 0;
    if (held_.size() < 5) {
      held_.push_back({std::move(found.lease), space * 100 + prompt});
    }
  }

  std::mt19937_64 random_;
  TestCache cache_{kSlots};
  std::vector<KeySpace> spaces_;
  const std::vector<std::uint32_t> ranks_ = test_ranks(1);
  std::vector<Held> held_;
  std::size_t hits_ = 0;
};

TEST(CacheIndexModel, KeepsItsPromisesWithObjectsOfManySizes) {
  const std::uint64_t seed = test_seed();
  for (std::uint64_t run = 0; run < 4; ++run) {
    MixedSizes mixed(seed + run);
    for (std::uint64_t step = 0; step < test_steps(20'000); ++step) {
      SCOPED_TRACE(testing::Message() << "run " << run << ", step " << step);
      ASSERT_NO_FATAL_FAILURE(mixed.step());
    }
    mixed.end();
  }
}

}  // namespace
}  // namespace larder::cache
