// test_cache.h - for the tests of this room and of those above: a small index with its pool,
// prompts whose chunks have made-up hashes, and bytes that tell whose they are.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/test_random.h"
#include "cache/cache_index.h"
#include "cache/eviction_policy.h"
#include "keys/object_key.h"
#include "metrics/metrics.h"
#include "pool/pool.h"

namespace larder::cache {

inline constexpr std::size_t kTestAlign = 256;
inline constexpr std::size_t kTestObjectBytes = 200;  // one slot of the alignment each

// Layouts of kTestObjectBytes each that differ only in what the bytes mean.
inline KeySpace test_space(std::string model = "model", std::string salt = "") {
  return {std::move(model),
          std::move(salt),
          tensors::Layout{tensors::Dtype::kUint8, {std::int64_t{kTestObjectBytes}}}};
}

inline KeySpace other_layout(KeySpace space) {
  space.layout = tensors::Layout{tensors::Dtype::kBfloat16, {std::int64_t{kTestObjectBytes / 2}}};
  return space;
}

// A rolling hash stands for the prompt and everything before it; here the prompt's number does.
inline keys::ChunkHash test_hash(std::uint32_t prompt, std::uint32_t chunk) {
  keys::ChunkHash hash;
  const std::uint64_t mixed = (std::uint64_t{prompt} << 32 | chunk) * 0x9e3779b97f4a7c15ULL;
  std::memcpy(hash.bytes.data(), &mixed, sizeof(mixed));
  std::memcpy(hash.bytes.data() + 8, &prompt, sizeof(prompt));
  std::memcpy(hash.bytes.data() + 12, &chunk, sizeof(chunk));
  return hash;
}

inline std::vector<keys::ChunkHash> test_prompt(std::uint32_t prompt, std::uint32_t chunks) {
  std::vector<keys::ChunkHash> hashes;
  for (std::uint32_t chunk = 0; chunk < chunks; ++chunk) {
    hashes.push_back(test_hash(prompt, chunk));
  }
  return hashes;
}

inline std::vector<std::uint32_t> test_ranks(std::uint32_t world_size) {
  std::vector<std::uint32_t> ranks;
  for (std::uint32_t worker = 0; worker < world_size; ++worker) {
    ranks.push_back(keys::pack_kv_rank(world_size, worker));
  }
  return ranks;
}

// As one engine needs them.
inline std::vector<NeededSpace> needed(const std::vector<KeySpace>& spaces) {
  std::vector<NeededSpace> all;
  all.reserve(spaces.size());
  for (const KeySpace& space : spaces) {
    all.push_back({space, std::nullopt, 0});
  }
  return all;
}

inline bool skip_none(const keys::ObjectId& /*id*/) {
  return false;
}

inline void write_pattern(std::span<std::byte> bytes, std::uint64_t pattern) {
  for (std::size_t at = 0; at + sizeof(pattern) <= bytes.size(); at += sizeof(pattern)) {
    std::memcpy(bytes.data() + at, &pattern, sizeof(pattern));
  }
}

inline bool has_pattern(std::span<const std::byte> bytes, std::uint64_t pattern) {
  for (std::size_t at = 0; at + sizeof(pattern) <= bytes.size(); at += sizeof(pattern)) {
    if (std::memcmp(bytes.data() + at, &pattern, sizeof(pattern)) != 0) {
      return false;
    }
  }
  return true;
}

// An index over a pool of `objects` slots of kTestAlign bytes.
class TestCache {
 public:
  explicit TestCache(std::size_t objects = 64,
                     std::string_view policy = "LRU",
                     Verification verification = Verification::kOff)
      : pool_(make_pool(objects)),
        index_(*pool_, make_eviction_policy(policy), metrics_, Admission::kAll, verification) {}

  pool::Pool& pool() { return *pool_; }

  metrics::Registry& metrics() { return metrics_; }

  CacheIndex& index() { return index_; }

  CacheIndex* operator->() { return &index_; }

  std::size_t used_objects() const { return pool_->usage().used_bytes / kTestAlign; }

  Result<WriteLease> reserve(const KeySpace& space,
                             std::span<const keys::ChunkHash> hashes,
                             std::size_t first_chunk = 0,
                             std::uint32_t kv_rank = keys::pack_kv_rank(1, 0)) {
    return index_.reserve(space, {hashes, first_chunk, kv_rank}, skip_none);
  }

  // Stores all of the prompt's chunks that fit, filled with `pattern`. Returns how many were new.
  std::size_t store(const KeySpace& space,
                    std::span<const keys::ChunkHash> hashes,
                    std::uint32_t kv_rank = keys::pack_kv_rank(1, 0),
                    std::uint64_t pattern = 1) {
    Result<WriteLease> lease = reserve(space, hashes, 0, kv_rank);
    if (!lease) {
      return 0;
    }
    for (std::size_t i = 0; i < lease->size(); ++i) {
      write_pattern(lease->slot(i).bytes(), pattern);
    }
    const std::size_t stored = lease->size();
    EXPECT_TRUE(lease->commit());
    return stored;
  }

  // Chunks of the prompt that a lookup counts. Gives its pins back at once, but is a use of them.
  std::size_t hit(const KeySpace& space,
                  std::span<const keys::ChunkHash> hashes,
                  const std::vector<std::uint32_t>& ranks = {keys::pack_kv_rank(1, 0)}) {
    return index_.acquire_prefix(needed({space}), hashes, ranks).chunks;
  }

  // Whether the chunk is there, also behind a hole. A use of the prompt up to it.
  bool has(const KeySpace& space,
           std::span<const keys::ChunkHash> hashes,
           std::size_t chunk,
           std::uint32_t kv_rank = keys::pack_kv_rank(1, 0)) {
    return index_.acquire(space, {hashes.first(chunk + 1), chunk, kv_rank}).has_value();
  }

  // Nobody holds anything: all counts agree and only resident objects use memory.
  void expect_at_rest() {
    const CacheStats stats = index_.stats();
    EXPECT_EQ(stats.pinned_objects, 0U);
    EXPECT_EQ(stats.reserved_objects, 0U);
    EXPECT_EQ(stats.evictable_bytes, pool_->usage().used_bytes);
    if (pool_->usage().used_bytes != 0) {
      EXPECT_GT(stats.resident_objects, 0U);
    }
  }

 private:
  static std::unique_ptr<pool::Pool> make_pool(std::size_t objects) {
    pool::PoolConfig config;
    config.bytes = objects * kTestAlign;
    config.align_bytes = kTestAlign;
    config.private_memory = true;
    auto pool = pool::Pool::create(config);
    LARDER_CHECK(pool.has_value());
    return std::move(*pool);
  }

  std::unique_ptr<pool::Pool> pool_;
  metrics::Registry metrics_;
  CacheIndex index_;
};

}  // namespace larder::cache
