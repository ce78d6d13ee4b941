// What --l1-verify costs: PREPARE_RETRIEVE, and PREPARE and COMMIT_STORE, of 16 objects of 2 MiB in
// shared memory through the real handlers, without verification, with a sample and with all of it.
// The objects are not in the processor's cache when they are verified: the pool holds 512 MiB, and
// requests take turns over all of it.
#include <benchmark/benchmark.h>

#include <array>
#include <string>
#include <vector>

#include "handlers/handlers.h"
#include "handlers/test_services.h"

namespace larder::handlers {
namespace {

constexpr std::uint32_t kChunks = 16;
constexpr std::uint32_t kPrompts = 15;
constexpr std::int64_t kHidden = 131072;  // 2 MiB an object
constexpr std::size_t kPoolBytes = std::size_t{512} << 20;
constexpr std::uint64_t kInstance = 1;
constexpr Caller kCaller{sessions::ConnectionId{1}};

protocol::Key key_of(std::uint32_t prompt) {
  protocol::Key key;
  key.model_name = "model";
  key.world_size = 1;
  key.worker_id = 0;
  for (std::uint32_t chunk = 0; chunk < kChunks; ++chunk) {
    key.token_ids.insert(key.token_ids.end(), kTestChunkTokens, prompt * kChunks + chunk);
  }
  key.end = static_cast<std::int64_t>(key.token_ids.size());
  key.request_id = std::to_string(prompt);
  return key;
}

class StoringServer {
 public:
  explicit StoringServer(benchmark::State& state)
      : services_(true, static_cast<cache::Verification>(state.range(0)), kPoolBytes) {
    log::set_level(log::Level::kError);
    protocol::RegisterEngineDrivenRequest request;
    request.instance_id = kInstance;
    request.model_name = "model";
    request.world_size = 1;
    request.block_size = kTestChunkTokens;
    request.num_layers = 1;
    request.hidden_dim_size = kHidden;
    request.dtype_name = "float16";
    if (!on_register_engine_driven(services_.services, kCaller, request)) {
      state.SkipWithError("not registered");
    }
  }

  bool store(const protocol::Key& key) {
    const auto prepared = on_prepare_store(services_.services, kCaller, {key, kInstance, false});
    if (!prepared || prepared->slots.size() != kChunks) {
      return false;
    }
    const auto committed = on_commit_store(services_.services, kCaller, {key, kInstance, {}});
    return committed && *committed;
  }

  Services& services() { return services_.services; }

 private:
  TestServices services_;
};

void retrieve(benchmark::State& state) {
  StoringServer server(state);
  std::vector<protocol::Key> keys;
  for (std::uint32_t prompt = 0; prompt < kPrompts; ++prompt) {
    keys.push_back(key_of(prompt));
    if (!server.store(keys.back())) {
      state.SkipWithError("not stored");
    }
  }
  std::size_t turn = 0;
  for (auto _ : state) {
    const protocol::TransferRequest request{keys[turn++ % kPrompts], kInstance};
    const auto prepared = on_prepare_retrieve(server.services(), kCaller, request);
    if (!prepared || !prepared->success) {
      state.SkipWithError("not found");
      break;
    }
    state.PauseTiming();
    benchmark::DoNotOptimize(on_commit_retrieve(server.services(), kCaller, request));
    state.ResumeTiming();
  }
}

void store(benchmark::State& state) {
  StoringServer server(state);
  std::uint32_t prompt = 0;
  for (auto _ : state) {
    state.PauseTiming();
    const protocol::Key key = key_of(prompt++);
    state.ResumeTiming();
    if (!server.store(key)) {
      state.SkipWithError("not stored");
      break;
    }
  }
}

// 0 off, 1 sample, 2 always
BENCHMARK(retrieve)->Arg(0)->Arg(1)->Arg(2)->Unit(benchmark::kMicrosecond)->UseRealTime();
BENCHMARK(store)->Arg(0)->Arg(1)->Arg(2)->Unit(benchmark::kMicrosecond)->UseRealTime();

}  // namespace
}  // namespace larder::handlers
