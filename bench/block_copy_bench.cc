// STORE and RETRIEVE of 16 chunks of 2 MiB between an engine's segments and objects, beside a plain
// memcpy of the same bytes by the same threads.
//
// The engine: four layers of bfloat16, 16 tokens a block, 512 values a token for K and V each, so
// that a block is 16 KiB in one piece (token-major) or 64 pieces of 256 bytes (head-major). Its
// blocks are in random order, as a served engine's are.
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "devices/copy_crew.h"
#include "devices/host_memory.h"
#include "geometry/engine_cache.h"

namespace larder::devices {
namespace {

constexpr std::int64_t kLayers = 4;
constexpr std::int64_t kBlocks = 512;
constexpr std::int64_t kBlockTokens = 16;
constexpr std::int64_t kHeads = 4;
constexpr std::int64_t kHeadSize = 128;
constexpr std::size_t kLayerBytes = 2 * kBlocks * kBlockTokens * kHeads * kHeadSize * 2;
constexpr std::size_t kObjectBytes = std::size_t{2} << 20;
constexpr std::size_t kObjects = 16;

// Shared memory with all its pages there; its name goes at once unless the bench maps it.
class Segment {
 public:
  Segment(std::string name, std::size_t bytes) : name_(std::move(name)), bytes_(bytes) {
    const int file = ::shm_open(name_.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
    if (file < 0 || ::ftruncate(file, static_cast<off_t>(bytes)) != 0) {
      std::abort();
    }
    memory_ = static_cast<std::byte*>(
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    ::close(file);
    std::memset(memory_, 7, bytes);
  }

  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  ~Segment() {
    ::munmap(memory_, bytes_);
    ::shm_unlink(name_.c_str());
  }

  const std::string& name() const { return name_; }

  std::span<std::byte> bytes() const { return {memory_, bytes_}; }

 private:
  std::string name_;
  std::size_t bytes_;
  std::byte* memory_ = nullptr;
};

std::string name_of(std::size_t number) {
  return fmt::format("/lmcache_kv_{}_{}", ::getpid(), number);
}

class Engine {
 public:
  Engine(bool head_major, std::size_t helpers) : crew_(helpers) {
    geometry::EngineDescription engine;
    std::vector<TensorHandle> handles;
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      layers_.push_back(
          std::make_unique<Segment>(name_of(static_cast<std::size_t>(layer)), kLayerBytes));
      TensorHandle handle;
      handle.tensor.dtype = tensors::Dtype::kBfloat16;
      handle.tensor.shape =
          head_major ? std::vector{std::int64_t{2}, kBlocks, kHeads, kBlockTokens, kHeadSize}
                     : std::vector{std::int64_t{2}, kBlocks, kBlockTokens, kHeads, kHeadSize};
      std::int64_t stride = static_cast<std::int64_t>(kLayerBytes) / 2;
      for (const std::int64_t size : handle.tensor.shape) {
        handle.tensor.stride.push_back(stride /= size);
      }
      handle.memory = SharedSegmentHandle{layers_.back()->name(), kLayerBytes};
      engine.tensors.push_back(handle.tensor);
      handles.push_back(handle);
    }
    engine.hints.kv_layout = head_major ? "HND" : "NHD";
    engine.on_host = true;
    engine.is_since_055 = true;
    memory_ = *HostMemory::map(handles, *geometry::plan_of(engine, {256, true}), crew_);
  }

  void copy(Direction direction, std::span<std::byte> objects) {
    CopyJob job;
    job.direction = direction;
    job.block_ids = {ids_};
    for (std::size_t i = 0; i < kObjects; ++i) {
      job.objects.push_back({0, i, objects.subspan(i * kObjectBytes, kObjectBytes)});
    }
    job.done = [](bool copied) {
      if (!copied) {
        std::abort();
      }
    };
    memory_->start(std::move(job));
  }

 private:
  static std::vector<std::int64_t> random_ids() {
    std::vector<std::int64_t> ids(kBlocks);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937_64(1));
    ids.resize(kObjects * 256 / kBlockTokens);
    return ids;
  }

  CopyCrew crew_;
  std::vector<std::unique_ptr<Segment>> layers_;
  std::shared_ptr<EngineMemory> memory_;
  const std::vector<std::int64_t> ids_ = random_ids();
};

void count_bytes(benchmark::State& state) {
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) *
                          static_cast<std::int64_t>(kObjects * kObjectBytes));
}

// Arguments: helpers beside the calling thread.
void plain_memcpy(benchmark::State& state) {
  CopyCrew crew(static_cast<std::size_t>(state.range(0)));
  const Segment from(name_of(100), kObjects * kObjectBytes);
  const Segment to(name_of(101), kObjects * kObjectBytes);
  for (auto _ : state) {
    crew.run(kObjects, [&](std::size_t i) {
      std::memcpy(to.bytes().data() + i * kObjectBytes,
                  from.bytes().data() + i * kObjectBytes,
                  kObjectBytes);
    });
  }
  count_bytes(state);
}

void copy_blocks(benchmark::State& state, Direction direction, bool head_major) {
  Engine engine(head_major, static_cast<std::size_t>(state.range(0)));
  const Segment objects(name_of(102), kObjects * kObjectBytes);
  for (auto _ : state) {
    engine.copy(direction, objects.bytes());
  }
  count_bytes(state);
}

void store_token_major(benchmark::State& state) {
  copy_blocks(state, Direction::kStore, false);
}

void retrieve_token_major(benchmark::State& state) {
  copy_blocks(state, Direction::kRetrieve, false);
}

void store_head_major(benchmark::State& state) {
  copy_blocks(state, Direction::kStore, true);
}

void retrieve_head_major(benchmark::State& state) {
  copy_blocks(state, Direction::kRetrieve, true);
}

BENCHMARK(plain_memcpy)->Arg(0)->Arg(1)->UseRealTime();
BENCHMARK(store_token_major)->Arg(0)->Arg(1)->UseRealTime();
BENCHMARK(retrieve_token_major)->Arg(0)->Arg(1)->UseRealTime();
BENCHMARK(store_head_major)->Arg(0)->Arg(1)->UseRealTime();
BENCHMARK(retrieve_head_major)->Arg(0)->Arg(1)->UseRealTime();

}  // namespace
}  // namespace larder::devices
