// What larder promises, under any interleaving of a few engines.
//
// Goal: never a byte that its writer did not commit, never memory taken from a reader or given to
// somebody while another may still write to it, a lookup's hit retrievable as long as its request
// lives, and nothing left when all have gone. Method: two engines with one worker each and three
// prompts that share chunks do random things to the real handlers, index, sessions and pool, on a
// clock that is moved by hand: look up, store (garbage first, the right bytes just before the
// commit), retrieve, free, end, clear, die, stall, reconnect, register again. The pool holds five
// objects, so everything is evicted all the time. Every byte that an engine could look at or write
// to is checked or written after each step (LARDER_TEST_SEED, LARDER_TEST_SCALE). The same once
// more, a third as long, with memory that changes by itself and every retrieve verified: what has
// changed may break a promise, and is never handed out.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <random>
#include <set>
#include <string>

#include "base/test_random.h"
#include "handlers/handlers.h"
#include "handlers/test_services.h"
#include "keys/token_hash.h"

namespace larder::handlers {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::uint32_t kChunk = kTestChunkTokens;
constexpr std::int64_t kHidden = 12800;  // 200 KiB an object: five in the pool of 1 MiB
constexpr std::size_t kObjectBytes = 2UL * 1 * kChunk * kHidden * 2;
constexpr std::byte kGarbage{0xEE};

// Sparse on purpose: every so many bytes of an object are written and compared.
constexpr std::size_t kStride = 4096;

constexpr std::uint64_t kSteps = 3'000'000;
constexpr int kEngines = 2;
constexpr seconds kReadTtl{300};
constexpr seconds kWriteTtl{600};

// Three prompts; the second shares a chunk with the first.
std::vector<std::uint32_t> prompt_tokens(std::size_t prompt) {
  constexpr std::array<std::array<std::uint32_t, 3>, 3> kChunks{{{1, 2, 3}, {1, 4, 5}, {6, 7, 8}}};
  std::vector<std::uint32_t> tokens;
  for (const std::uint32_t chunk : kChunks.at(prompt)) {
    tokens.insert(tokens.end(), kChunk, chunk);
  }
  return tokens;
}

// Whoever computes the KV of these tokens gets these bytes.
std::byte content_of(std::size_t prompt, std::size_t chunk) {
  const bool is_shared = chunk == 0 && prompt < 2;
  return static_cast<std::byte>(1 + (is_shared ? 0 : 3 * prompt + chunk));
}

struct SlotOf {
  std::size_t offset;
  std::byte content;
};

struct Store {
  protocol::Key key;
  std::vector<SlotOf> slots;
  std::size_t clears = 0;      // of the cache before it began
  std::size_t generation = 0;  // of its worker
  TimePoint since;
};

struct Retrieve {
  protocol::Key key;
  std::vector<SlotOf> slots;
};

// Memory that a worker was given and lost: it may still write there until `until`.
struct Ghost {
  protocol::Key key;
  std::uint64_t instance;
  std::vector<SlotOf> slots;
  TimePoint until;
  sessions::ConnectionId connection;
};

struct Promise {
  std::string request_id;
  std::size_t prompt;
  std::size_t chunks;
  TimePoint until;
  bool may_break = false;  // some of its memory has changed
};

struct Engine {
  sessions::ConnectionId scheduler{};
  sessions::ConnectionId worker{};
  std::uint64_t instance = 0;
  bool is_registered = false;
  std::size_t generation = 0;
  std::int64_t layers = 1;
  std::deque<Store> stores;
  std::deque<Retrieve> retrieves;
  std::vector<Promise> promises;
};

class World {
 public:
  explicit World(std::uint64_t seed, bool memory_changes = false)
      : random_(seed),
        memory_changes_(memory_changes),
        server_(true, memory_changes ? cache::Verification::kAlways : cache::Verification::kOff) {
    for (int i = 0; i < kEngines; ++i) {
      Engine& engine = engines_.at(static_cast<std::size_t>(i));
      engine.instance = 100 + static_cast<std::uint64_t>(i);
      engine.scheduler = next_connection();
      engine.worker = next_connection();
      enroll(engine);
    }
  }

