// Cost of taking and dropping a slot while 100,000 slots of mixed sizes live, and of create() for a
// large pool.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "pool/pool.h"

namespace larder::pool {
namespace {

constexpr std::size_t kKibibyte = 1024;
constexpr std::size_t kLiveSlots = 100000;

// Private memory: nothing is touched, so only the bookkeeping is measured.
PoolConfig bookkeeping_only(std::size_t bytes) {
  PoolConfig config;
  config.bytes = bytes;
  config.private_memory = true;
  return config;
}

std::size_t mixed_size(std::mt19937_64& random) {
  return (4 + 4 * (random() % 24)) * kKibibyte;
}

std::vector<Slot> fragmented(Pool& pool, std::mt19937_64& random) {
  std::vector<Slot> slots;
  for (std::size_t i = 0; i < 2 * kLiveSlots; ++i) {
    slots.push_back(pool.take(mixed_size(random)).value());
  }
  for (std::size_t i = 0; i < kLiveSlots; ++i) {  // holes all over
    const std::size_t which = random() % slots.size();
    std::swap(slots[which], slots.back());
    slots.pop_back();
  }
  return slots;
}

void take_and_drop(benchmark::State& state) {
  const auto pool = Pool::create(bookkeeping_only(std::size_t{16} << 30)).value();
  std::mt19937_64 random(1);
  std::vector<Slot> slots = fragmented(*pool, random);
  for (auto _ : state) {
    slots[random() % slots.size()] = pool->take(mixed_size(random)).value();
  }
  state.counters["live"] = static_cast<double>(slots.size());
}

BENCHMARK(take_and_drop);

void refuse_when_full(benchmark::State& state) {
  const auto pool = Pool::create(bookkeeping_only(std::size_t{64} << 20)).value();
  const Slot all = pool->take(std::size_t{64} << 20).value();
  for (auto _ : state) {
    benchmark::DoNotOptimize(pool->take(4 * kKibibyte));
  }
}

BENCHMARK(refuse_when_full);

// A real segment of 2 GiB whose first 64 MiB are reserved; the destructor stops the growth.
void create_shared(benchmark::State& state) {
  PoolConfig config;
  config.bytes = std::size_t{2} << 30;
  for (auto _ : state) {
    auto pool = Pool::create(config);
    state.PauseTiming();
    if (!pool) {
      state.SkipWithError(pool.error().detail.c_str());
      break;
    }
    { const std::unique_ptr<Pool> dropped = std::move(*pool); }
    state.ResumeTiming();
  }
}

BENCHMARK(create_shared)->Unit(benchmark::kMillisecond)->Iterations(20);

// A slot that runs ahead of the growth: what its taker waits for.
void take_ahead_of_growth(benchmark::State& state) {
  PoolConfig config;
  config.bytes = std::size_t{2} << 30;
  config.initial_bytes = 0;
  for (auto _ : state) {
    state.PauseTiming();
    auto pool = Pool::create(config);
    if (!pool) {
      state.SkipWithError(pool.error().detail.c_str());
      break;
    }
    state.ResumeTiming();
    { const Slot slot = (*pool)->take(static_cast<std::size_t>(state.range(0)) << 20).value(); }
    state.PauseTiming();
    { const std::unique_ptr<Pool> dropped = std::move(*pool); }
    state.ResumeTiming();
  }
}

BENCHMARK(take_ahead_of_growth)->Unit(benchmark::kMillisecond)->Iterations(20)->Arg(2)->Arg(256);

}  // namespace
}  // namespace larder::pool
