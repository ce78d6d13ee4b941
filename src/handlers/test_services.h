// test_services.h - for tests and benchmarks: all services over a small private pool and a clock
// that stands still.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "cache/cache_index.h"
#include "codec/msgpack_writer.h"
#include "handlers/dispatch.h"
#include "handlers/operations.h"
#include "handlers/services.h"
#include "metrics/metrics.h"
#include "pool/pool.h"

namespace larder::handlers {

inline constexpr std::uint32_t kTestChunkTokens = 4;

inline constexpr std::size_t kTestPoolBytes = 1U << 20;

inline std::unique_ptr<pool::Pool> make_test_pool(bool shared, std::size_t bytes) {
  pool::PoolConfig config;
  config.bytes = bytes;
  config.private_memory = !shared;
  return std::move(*pool::Pool::create(config));
}

class TestServices {
 public:
  // shared: a segment in shared memory, as a client would be offered.
  explicit TestServices(bool shared = false,
                        cache::Verification verification = cache::Verification::kOff,
                        std::size_t pool_bytes = kTestPoolBytes)
      : pool(make_test_pool(shared, pool_bytes)),
        index(*pool,
              cache::make_eviction_policy("LRU"),
              registry,
              cache::Admission::kAll,
              verification),
        quarantine(clock),
        instances({.reap_timeout = std::chrono::seconds(120),
                   .registration_grace = std::chrono::hours(1),
                   .write_ttl = std::chrono::seconds(600),
                   .reconnect_grace = std::chrono::seconds(30),
                   .quarantine_done = std::chrono::seconds(1),
                   .quarantine_restart = std::chrono::seconds(30),
                   .quarantine_silence = std::chrono::minutes(10),
                   .instances_max = 16,
                   .told_max = 16},
                  quarantine,
                  clock),
        sessions(index, {std::chrono::seconds(300), std::chrono::seconds(30), 64}, clock),
        prompts(kTestChunkTokens, 1U << 20, clock),
        metrics(registry, clock),
        services{settings, clock, *pool, devices, index, instances, sessions, prompts, metrics},
        dialects(settings.default_release, registry, clock),
        dispatch(services, dialects) {}

  ManualClock clock;
  Settings settings{.chunk_tokens = kTestChunkTokens, .default_release = std::nullopt};
  metrics::Registry registry;
  std::unique_ptr<pool::Pool> pool;
  cache::CacheIndex index;
  devices::Devices devices{{.looks_for_cuda = false}, clock};
  sessions::Quarantine quarantine;
  sessions::Instances instances;
  sessions::Sessions sessions;
  sessions::PromptHashes prompts;
  RequestMetrics metrics;
  Services services;
  Dialects dialects;
  Dispatch dispatch;
};

// A message as the wire thread hands it over, with the bytes behind it.
class TestMessage {
 public:
  explicit TestMessage(std::vector<std::vector<std::byte>> frames, std::uint64_t connection = 1)
      : frames_(std::move(frames)) {
    request.connection = transport::ConnectionId{connection};
    request.frames.assign(frames_.begin(), frames_.end());
  }

  transport::Request request;

 private:
  std::vector<std::vector<std::byte>> frames_;
};

inline std::vector<std::byte> bytes_of(const codec::Bytes& written) {
  return {written.begin(), written.end()};
}

inline std::vector<std::byte> packed_int(std::int64_t value) {
  codec::Bytes written;
  codec::MsgpackWriter(written).write_int(value);
  return bytes_of(written);
}

// The reply's third frame; empty when there is none.
inline std::vector<std::byte> value_of(const transport::Reply& reply) {
  if (!reply.spans.empty()) {
    std::vector<std::byte> whole;
    for (const transport::Frame& span : reply.spans) {
      whole.insert(whole.end(), span.begin(), span.end());
    }
    return whole;
  }
  if (!reply.large.empty()) {
    return {reply.large.begin(), reply.large.end()};
  }
  return reply.small;
}

}  // namespace larder::handlers
