// Goal: under any order of lookups, frees, ends, retrieves, reconnects, clears and expiry, exactly
// what is owed stays pinned, and in the end nothing. Method: random operations over few
// connections, request ids and prompts, so that all of them collide, against a naive ledger; after
// each one the index must pin the ledger's objects. LARDER_TEST_SEED repeats a run,
// LARDER_TEST_SCALE makes it longer.
#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <map>
#include <random>
#include <set>

#include "base/test_random.h"
#include "sessions/test_sessions.h"

namespace larder::sessions {
namespace {

constexpr SessionLimits kLimits{seconds(300), seconds(30), 5};
constexpr std::size_t kChunksMax = 4;
constexpr std::uint32_t kWorldSize = 2;

struct Name {
  std::uint64_t clears;  // of the cache when it was stored
  std::size_t space;
  std::uint32_t prompt;
  std::size_t chunk;
  std::size_t rank;

  auto operator<=>(const Name&) const = default;
};

struct LedgerSession {
  ConnectionId connection;
  std::string request_id;
  std::uint32_t prompt = 0;
  std::size_t chunks = 0;
  bool answered = false;
  std::uint32_t units_each = 1;
  std::vector<std::size_t> spaces;
  std::vector<std::size_t> ranks;
  std::map<Name, std::uint32_t> owed;
  TimePoint until;
};

class LedgerRun {
 public:
  explicit LedgerRun(std::uint64_t seed) : random_(seed) {
    for (const ConnectionId connection : connections_) {
      sessions_.connection_opened(connection);
    }
  }

  void step() {
    switch (below(20)) {
      case 0:
      case 1:
        store();
        break;
      case 2:
      case 3:
      case 4:
      case 5:
        look_up();
        break;
      case 6:
      case 7:
        answer();
        break;
      case 8:
      case 9:
        free();
        break;
      case 10:
      case 11:
        end_session();
        break;
      case 12:
      case 13:
      case 14:
      case 15:
        take();
        break;
      case 16:
      case 17:
        if (!taken_.empty()) {
          taken_.erase(taken_.begin() + static_cast<std::ptrdiff_t>(below(taken_.size())));
        }
        break;
      case 18:
        pass_time();
        break;
      default:
        if (below(4) == 0) {
          reconnect();
        } else if (below(40) == 0) {
          clear();
        }
    }
  }

  void check() {
    std::set<Name> pinned;
    std::size_t unanswered = 0;
    for (const LedgerSession& session : ledger_) {
      unanswered += session.answered ? 0 : 1;
      for (const auto& [name, units] : session.owed) {
        if (units > 0) {
          pinned.insert(name);
        }
      }
    }
    for (const Taken& taken : taken_) {
      pinned.insert(taken.names.begin(), taken.names.end());
      for (std::size_t i = 0; i < taken.lease.size(); ++i) {
        ASSERT_TRUE(cache::has_pattern(taken.lease.bytes(i), pattern_of(taken.names[i])));
      }
    }
    ASSERT_EQ(cache_->stats().pinned_objects, pinned.size());
    ASSERT_EQ(sessions_.count(), ledger_.size());
    ASSERT_EQ(sessions_.unanswered_count(), unanswered);
  }

  void end() {
    taken_.clear();
    clock_.advance(seconds(300));
    sessions_.sweep();
    EXPECT_EQ(sessions_.count(), 0U);
    EXPECT_EQ(sessions_.unanswered_count(), 0U);
    cache_.expect_at_rest();
    EXPECT_GT(takes_, 100U) << "too little was taken for the run to mean anything";
  }

 private:
  using Ledger = std::list<LedgerSession>;  // oldest first

  struct Taken {
    cache::ReadLease lease;
    std::vector<Name> names;
  };

  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(random_() % bound); }

  ConnectionId a_connection() { return connections_[below(connections_.size())]; }

  std::string a_request_id() { return std::string(1, static_cast<char>('a' + below(3))); }

  std::uint32_t a_prompt() { return static_cast<std::uint32_t>(1 + below(3)); }

  static std::uint64_t pattern_of(const Name& name) { return name.prompt * 10 + name.space; }

  bool is_gone(const LedgerSession& session) const {
    return gone_since_.contains(session.connection);
  }

  // nullopt: several orphans have the id, and which of them is meant is not promised.
  std::optional<Ledger::iterator> find(ConnectionId connection, const std::string& request_id) {
    auto found = ledger_.end();
    std::size_t orphans = 0;
    for (auto session = ledger_.begin(); session != ledger_.end(); ++session) {
      if (session->request_id != request_id) {
        continue;
      }
      if (session->connection == connection) {
        return session;
      }
      if (is_gone(*session)) {
        ++orphans;
        found = session;
      }
    }
    return orphans > 1 ? std::nullopt : std::optional(found);
  }

  void store() {
    const std::size_t space = below(2);
    const std::uint32_t prompt = a_prompt();
    const std::size_t chunks = 1 + below(kChunksMax);
    const std::size_t rank = below(kWorldSize);
    cache_.store(spaces_[space], hashes_of(prompt, chunks), ranks_[rank], prompt * 10 + space);
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
      stored_.insert({clears_, space, prompt, chunk, rank});
    }
  }