  void step() {
    if (memory_changes_ && pick(5) == 0) {
      change_memory();
    }
    Engine& engine = engines_.at(pick(kEngines));
    switch (pick(40)) {
      case 0:
        leave_politely(engine);
        break;
      case 1:
        die(engine);
        break;
      case 2:
        enroll(engine);
        break;
      case 3:
        clear();
        break;
      case 4:
        pass(seconds(pick(40)));
        break;
      case 5:
        pass(pick(20) == 0 ? seconds(700) : seconds(3));
        break;
      case 6:
        haunt();
        break;
      case 7:
      case 8:
        end(engine);
        break;
      case 9:
        free(engine);
        break;
      default:
        work(engine);
    }
    check_readers();
  }

  void finish() {
    for (Engine& engine : engines_) {
      while (!engine.promises.empty()) {
        end(engine);
      }
      die(engine);
    }
    pass(seconds(3600));
    const cache::CacheStats stats = server_.index.stats();
    EXPECT_EQ(stats.pinned_objects, 0U);
    EXPECT_EQ(stats.reserved_objects, 0U);
    EXPECT_EQ(server_.sessions.count(), 0U);
    EXPECT_EQ(server_.instances.count(), 0U);
    EXPECT_EQ(server_.quarantine.slot_count(), 0U);
    EXPECT_EQ(server_.pool->usage().used_bytes,
              stats.resident_objects * server_.pool->rounded(kObjectBytes));
    server_.index.clear();
    EXPECT_EQ(server_.pool->usage().used_bytes, 0U);
  }

  std::uint64_t hits() const { return hits_; }

  std::uint64_t commits() const { return commits_; }

  std::uint64_t corrupted() const { return server_.index.stats().corrupted_objects; }

 private:
  std::size_t pick(std::size_t count) {
    return std::uniform_int_distribution<std::size_t>(0, count - 1)(random_);
  }

  sessions::ConnectionId next_connection() {
    const transport::ConnectionId opened{++connections_};
    server_.dispatch.connection_opened(opened, {});
    return sessions::ConnectionId{connections_};
  }

  void close(sessions::ConnectionId connection) {
    server_.dispatch.connection_closed(
        transport::ConnectionId{static_cast<std::uint64_t>(connection)},
        transport::ConnectionEnd::kPeerLeft);
    std::erase_if(ghosts_, [connection](const Ghost& ghost) {
      return ghost.connection == connection;  // its process is dead
    });
  }

  protocol::Key key_of(const std::string& request_id, std::size_t prompt) const {
    protocol::Key key;
    key.model_name = "model";
    key.world_size = 1;
    key.token_ids = prompt_tokens(prompt);
    key.end = static_cast<std::int64_t>(key.token_ids.size());
    key.request_id = request_id;
    return key;
  }

  // What the worker had open is its own no more. It may still be writing for so long.
  void lose_stores(Engine& engine, Duration may_write) {
    for (Store& store : engine.stores) {
      ghosts_.push_back({std::move(store.key),
                         engine.instance,
                         std::move(store.slots),
                         server_.clock.now() + may_write,
                         engine.worker});
    }
    engine.stores.clear();
    engine.retrieves.clear();
  }

  // It said so itself, so what it lost earlier is no longer written to either.
  void calm_ghosts(const Engine& engine, Duration may_write) {
    for (Ghost& ghost : ghosts_) {
      if (ghost.connection == engine.worker) {
        ghost.until = std::min(ghost.until, server_.clock.now() + may_write);
      }
    }
  }

  void enroll(Engine& engine) {
    protocol::RegisterEngineDrivenRequest request;
    request.instance_id = engine.instance;
    request.model_name = "model";
    request.world_size = 1;
    request.block_size = kChunk;
    request.num_layers = 1;
    request.hidden_dim_size = kHidden;
    request.dtype_name = "float16";
    ASSERT_TRUE(on_register_engine_driven(server_.services, {engine.worker}, request).has_value());
    // Its copies of before may be running for a while.
    lose_stores(engine, seconds(29));
    calm_ghosts(engine, seconds(29));
    engine.is_registered = true;
    ++engine.generation;
  }

  void leave_politely(Engine& engine) {
    if (!engine.is_registered) {
      return;
    }
    EXPECT_TRUE(on_unregister_engine_driven(server_.services, {engine.worker}, {engine.instance}));
    lose_stores(engine, milliseconds(900));
    calm_ghosts(engine, milliseconds(900));
    engine.is_registered = false;
    ++engine.generation;
  }

