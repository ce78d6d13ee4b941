// Goal: the parts of this room may be entered from all threads at once, as the wire thread, the
// workers and the maintenance thread do. Method: threads that look up, read, store, reconnect and
// sweep without regard for each other, with a small pool; every byte read is checked, and in the
// end nothing is held. Says most under ThreadSanitizer.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "base/test_random.h"
#include "sessions/test_sessions.h"

namespace larder::sessions {
namespace {

const std::uint32_t kRank = keys::pack_kv_rank(1, 0);

// What all threads share.
struct Shop {
  cache::TestCache cache{24};
  const cache::KeySpace space = cache::test_space();
  ManualClock clock;
  Quarantine quarantine{clock};
  Instances instances{kTestInstanceLimits, quarantine, clock};
  Sessions sessions{cache.index(), {seconds(300), seconds(30), 16}, clock};
  PromptHashes prompts{kTestChunkTokens, 200, clock};
  std::atomic<int> reads{0};
  std::atomic<int> wrong{0};
};

// An engine: its scheduler's and its worker's requests, over two connections.
class Engine {
 public:
  Engine(Shop& shop, std::uint64_t number)
      : shop_(shop),
        number_(number),
        scheduler_{number * 2},
        worker_{number * 2 + 1},
        random_(test_seed() + number) {}

  void run(int requests) {
    shop_.sessions.connection_opened(scheduler_);
    for (int i = 0; i < requests; ++i) {
      serve();
      shop_.clock.advance(milliseconds(random_() % 2000));
      if (random_() % 50 == 0) {
        shop_.sessions.connection_closed(scheduler_);
        shop_.instances.connection_closed(worker_);
      }
    }
    shop_.instances.remove(InstanceId{number_});
  }

 private:
  void serve() {
    const auto prompt = static_cast<std::uint32_t>(1 + random_() % 5);
    const std::string request_id(1, static_cast<char>('a' + random_() % 3));
    const PromptView view = shop_.prompts.hash(request_id, test_tokens(prompt, 1 + random_() % 6));
    const std::size_t hit = look_up(request_id, view);
    if (!shop_.instances.ping(InstanceId{number_}, worker_) ||
        shop_.instances.find(InstanceId{number_}, worker_) == nullptr) {
      shop_.instances.add(
          InstanceId{number_}, {"model", 1, 16, false, {{shop_.space.layout}}}, worker_);
    }
    if (hit > 0) {
      retrieve(request_id, view.hashes().first(hit), prompt);
    }
    store(request_id, view, prompt);
    if (random_() % 4 != 0) {
      shop_.sessions.end(scheduler_, request_id);
    }
  }

  std::size_t look_up(const std::string& request_id, const PromptView& view) {
    Finding finding;
    finding.content = {"model", "", {kRank}};
    finding.prompt = view;
    finding.spaces = cache::needed({shop_.space});
    finding.prefix =
        shop_.cache->acquire_prefix(finding.spaces, view.hashes(), finding.content.kv_ranks);
    const std::size_t hit = finding.prefix.chunks;
    shop_.sessions.begin(scheduler_, request_id, std::move(finding));
    shop_.sessions.answer(scheduler_, request_id, true);
    return hit;
  }

  void retrieve(const std::string& request_id,
                std::span<const keys::ChunkHash> hashes,
                std::uint32_t prompt) {
    std::optional<cache::ReadLease> lease =
        shop_.sessions.take(request_id, {shop_.space, kRank, hashes, 0});
    if (!lease.has_value()) {
      Result<cache::ReadLease> acquired = shop_.cache->acquire(shop_.space, {hashes, 0, kRank});
      if (!acquired) {
        return;
      }
      lease = std::move(*acquired);
    }
    const TransferKey key{"model", "", kRank, {0, hashes.size()}, hashes.back()};
    const std::shared_ptr<Instance> instance = shop_.instances.find(InstanceId{number_}, worker_);
    if (instance == nullptr || !instance->open_retrieve(key, request_id, std::move(*lease))) {
      return;
    }
    if (const std::optional<cache::ReadLease> ended = instance->close_retrieve(key, request_id)) {
      for (std::size_t i = 0; i < ended->size(); ++i) {
        shop_.wrong += cache::has_pattern(ended->bytes(i), prompt) ? 0 : 1;
        ++shop_.reads;
      }
    }
  }

  void store(const std::string& request_id, const PromptView& view, std::uint32_t prompt) {
    const std::shared_ptr<Instance> instance = shop_.instances.find(InstanceId{number_}, worker_);
    if (instance == nullptr) {
      return;
    }
    const auto staged = instance->staged(shop_.space);
    Result<cache::WriteLease> lease =
        shop_.cache->reserve(shop_.space, {view.hashes(), 0, kRank}, [&](const keys::ObjectId& id) {
          return staged.contains(id);
        });
    if (!lease) {
      return;
    }
    for (std::size_t i = 0; i < lease->size(); ++i) {
      cache::write_pattern(lease->slot(i).bytes(), prompt);
    }
    const TransferKey key{"model", "", kRank, {0, view.chunk_count()}, view.hashes().back()};
    if (!instance->open_store(key, request_id, std::move(*lease), shop_.clock.now()) ||
        random_() % 8 == 0) {
      return;  // a worker that never commits
    }
    if (std::optional<cache::WriteLease> ended = instance->close_store(key, request_id)) {
      static_cast<void>(ended->commit());
    }
  }

  Shop& shop_;
  const std::uint64_t number_;
  const ConnectionId scheduler_;
  const ConnectionId worker_;
  std::mt19937_64 random_;
};

TEST(SessionsThreads, EnginesAndMaintenanceMayMeetInAnyOrder) {
  Shop shop;
  std::atomic<bool> done{false};
  std::thread maintenance([&shop, &done] {
    for (int round = 0; !done; ++round) {
      shop.instances.sweep();
      shop.sessions.sweep();
      shop.quarantine.sweep();
      shop.prompts.sweep(seconds(60));
      shop.instances.layouts_of("model", 1);
      if (round % 64 == 0) {
        shop.cache->clear();
        shop.sessions.forget_answers();
      }
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> engines;
  for (std::uint64_t number = 1; number <= 3; ++number) {
    engines.emplace_back([&shop, number] { Engine(shop, number).run(1500); });
  }
  for (std::thread& engine : engines) {
    engine.join();
  }
  done = true;
  maintenance.join();
  EXPECT_EQ(shop.wrong.load(), 0);
  EXPECT_GT(shop.reads.load(), 100);
  shop.clock.advance(minutes(30));
  shop.sessions.sweep();
  shop.quarantine.sweep();
  EXPECT_EQ(shop.instances.count(), 0U);
  EXPECT_EQ(shop.sessions.count(), 0U);
  EXPECT_EQ(shop.quarantine.slot_count(), 0U);
  shop.cache.expect_at_rest();
}

}  // namespace
}  // namespace larder::sessions
