#include "sessions/sessions.h"

#include <algorithm>

#include "base/check.h"

namespace larder::sessions {
namespace {

// Where a pin stands in the lease of a finding.
std::size_t place_of(const Finding& finding,
                     std::size_t space,
                     std::size_t chunk,
                     std::size_t rank) {
  return (space * finding.prefix.chunks + chunk) * finding.content.kv_ranks.size() + rank;
}

std::optional<std::size_t> position_of(const std::vector<std::uint32_t>& kv_ranks,
                                       std::uint32_t kv_rank) {
  const auto found = std::find(kv_ranks.begin(), kv_ranks.end(), kv_rank);
  return found == kv_ranks.end()
             ? std::nullopt
             : std::optional(static_cast<std::size_t>(found - kv_ranks.begin()));
}

}  // namespace

Sessions::Sessions(cache::CacheIndex& index, const SessionLimits& limits, const Clock& clock)
    : index_(index), limits_(limits), clock_(clock) {}

void Sessions::begin(ConnectionId connection, const std::string& request_id, Finding finding) {
  Session session;
  session.connection = connection;
  session.request_id = request_id;
  session.units.resize(finding.prefix.lease.size());
  for (std::size_t place = 0; place < session.units.size(); ++place) {
    session.units[place] = finding.prefix.lease.holds(place) ? finding.units : 0;
  }
  session.finding = std::move(finding);
  List gone;
  insert(std::move(session), gone);
}

void Sessions::begin_empty(ConnectionId connection, const std::string& request_id) {
  Session session;
  session.connection = connection;
  session.request_id = request_id;
  List gone;
  insert(std::move(session), gone);
}

std::int64_t Sessions::answer(ConnectionId connection,
                              const std::string& request_id,
                              bool consume) {
  const MutexLock lock(mutex_);
  const auto session = find_for_question(connection, request_id);
  if (session == sessions_.end() || session->answered) {
    return 0;
  }
  if (consume) {
    session->answered = true;
    --unanswered_;
  }
  return static_cast<std::int64_t>(session->finding.prefix.chunks);
}

void Sessions::free(ConnectionId connection,
                    const std::string& request_id,
                    const SessionContent& content,
                    keys::ChunkRange chunks,
                    std::uint32_t units) {
  cache::ReadLease spent;  // given back outside the mutex
  const MutexLock lock(mutex_);
  const auto session = find(connection, request_id);
  if (session == sessions_.end()) {
    return;
  }
  const Finding& finding = session->finding;
  if (finding.content.model_name != content.model_name ||
      finding.content.cache_salt != content.cache_salt) {
    return;
  }
  const std::size_t end = std::min(chunks.end, finding.prefix.chunks);
  for (const std::uint32_t kv_rank : content.kv_ranks) {
    const std::optional<std::size_t> rank = position_of(finding.content.kv_ranks, kv_rank);
    for (std::size_t space = 0; rank.has_value() && space < finding.spaces.size(); ++space) {
      for (std::size_t chunk = chunks.begin; chunk < end; ++chunk) {
        give_back(*session, place_of(finding, space, chunk, *rank), units, spent);
      }
    }
  }
}

std::optional<Ended> Sessions::end(ConnectionId connection, const std::string& request_id) {
  List gone;
  const MutexLock lock(mutex_);
  const auto session = find(connection, request_id);
  if (session == sessions_.end()) {
    return std::nullopt;
  }
  remove(session, gone);
  const Finding& finding = gone.front().finding;
  return Ended{finding.content, finding.prompt, finding.spaces};
}

std::optional<cache::ReadLease> Sessions::take(const std::string& request_id,
                                               const Reading& reading) {
  cache::ReadLease spent;
  const MutexLock lock(mutex_);
  std::vector<std::pair<Session*, Place>> owing;
  const auto [first, last] = by_request_.equal_range(request_id);
  for (auto entry = first; entry != last; ++entry) {
    if (const std::optional<Place> place = find_owed(*entry->second, reading)) {
      owing.emplace_back(&*entry->second, *place);
    }
  }
  if (owing.empty()) {
    return std::nullopt;
  }
  const auto [session, place] = owing.front();
  cache::ReadLease taken = share_from(*session, reading, place);
  if (owing.size() == 1) {
    spend(*session, reading, place, spent);
  }
  return taken;
}

void Sessions::forget_answers() {
  List gone;
  const MutexLock lock(mutex_);
  for (auto session = sessions_.begin(); session != sessions_.end();) {
    const auto next = std::next(session);
    if (!session->answered) {
      remove(session, gone);
    }
    session = next;
  }
}

void Sessions::connection_opened(ConnectionId connection) {
  const MutexLock lock(mutex_);
  owners_.try_emplace(connection);
}

void Sessions::connection_closed(ConnectionId connection) {
  const MutexLock lock(mutex_);
  const auto owner = owners_.find(connection);
  if (owner == owners_.end()) {
    return;
  }
  if (owner->second.sessions == 0) {
    owners_.erase(owner);
  } else {
    owner->second.gone_since = clock_.now();
  }
}

std::size_t Sessions::sweep() {
  const TimePoint now = clock_.now();
  List gone;
  const MutexLock lock(mutex_);
  // All have the same lifetime, so the oldest are the first to go.
  while (!sessions_.empty() && sessions_.front().until <= now) {
    remove(sessions_.begin(), gone);
  }
  const bool any_gone = std::any_of(owners_.begin(), owners_.end(), [](const auto& owner) {
    return owner.second.gone_since.has_value();
  });
  for (auto session = any_gone ? sessions_.begin() : sessions_.end(); session != sessions_.end();) {
    const auto next = std::next(session);
    const std::optional<TimePoint> gone_since = owners_.at(session->connection).gone_since;
    if (gone_since.has_value() && now - *gone_since > limits_.reconnect_grace) {
      remove(session, gone);
    }
    session = next;
  }
  return gone.size();
}

std::size_t Sessions::count() const {
  const MutexLock lock(mutex_);
  return sessions_.size();
}

std::vector<SessionStatus> Sessions::status(std::size_t count_max) const {
  const TimePoint now = clock_.now();
  std::vector<SessionStatus> all;
  const MutexLock lock(mutex_);
  for (const Session& session : sessions_) {
    if (all.size() == count_max) {
      break;
    }
    SessionStatus status{session.connection,
                         session.request_id,
                         session.finding.content.model_name,
                         session.finding.prefix.chunks,
                         0,
                         0,
                         session.answered,
                         is_orphaned(session),
                         session.until - now};
    for (std::size_t place = 0; place < session.units.size(); ++place) {
      status.units_owed += session.units[place];
      status.pinned_objects += session.finding.prefix.lease.holds(place) ? 1U : 0U;
    }
    all.push_back(std::move(status));
  }
  return all;
}

std::size_t Sessions::unanswered_count() const {
  const MutexLock lock(mutex_);
  return unanswered_;
}

Sessions::List::iterator Sessions::find(ConnectionId connection, const std::string& request_id) {
  const auto [first, last] = by_request_.equal_range(request_id);
  auto orphan = sessions_.end();
  for (auto entry = first; entry != last; ++entry) {
    if (entry->second->connection == connection) {
      return entry->second;
    }
    if (is_orphaned(*entry->second)) {
      orphan = entry->second;
    }
  }
  return orphan;
}

Sessions::List::iterator Sessions::find_for_question(ConnectionId connection,
                                                     const std::string& request_id) {
  const auto found = find(connection, request_id);
  if (found != sessions_.end()) {
    return found;
  }
  const auto [first, last] = by_request_.equal_range(request_id);
  return first != last && std::next(first) == last ? first->second : sessions_.end();
}

void Sessions::insert(Session session, List& gone) {
  session.until = clock_.now() + limits_.read_ttl;
  const MutexLock lock(mutex_);
  const auto [first, last] = by_request_.equal_range(session.request_id);
  const auto before = std::find_if(first, last, [&session](const auto& entry) {
    return entry.second->connection == session.connection;
  });
  if (before != last) {
    remove(before->second, gone);
  }
  while (sessions_.size() >= limits_.sessions_max) {
    remove(sessions_.begin(), gone);
  }
  const auto [owner, is_new] = owners_.try_emplace(session.connection);
  ++owner->second.sessions;
  if (is_new) {
    owner->second.gone_since = clock_.now();
  }
  sessions_.push_back(std::move(session));
  by_request_.emplace(sessions_.back().request_id, std::prev(sessions_.end()));
  ++unanswered_;
}

void Sessions::remove(List::iterator session, List& gone) {
  const auto [first, last] = by_request_.equal_range(session->request_id);
  const auto entry =
      std::find_if(first, last, [session](const auto& named) { return named.second == session; });
  LARDER_CHECK(entry != last);
  by_request_.erase(entry);
  if (!session->answered) {
    --unanswered_;
  }
  const auto owner = owners_.find(session->connection);
  if (--owner->second.sessions == 0 && owner->second.gone_since.has_value()) {
    owners_.erase(owner);
  }
  gone.splice(gone.end(), sessions_, session);
}

bool Sessions::is_orphaned(const Session& session) const {
  return owners_.at(session.connection).gone_since.has_value();
}

void Sessions::give_back(Session& session,
                         std::size_t place,
                         std::uint32_t units,
                         cache::ReadLease& spent) {
  std::uint32_t& owed = session.units[place];
  owed -= std::min(owed, units);
  if (owed == 0 && session.finding.prefix.lease.holds(place)) {
    session.finding.prefix.lease.move_to(place, spent);
  }
}

std::optional<Sessions::Place> Sessions::find_owed(const Session& session,
                                                   const Reading& reading) const {
  const Finding& finding = session.finding;
  const std::size_t end = reading.hashes.size();
  const std::optional<std::size_t> rank = position_of(finding.content.kv_ranks, reading.kv_rank);
  if (!rank.has_value() || end == 0 || end > finding.prefix.chunks) {
    return std::nullopt;
  }
  // One hash stands for all tokens before it.
  if (finding.prompt.hashes()[end - 1] != reading.hashes[end - 1]) {
    return std::nullopt;
  }
  for (std::size_t space = 0; space < finding.spaces.size(); ++space) {
    if (finding.spaces[space].space == reading.space &&
        owes(session, reading, Place{space, *rank})) {
      return Place{space, *rank};
    }
  }
  return std::nullopt;
}

bool Sessions::owes(const Session& session, const Reading& reading, Place place) const {
  for (std::size_t chunk = reading.first_chunk; chunk < reading.hashes.size(); ++chunk) {
    const std::size_t position = place_of(session.finding, place.space, chunk, place.rank);
    if (session.units[position] == 0 || session.finding.prefix.lease.is_corrupted(position)) {
      return false;
    }
  }
  return true;
}

cache::ReadLease Sessions::share_from(const Session& session, const Reading& reading, Place place) {
  const Finding& finding = session.finding;
  std::vector<std::size_t> pins;
  for (std::size_t chunk = reading.first_chunk; chunk < reading.hashes.size(); ++chunk) {
    pins.push_back(place_of(finding, place.space, chunk, place.rank));
  }
  return index_.share(finding.prefix.lease, pins);
}

void Sessions::spend(Session& session,
                     const Reading& reading,
                     Place place,
                     cache::ReadLease& spent) {
  const Finding& finding = session.finding;
  // The reader is known by the space it reads, so its rank needs no promise in those of others. In
  // one that two kinds of engine have it could be either.
  const auto same_space = [&reading](const cache::NeededSpace& needed) {
    return needed.space == reading.space;
  };
  const bool is_known =
      std::count_if(finding.spaces.begin(), finding.spaces.end(), same_space) == 1;
  const std::size_t reader = finding.spaces[place.space].reader;
  for (std::size_t space = 0; space < finding.spaces.size(); ++space) {
    const bool is_of_others = is_known && finding.spaces[space].reader != reader;
    const std::uint32_t units = space == place.space ? 1 : is_of_others ? finding.units : 0;
    for (std::size_t chunk = reading.first_chunk; chunk < reading.hashes.size(); ++chunk) {
      give_back(session, place_of(finding, space, chunk, place.rank), units, spent);
    }
  }
}

}  // namespace larder::sessions