  // kill -9 of both processes, and new ones.
  void die(Engine& engine) {
    close(engine.scheduler);
    close(engine.worker);
    engine.stores.clear();
    engine.retrieves.clear();
    engine.promises.clear();
    engine.scheduler = next_connection();
    engine.worker = next_connection();
    ++engine.generation;
    // Its registration stays for the grace of a reconnect; the new process has another id.
    engine.is_registered = false;
    engine.instance += kEngines;
  }

  void clear() {
    clear_cache(server_.services);
    ++clears_;
  }

  void pass(Duration time) {
    server_.clock.advance(time);
    const TimePoint now = server_.clock.now();
    server_.sessions.sweep();
    server_.instances.sweep();
    server_.quarantine.sweep();
    for (Engine& engine : engines_) {
      std::erase_if(engine.promises,
                    [now](const Promise& promise) { return promise.until <= now; });
      expire_stores(engine);
    }
    std::erase_if(ghosts_, [now](const Ghost& ghost) { return ghost.until <= now; });
  }

  // Reservations have a time; a worker that is slow may go on writing for long.
  void expire_stores(Engine& engine) {
    const TimePoint now = server_.clock.now();
    for (Store& store : engine.stores) {
      if (now - store.since > kWriteTtl) {
        ghosts_.push_back({store.key,
                           engine.instance,
                           std::move(store.slots),
                           now + seconds(500),
                           engine.worker});
        store.slots.clear();
      }
    }
    std::erase_if(engine.stores, [](const Store& store) { return store.slots.empty(); });
  }

  // Workers that lost their memory go on writing into it.
  void haunt() {
    for (const Ghost& ghost : ghosts_) {
      for (const SlotOf& slot : ghost.slots) {
        write(slot.offset, kGarbage);
      }
      commit_late(ghost);
    }
  }

  // What was taken from it is never published, whatever else is open under its key.
  void commit_late(const Ghost& ghost) {
    for (const Engine& engine : engines_) {
      for (const Store& store : engine.stores) {
        if (engine.instance == ghost.instance && store.key.request_id == ghost.key.request_id) {
          return;  // the new store of this request; nobody could tell them apart
        }
      }
    }
    const auto committed =
        on_commit_store(server_.services, {ghost.connection}, {ghost.key, ghost.instance, {}});
    EXPECT_FALSE(committed.has_value() && *committed) << "a lost reservation was published";
  }

  // Anywhere but under a reader: nobody can protect that one.
  void change_memory() {
    constexpr std::size_t kObjects = 5;
    const std::size_t offset = pick(kObjects) * server_.pool->rounded(kObjectBytes);
    for (const Engine& engine : engines_) {
      for (const Retrieve& retrieve : engine.retrieves) {
        if (std::any_of(retrieve.slots.begin(), retrieve.slots.end(), [offset](const SlotOf& slot) {
              return slot.offset == offset;
            })) {
          return;
        }
      }
    }
    changed_.insert(server_.pool->base()[offset]);
    write(offset, kGarbage);
    for (Engine& engine : engines_) {
      for (Promise& promise : engine.promises) {
        promise.may_break = promise.may_break || may_have_changed(promise);
      }
    }
  }

  bool may_have_changed(const Promise& promise) const {
    for (std::size_t chunk = 0; chunk < promise.chunks; ++chunk) {
      if (changed_.contains(content_of(promise.prompt, chunk))) {
        return true;
      }
    }
    return false;
  }

  void work(Engine& engine) {
    switch (pick(8)) {
      case 0:
      case 1:
        look_up(engine);
        break;
      case 2:
      case 3:
        begin_store(engine);
        break;
      case 4:
        commit_store(engine);
        break;
      case 5:
      case 6:
        begin_retrieve(engine);
        break;
      default:
        commit_retrieve(engine);
    }
  }

  std::string some_request() { return std::to_string(pick(3)); }  // ids collide on purpose

  void look_up(Engine& engine) {
    const std::string request_id = some_request();
    const std::size_t prompt = pick(3);
    const Caller caller{engine.scheduler};
    forget_promise(engine, request_id);
    ASSERT_TRUE(on_lookup(server_.services, caller, {key_of(request_id, prompt), 1}));
    const auto found = on_query_prefetch_status(server_.services, caller, {request_id});
    ASSERT_TRUE(found.has_value() && found->has_value());
    const auto chunks = static_cast<std::size_t>(**found);
    if (chunks > 0) {
      ++hits_;
      engine.promises.push_back({request_id, prompt, chunks, server_.clock.now() + kReadTtl});
      engine.promises.back().may_break = may_have_changed(engine.promises.back());
    }
  }

