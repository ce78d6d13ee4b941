// sessions.h - one engine request from LOOKUP to END_SESSION: its answer, and the locks behind the
// answer.
//
// A LOOKUP hit is a promise: its chunks stay retrievable until every reader retrieved or freed
// them, the request ended, or the lock's time ran out. The session keeps that promise as a ledger:
// pins on the objects, and for each object the units (readers) still owed. A retrieve turns a unit
// into a pin of its own; FREE_LOOKUP_LOCKS and END_SESSION give back what is left.
//
// Request ids are chosen by engines and collide, so a session belongs to (connection, request id).
// A request from a connection without such a session finds one by id alone only when its connection
// is gone (a reconnect), or, for questions, when no other session has the id. Workers come over
// other connections: they find a ledger by request id and content (model, world size, salt,
// hashes). Where several engines look up the same prompt under the same id, nobody can tell whose
// worker reads: it gets a pin of its own and takes no unit of either, so that no engine lives on
// another's promise.
//
// Thread-safe; one mutex. Pins are given back outside it.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "cache/cache_index.h"
#include "sessions/ids.h"
#include "sessions/prompt_hashes.h"

namespace larder::sessions {

// What a session is about; equal means the same objects.
struct SessionContent {
  std::string model_name;
  std::string cache_salt;
  std::vector<std::uint32_t> kv_ranks;  // all ranks of the world, or the one that asked
};

// What a LOOKUP found.
struct Finding {
  SessionContent content;
  PromptView prompt;
  std::vector<cache::NeededSpace> spaces;  // of all layouts registered, each with its object groups
  cache::PrefixLookup prefix;              // pins in the order [space][chunk][rank]
  std::uint32_t units = 1;                 // readers of each object
};

// Which objects a worker is about to read.
struct Reading {
  const cache::KeySpace& space;
  std::uint32_t kv_rank;
  std::span<const keys::ChunkHash> hashes;  // of the prompt up to the range's end
  std::size_t first_chunk;                  // of the range
};

// What an ended session leaves: for counting it as a use.
struct Ended {
  SessionContent content;
  PromptView prompt;
  std::vector<cache::NeededSpace> spaces;
};

// For the operator.
struct SessionStatus {
  ConnectionId connection{};
  std::string request_id;
  std::string model_name;
  std::size_t hit_chunks = 0;
  std::size_t pinned_objects = 0;
  std::uint64_t units_owed = 0;  // over all objects
  bool is_answered = false;
  bool is_orphaned = false;  // its connection is gone
  Duration time_left{};
};

struct SessionLimits {
  Duration read_ttl;         // of a session's locks, from its LOOKUP
  Duration reconnect_grace;  // a session outlives its connection by this much
  std::size_t sessions_max;  // beyond, the oldest is ended
};

class Sessions {
 public:
  Sessions(cache::CacheIndex& index, const SessionLimits& limits, const Clock& clock);
  Sessions(const Sessions&) = delete;
  Sessions& operator=(const Sessions&) = delete;
  ~Sessions() = default;

  // Replaces what this (connection, request id) had; its pins are given back.
  void begin(ConnectionId connection, const std::string& request_id, Finding finding);

  // A LOOKUP that found nothing, or could not be read: the answer is 0.
  void begin_empty(ConnectionId connection, const std::string& request_id);

  // The hit in chunks. consume: the answer is given once, then it is 0 (QUERY and WAIT; HITS only
  // looks). 0 when unknown.
  std::int64_t answer(ConnectionId connection, const std::string& request_id, bool consume);

  // Gives back the session's units of these chunks and ranks, never below 0. Nothing when the
  // content is another one.
  void free(ConnectionId connection,
            const std::string& request_id,
            const SessionContent& content,
            keys::ChunkRange chunks,
            std::uint32_t units);

  // nullopt when there was none.
  std::optional<Ended> end(ConnectionId connection, const std::string& request_id);

  // Pins of the whole reading out of a ledger, taking one unit of each object unless several
  // ledgers owe it; nullopt when none does, or only pins of what is known to have changed.
  std::optional<cache::ReadLease> take(const std::string& request_id, const Reading& reading);

  // The cache was cleared: answers not yet given become 0. What was promised already stays
  // retrievable.
  void forget_answers();

  // A session that begins on a connection that is not open (its LOOKUP took longer than its client
  // lived) ends like those of a closed one.
  void connection_opened(ConnectionId connection);
  void connection_closed(ConnectionId connection);

  // Ends sessions whose time ran out. Returns how many.
  std::size_t sweep();

  std::size_t count() const;
  std::size_t unanswered_count() const;
  std::vector<SessionStatus> status(std::size_t count_max) const;  // oldest first

 private:
  struct Session {
    ConnectionId connection{};
    std::string request_id;
    bool answered = false;
    Finding finding;
    std::vector<std::uint32_t> units;  // owed, as prefix.lease is ordered
    TimePoint until;
  };

  using List = std::list<Session>;  // oldest first

  // A connection: while it is open, and after that while sessions of it are left.
  struct Owner {
    std::size_t sessions = 0;
    std::optional<TimePoint> gone_since;
  };

  List::iterator find(ConnectionId connection, const std::string& request_id)
      LARDER_REQUIRES(mutex_);
  List::iterator find_for_question(ConnectionId connection, const std::string& request_id)
      LARDER_REQUIRES(mutex_);
  void insert(Session session, List& gone);
  void remove(List::iterator session, List& gone) LARDER_REQUIRES(mutex_);
  bool is_orphaned(const Session& session) const LARDER_REQUIRES(mutex_);

  struct Place {  // of one rank in one layout in a session's ledger
    std::size_t space;
    std::size_t rank;
  };

  void give_back(Session& session, std::size_t place, std::uint32_t units, cache::ReadLease& spent)
      LARDER_REQUIRES(mutex_);
  std::optional<Place> find_owed(const Session& session, const Reading& reading) const
      LARDER_REQUIRES(mutex_);
  bool owes(const Session& session, const Reading& reading, Place place) const
      LARDER_REQUIRES(mutex_);
  cache::ReadLease share_from(const Session& session, const Reading& reading, Place place)
      LARDER_REQUIRES(mutex_);
  void spend(Session& session, const Reading& reading, Place place, cache::ReadLease& spent)
      LARDER_REQUIRES(mutex_);

  cache::CacheIndex& index_;
  const SessionLimits limits_;
  const Clock& clock_;
  mutable Mutex mutex_;
  List sessions_ LARDER_GUARDED_BY(mutex_);
  std::unordered_multimap<std::string, List::iterator> by_request_ LARDER_GUARDED_BY(mutex_);
  std::unordered_map<ConnectionId, Owner, IdHash> owners_ LARDER_GUARDED_BY(mutex_);
  std::size_t unanswered_ LARDER_GUARDED_BY(mutex_) = 0;
};

}  // namespace larder::sessions