  void look_up() {
    LedgerSession session;
    session.connection = a_connection();
    session.request_id = a_request_id();
    session.prompt = a_prompt();
    session.units_each = static_cast<std::uint32_t>(1 + below(3));
    session.until = clock_.now() + kLimits.read_ttl;
    const std::size_t asked = 1 + below(kChunksMax);
    const std::size_t which = below(3);
    session.spaces = which == 2 ? std::vector<std::size_t>{0, 1} : std::vector<std::size_t>{which};
    session.ranks = below(3) == 0 ? std::vector<std::size_t>{below(kWorldSize)}
                                  : std::vector<std::size_t>{0, 1};
    if (below(10) == 0) {
      sessions_.begin_empty(session.connection, session.request_id);
      session.spaces.clear();
      insert(std::move(session));
      return;
    }
    Finding finding;
    finding.content = {"model", "", kv_ranks(session.ranks)};
    finding.prompt = test_view(session.prompt, asked);
    for (const std::size_t space : session.spaces) {
      finding.spaces.push_back({spaces_[space], std::nullopt, space});
    }
    finding.units = session.units_each;
    finding.prefix =
        cache_->acquire_prefix(finding.spaces, finding.prompt.hashes(), finding.content.kv_ranks);
    while (session.chunks < asked && owe_chunk(session)) {
    }
    ASSERT_EQ(finding.prefix.chunks, session.chunks);
    sessions_.begin(session.connection, session.request_id, std::move(finding));
    insert(std::move(session));
  }

  // Adds the session's next chunk if it is stored in all of its layouts and ranks.
  bool owe_chunk(LedgerSession& session) const {
    std::vector<Name> names;
    for (const std::size_t space : session.spaces) {
      for (const std::size_t rank : session.ranks) {
        names.push_back({clears_, space, session.prompt, session.chunks, rank});
      }
    }
    for (const Name& name : names) {
      if (!stored_.contains(name)) {
        return false;
      }
    }
    for (const Name& name : names) {
      session.owed[name] = session.units_each;
    }
    ++session.chunks;
    return true;
  }

  std::vector<std::uint32_t> kv_ranks(const std::vector<std::size_t>& ranks) const {
    std::vector<std::uint32_t> packed;
    for (const std::size_t rank : ranks) {
      packed.push_back(ranks_[rank]);
    }
    return packed;
  }

  void insert(LedgerSession session) {
    std::erase_if(ledger_, [&](const LedgerSession& old) {
      return old.connection == session.connection && old.request_id == session.request_id;
    });
    while (ledger_.size() >= kLimits.sessions_max) {
      ledger_.pop_front();
    }
    ledger_.push_back(std::move(session));
  }

  void answer() {
    const ConnectionId connection = a_connection();
    const std::string request_id = a_request_id();
    const bool consume = below(2) == 0;
    std::optional<Ledger::iterator> found = find(connection, request_id);
    if (!found.has_value()) {
      return;
    }
    if (*found == ledger_.end()) {
      const auto has_id = [&](const LedgerSession& session) {
        return session.request_id == request_id;
      };
      if (std::count_if(ledger_.begin(), ledger_.end(), has_id) == 1) {
        found = std::find_if(ledger_.begin(), ledger_.end(), has_id);
      }
    }
    std::int64_t expected = 0;
    if (*found != ledger_.end() && !(*found)->answered) {
      expected = static_cast<std::int64_t>((*found)->chunks);
      (*found)->answered = consume;
    }
    ASSERT_EQ(sessions_.answer(connection, request_id, consume), expected);
  }

  void free() {
    const ConnectionId connection = a_connection();
    const std::string request_id = a_request_id();
    const std::optional<Ledger::iterator> found = find(connection, request_id);
    if (!found.has_value()) {
      return;
    }
    const keys::ChunkRange chunks{below(kChunksMax), below(kChunksMax + 2)};
    const auto units = static_cast<std::uint32_t>(1 + below(4));
    const bool same_salt = below(4) != 0;
    const std::vector<std::size_t> ranks = below(2) == 0
                                               ? std::vector<std::size_t>{0, 1}
                                               : std::vector<std::size_t>{below(kWorldSize)};
    sessions_.free(connection,
                   request_id,
                   {"model", same_salt ? "" : "alice", kv_ranks(ranks)},
                   chunks,
                   units);
    if (*found == ledger_.end() || !same_salt) {
      return;
    }
    for (auto& [name, owed] : (*found)->owed) {
      const bool rank_meant = std::find(ranks.begin(), ranks.end(), name.rank) != ranks.end();
      if (rank_meant && name.chunk >= chunks.begin && name.chunk < chunks.end) {
        owed -= std::min(owed, units);
      }
    }
  }