  void forget_promise(Engine& engine, const std::string& request_id) {
    std::erase_if(engine.promises,
                  [&](const Promise& promise) { return promise.request_id == request_id; });
  }

  void end(Engine& engine) {
    const std::string request_id =
        engine.promises.empty() ? some_request() : engine.promises.front().request_id;
    forget_promise(engine, request_id);
    EXPECT_TRUE(on_end_session(server_.services, {engine.scheduler}, {request_id}));
  }

  void free(Engine& engine) {
    if (engine.promises.empty()) {
      return;
    }
    const Promise promise = engine.promises.at(pick(engine.promises.size()));
    protocol::FreeLookupLocksRequest request{key_of(promise.request_id, promise.prompt), 1, {}};
    EXPECT_TRUE(on_free_lookup_locks(server_.services, {engine.scheduler}, request));
    forget_promise(engine, promise.request_id);
  }

  void begin_store(Engine& engine) {
    const std::size_t prompt = pick(3);
    protocol::PrepareStoreRequest request;
    request.key = key_of(some_request(), prompt);
    request.key.worker_id = 0;
    request.key.end = static_cast<std::int64_t>(kChunk * (1 + pick(3)));
    request.instance_id = engine.instance;
    // Prepared again before the commit: nobody could tell which a commit means.
    bool is_again = false;
    for (const Store& open : engine.stores) {
      if (open.key.request_id == request.key.request_id && open.key.end == request.key.end &&
          std::equal(open.key.token_ids.begin(),
                     open.key.token_ids.begin() + open.key.end,
                     request.key.token_ids.begin())) {
        is_again = true;
      }
    }
    const auto prepared = on_prepare_store(server_.services, {engine.worker}, request);
    EXPECT_FALSE(is_again && prepared.has_value() && !prepared->slots.empty());
    if (!prepared || prepared->slots.empty()) {
      EXPECT_TRUE(prepared.has_value() || !engine.is_registered ||
                  prepared.error().code == Code::kNoSpace);
      return;
    }
    EXPECT_TRUE(engine.is_registered);
    Store store{request.key, {}, clears_, engine.generation, server_.clock.now()};
    for (std::size_t i = 0; i < prepared->slots.size(); ++i) {
      const std::size_t offset = prepared->slots[i].offset;
      expect_nobody_has(offset);
      store.slots.push_back(
          {offset, content_of(prompt, static_cast<std::size_t>(prepared->chunk_indices[i]))});
      write(offset, kGarbage);
    }
    engine.stores.push_back(std::move(store));
  }

  void commit_store(Engine& engine) {
    if (engine.stores.empty()) {
      return;
    }
    const std::size_t which = pick(engine.stores.size());
    const Store store = std::move(engine.stores.at(which));
    engine.stores.erase(engine.stores.begin() + static_cast<std::ptrdiff_t>(which));
    for (const SlotOf& slot : store.slots) {
      write(slot.offset, slot.content);
    }
    const auto committed =
        on_commit_store(server_.services, {engine.worker}, {store.key, engine.instance, {}});
    ASSERT_TRUE(committed.has_value());
    // Two stores of one key are told apart by their request ids only, so a clear in between may
    // have hit either.
    EXPECT_TRUE(*committed || store.clears != clears_) << "a store was lost";
    commits_ += *committed ? 1U : 0U;
  }

