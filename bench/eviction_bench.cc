// What making room costs: stores of one to six chunks into a full pool, a million chunks in all,
// with objects of one size and of many. Counters: how full the pool is after a store (mean and
// least) and before one that evicts, and how much went at most for one stored byte.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "cache/cache_index.h"
#include "cache/eviction_policy.h"
#include "metrics/metrics.h"
#include "pool/pool.h"

namespace larder::cache {
namespace {

constexpr std::size_t kPage = 4096;

std::unique_ptr<pool::Pool> bookkeeping_only(std::size_t bytes) {
  pool::PoolConfig config;
  config.bytes = bytes;
  config.private_memory = true;
  return pool::Pool::create(config).value();
}

// Layouts of as many sizes, up to `pages_max`.
std::vector<KeySpace> spaces(std::size_t sizes, std::size_t pages_max, std::mt19937_64& random) {
  std::vector<KeySpace> spaces;
  for (std::size_t i = 0; i < sizes; ++i) {
    const std::size_t pages = sizes == 1 ? pages_max / 2 : 1 + random() % pages_max;
    spaces.push_back(
        {"model",
         "",
         tensors::Layout{tensors::Dtype::kUint8, {static_cast<std::int64_t>(pages * kPage)}}});
  }
  return spaces;
}

keys::ChunkHash hash_of(std::uint64_t number) {
  const std::uint64_t mixed = number * 0x9e3779b97f4a7c15ULL;
  keys::ChunkHash hash;
  std::memcpy(hash.bytes.data(), &mixed, sizeof(mixed));
  return hash;
}

void store_into_a_full_pool(benchmark::State& state) {
  constexpr std::size_t kPromptsKept = 8;  // pinned, as by requests under way
  std::mt19937_64 random(1);
  const auto pool_bytes = static_cast<std::size_t>(state.range(2)) << 30;
  const auto whole = static_cast<double>(pool_bytes);
  const auto pool = bookkeeping_only(pool_bytes);
  metrics::Registry metrics;
  CacheIndex index(*pool, make_eviction_policy("LRU"), metrics);
  const auto layouts = spaces(
      static_cast<std::size_t>(state.range(0)), static_cast<std::size_t>(state.range(1)), random);
  const std::uint32_t rank = keys::pack_kv_rank(1, 0);
  std::vector<ReadLease> held(kPromptsKept);
  std::uint64_t chunks = 0;
  double sum_full = 0;
  double sum_needed = 0;
  std::size_t needed = 0;
  double least_full = 1;
  double most_gone = 0;
  const auto store = [&] {
    const KeySpace& space = layouts[random() % layouts.size()];
    std::vector<keys::ChunkHash> prompt(1 + random() % 6);
    for (keys::ChunkHash& hash : prompt) {
      hash = hash_of(++chunks);
    }
    auto lease = index.reserve(space, {prompt, 0, rank}, [](const auto&) { return false; });
    if (lease) {
      static_cast<void>(lease->commit());
    }
    if (random() % 4 == 0) {
      const NeededSpace whole_prompt{space, std::nullopt, 0};
      held[random() % held.size()] =
          index.acquire_prefix({&whole_prompt, 1}, prompt, {&rank, 1}).lease;
    }
    return prompt.size() * static_cast<std::size_t>(space.layout.shape.front());
  };
  while (pool->usage().used_bytes < pool_bytes / 100 * 97) {
    store();
  }
  for (int i = 0; i < 20000; ++i) {
    store();
  }
  for (auto _ : state) {
    const auto before = static_cast<double>(pool->usage().used_bytes);
    const auto stored = static_cast<double>(store());
    const auto after = static_cast<double>(pool->usage().used_bytes);
    sum_full += after / whole;
    if (after < before + stored) {
      sum_needed += before / whole;
      ++needed;
    }
    least_full = std::min(least_full, after / whole);
    most_gone = std::max(most_gone, (before + stored - after) / stored);
  }
  held.clear();
  state.counters["full"] = sum_full / static_cast<double>(state.iterations());
  state.counters["full_before"] =
      sum_needed / static_cast<double>(std::max<std::size_t>(needed, 1));
  state.counters["least_full"] = least_full;
  state.counters["gone_for_one"] = most_gone;
}

BENCHMARK(store_into_a_full_pool)
    ->ArgNames({"sizes", "pages_max", "pool_gib"})
    ->Args({1, 512, 1})
    ->Args({3, 512, 1})
    ->Args({32, 512, 1})
    ->Args({1000, 512, 1})
    ->Args({1000, 2048, 1})
    ->Args({3, 512, 16})
    ->Args({32, 512, 16})
    ->Iterations(300000);

}  // namespace
}  // namespace larder::cache