  void end_session() {
    const ConnectionId connection = a_connection();
    const std::string request_id = a_request_id();
    if (const std::optional<Ledger::iterator> found = find(connection, request_id)) {
      ASSERT_EQ(sessions_.end(connection, request_id).has_value(), *found != ledger_.end());
      if (*found != ledger_.end()) {
        ledger_.erase(*found);
      }
    }
  }

  void take() {
    std::string request_id = a_request_id();
    std::uint32_t prompt = a_prompt();
    const std::size_t space = below(2);
    const std::size_t rank = below(kWorldSize);
    std::size_t end = 1 + below(kChunksMax);
    if (!ledger_.empty() && below(4) != 0) {  // aims at what is there
      const LedgerSession& aim =
          *std::next(ledger_.begin(), static_cast<std::ptrdiff_t>(below(ledger_.size())));
      request_id = aim.request_id;
      prompt = aim.prompt;
      end = std::max<std::size_t>(aim.chunks, 1);
    }
    const std::size_t first = below(end);
    std::vector<LedgerSession*> able;
    for (LedgerSession& session : ledger_) {
      if (session.request_id == request_id && session.prompt == prompt &&
          owes(session, space, rank, {first, end})) {
        able.push_back(&session);
      }
    }
    const auto hashes = hashes_of(prompt, end);
    std::optional<cache::ReadLease> lease =
        sessions_.take(request_id, {spaces_[space], ranks_[rank], hashes, first});
    ASSERT_EQ(lease.has_value(), !able.empty());
    if (able.empty()) {
      return;
    }
    ++takes_;
    Taken taken{std::move(*lease), {}};
    const bool is_spent = able.size() == 1;  // else nobody knows whose unit it would be
    for (auto& [name, owed] : able.front()->owed) {
      if (name.rank != rank || name.chunk < first || name.chunk >= end) {
        continue;
      }
      if (name.space == space) {
        taken.names.push_back(name);
        owed -= is_spent ? 1U : 0U;
      } else if (is_spent) {
        owed -= std::min(owed, able.front()->units_each);
      }
    }
    ASSERT_EQ(taken.names.size(), taken.lease.size());
    taken_.push_back(std::move(taken));
  }

  static bool owes(const LedgerSession& session,
                   std::size_t space,
                   std::size_t rank,
                   keys::ChunkRange chunks) {
    for (std::size_t chunk = chunks.begin; chunk < chunks.end; ++chunk) {
      const auto owed =
          std::find_if(session.owed.begin(), session.owed.end(), [&](const auto& entry) {
            return entry.first.space == space && entry.first.rank == rank &&
                   entry.first.chunk == chunk;
          });
      if (owed == session.owed.end() || owed->second == 0) {
        return false;
      }
    }
    return true;
  }

  void pass_time() {
    clock_.advance(milliseconds(below(30000)));
    const std::size_t before = ledger_.size();
    std::erase_if(ledger_, [&](const LedgerSession& session) {
      const auto gone = gone_since_.find(session.connection);
      const bool abandoned =
          gone != gone_since_.end() && clock_.now() - gone->second > kLimits.reconnect_grace;
      return abandoned || session.until <= clock_.now();
    });
    ASSERT_EQ(sessions_.sweep(), before - ledger_.size());
  }

  void reconnect() {
    ConnectionId& connection = connections_[below(connections_.size())];
    sessions_.connection_closed(connection);
    gone_since_.emplace(connection, clock_.now());
    connection = ConnectionId{++last_connection_};
    sessions_.connection_opened(connection);
  }

  void clear() {
    cache_->clear();
    sessions_.forget_answers();
    ++clears_;
    std::erase_if(ledger_, [](const LedgerSession& session) { return !session.answered; });
  }

  std::mt19937_64 random_;
  cache::TestCache cache_{512};  // nothing is ever evicted
  ManualClock clock_;
  Sessions sessions_{cache_.index(), kLimits, clock_};
  const std::vector<cache::KeySpace> spaces_ = {cache::test_space(),
                                                cache::other_layout(cache::test_space())};
  const std::vector<std::uint32_t> ranks_ = cache::test_ranks(kWorldSize);
  std::vector<ConnectionId> connections_ = {ConnectionId{1}, ConnectionId{2}, ConnectionId{3}};
  std::uint64_t last_connection_ = 3;
  std::map<ConnectionId, TimePoint> gone_since_;
  std::set<Name> stored_;
  std::uint64_t clears_ = 0;
  Ledger ledger_;
  std::vector<Taken> taken_;
  std::size_t takes_ = 0;
};

TEST(SessionsModel, PinsExactlyWhatTheLedgerOwes) {
  const std::uint64_t seed = test_seed();
  for (std::uint64_t run = 0; run < 6; ++run) {
    LedgerRun ledger_run(seed + run);
    for (std::uint64_t step = 0; step < test_steps(40'000); ++step) {
      SCOPED_TRACE(testing::Message() << "run " << run << ", step " << step);
      ASSERT_NO_FATAL_FAILURE(ledger_run.step());
      ASSERT_NO_FATAL_FAILURE(ledger_run.check());
    }
    ledger_run.end();
  }
}

}  // namespace
}  // namespace larder::sessions