  void begin_retrieve(Engine& engine) {
    protocol::TransferRequest request;
    std::size_t prompt = pick(3);
    std::size_t chunks = 1 + pick(3);
    bool is_promised = false;
    bool may_break = false;
    // A worker reads what its scheduler looked up; one that was told of no lookup has an id of its
    // own.
    std::string request_id = "unannounced";
    if (!engine.promises.empty() && pick(3) > 0) {
      const Promise promise = engine.promises.at(pick(engine.promises.size()));
      prompt = promise.prompt;
      chunks = promise.chunks;
      request_id = promise.request_id;
      is_promised = true;
      may_break = promise.may_break;
      forget_promise(engine, request_id);  // its one reader reads it now
    }
    request.key = key_of(request_id, prompt);
    request.key.worker_id = 0;
    request.key.end = static_cast<std::int64_t>(kChunk * chunks);
    request.instance_id = engine.instance;
    const std::uint64_t corrupted_before = corrupted();
    const auto prepared = on_prepare_retrieve(server_.services, {engine.worker}, request);
    const bool is_served = prepared && prepared->success;
    if (!is_promised && (is_served || corrupted() > corrupted_before)) {
      // All that the index had of these chunks was compared, and what had changed is gone.
      for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
        changed_.erase(content_of(prompt, chunk));
      }
    }
    if (!is_served) {
      EXPECT_FALSE(is_promised && engine.is_registered && !may_break) << "a promise was broken";
      return;
    }
    EXPECT_TRUE(prepared->slots.has_value() && prepared->slots->size() == chunks);
    Retrieve retrieve{request.key, {}};
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
      retrieve.slots.push_back({prepared->slots->at(chunk).offset, content_of(prompt, chunk)});
    }
    engine.retrieves.push_back(std::move(retrieve));
  }

  void commit_retrieve(Engine& engine) {
    if (engine.retrieves.empty()) {
      return;
    }
    const Retrieve retrieve = std::move(engine.retrieves.front());
    engine.retrieves.pop_front();
    EXPECT_TRUE(
        on_commit_retrieve(server_.services, {engine.worker}, {retrieve.key, engine.instance}));
  }

  // Memory handed out for writing is nobody's: no reader's, no other writer's, no ghost's.
  void expect_nobody_has(std::size_t offset) const {
    const auto is_it = [offset](const SlotOf& slot) { return slot.offset == offset; };
    const auto has_it = [&](const auto& holder) {
      return std::any_of(holder.slots.begin(), holder.slots.end(), is_it);
    };
    for (const Engine& engine : engines_) {
      EXPECT_TRUE(std::none_of(engine.stores.begin(), engine.stores.end(), has_it));
      EXPECT_TRUE(std::none_of(engine.retrieves.begin(), engine.retrieves.end(), has_it));
    }
    EXPECT_TRUE(std::none_of(ghosts_.begin(), ghosts_.end(), has_it)) << "its last writer may live";
  }

  void check_readers() const {
    for (const Engine& engine : engines_) {
      for (const Retrieve& retrieve : engine.retrieves) {
        for (const SlotOf& slot : retrieve.slots) {
          for (std::size_t at = 0; at < kObjectBytes; at += kStride) {
            ASSERT_EQ(server_.pool->base()[slot.offset + at], slot.content) << "a wrong byte";
          }
        }
      }
    }
  }

  void write(std::size_t offset, std::byte content) {
    for (std::size_t at = 0; at < kObjectBytes; at += kStride) {
      server_.pool->base()[offset + at] = content;
    }
  }

  std::mt19937_64 random_;
  const bool memory_changes_;
  TestServices server_;
  std::array<Engine, kEngines> engines_;
  std::vector<Ghost> ghosts_;
  std::set<std::byte> changed_;  // contents of which some memory has changed
  std::uint64_t connections_ = 0;
  std::size_t clears_ = 0;
  std::uint64_t hits_ = 0;
  std::uint64_t commits_ = 0;
};

TEST(Promises, HoldUnderAnyInterleaving) {
  const std::uint64_t steps = test_steps(kSteps);
  log::set_level(log::Level::kError);
  World world(test_seed());
  for (std::uint64_t step = 0; step < steps && !testing::Test::HasFailure(); ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    world.step();
  }
  world.finish();
  // It did what it is for.
  EXPECT_GT(world.hits(), steps / 200);
  EXPECT_GT(world.commits(), steps / 200);
}

TEST(Promises, NeverHandOutMemoryThatHasChanged) {
  const std::uint64_t steps = test_steps(kSteps / 3);
  log::set_level(log::Level::kOff);
  World world(test_seed(), true);
  for (std::uint64_t step = 0; step < steps && !testing::Test::HasFailure(); ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    world.step();
  }
  world.finish();
  EXPECT_GT(world.hits(), steps / 200);
  EXPECT_GT(world.corrupted(), steps / 500);
}

}  // namespace
}  // namespace larder::handlers
