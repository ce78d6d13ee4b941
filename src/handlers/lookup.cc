#include <algorithm>

#include "handlers/handlers.h"
#include "handlers/transfer.h"
#include "keys/object_key.h"

namespace larder::handlers {
namespace {

// Readers of one object are counted in lock units; the reference's lock counts no further.
constexpr std::int64_t kUnitsMax = 128;

// With MLA every tensor-parallel worker reads the same object. Newer clients say how many read;
// with older ones world_size is below tp_size then.
std::uint32_t units_of(const protocol::Key& key, std::int64_t tp_size) {
  if (key.names_readers) {
    return static_cast<std::uint32_t>(std::clamp<std::int64_t>(key.num_kv_readers, 1, kUnitsMax));
  }
  const std::int64_t tp = tp_size > 1 ? tp_size : key.world_size;
  return static_cast<std::uint32_t>(tp > key.world_size ? std::min(tp, kUnitsMax) : 1);
}

// Newer clients may hold back the end of a prompt; older ones always ask for all of it.
std::span<const std::uint32_t> asked_tokens(const protocol::Key& key) {
  const std::span<const std::uint32_t> tokens = key.token_ids;
  if (!key.names_readers || key.end >= static_cast<std::int64_t>(tokens.size())) {
    return tokens;
  }
  return tokens.first(static_cast<std::size_t>(std::max<std::int64_t>(key.end, 0)));
}

std::vector<std::uint32_t> ranks_of(const protocol::Key& key, std::uint32_t world_size) {
  std::vector<std::uint32_t> ranks;
  for (std::uint32_t worker = 0; worker < world_size; ++worker) {
    if (!key.worker_id.has_value() || *key.worker_id == worker) {
      ranks.push_back(keys::pack_kv_rank(world_size, worker));
    }
  }
  return ranks;
}

// What a hit must satisfy; empty when nothing may be promised.
std::vector<cache::NeededSpace> spaces_of(const Services& services, const protocol::Key& key) {
  std::vector<cache::NeededSpace> spaces;
  const sessions::RegisteredLayouts registered =
      services.instances.layouts_of(key.model_name, key.world_size);
  if (registered.refused) {
    return spaces;
  }
  for (std::size_t reader = 0; reader < registered.layouts.size(); ++reader) {
    const sessions::ObjectGroups& groups = registered.layouts[reader];
    for (std::size_t group = 0; group < groups.size(); ++group) {
      spaces.push_back({space_of(key, groups, group), groups[group].window_chunks, reader});
    }
  }
  return spaces;
}

bool can_hit(const protocol::Key& key, const std::vector<cache::NeededSpace>& spaces) {
  return !spaces.empty() && key.tokens_hashable && key.world_size >= 1 &&
         key.world_size <= keys::kWorldSizeMax;
}

}  // namespace

Result<None> on_lookup(Services& services,
                       const Caller& caller,
                       const protocol::LookupRequest& request) {
  const protocol::Key& key = request.key;
  if (key.names_readers && key.num_kv_readers < 1) {
    return Error{Code::kInvalid, fmt::format("{} readers of a lookup", key.num_kv_readers)};
  }
  const std::size_t chunk_tokens = services.settings.chunk_tokens;
  const std::span<const std::uint32_t> tokens = asked_tokens(key);
  const std::size_t requested_tokens = tokens.size() / chunk_tokens * chunk_tokens;
  const std::vector<cache::NeededSpace> spaces = spaces_of(services, key);
  if (!can_hit(key, spaces)) {
    if (spaces.empty()) {
      log::debug("lookup of model {} with world size {}: no instance is registered",
                 key.model_name,
                 key.world_size);
    }
    services.sessions.begin_empty(caller.connection, key.request_id);
    services.metrics.lookup_answered(key.model_name, key.cache_salt, requested_tokens, 0);
    return None{};
  }
  const auto world_size = static_cast<std::uint32_t>(key.world_size);
  const std::vector<std::uint32_t> ranks = ranks_of(key, world_size);
  sessions::Finding finding;
  finding.content = {key.model_name, key.cache_salt, ranks};
  finding.prompt = services.prompts.hash(key.request_id, tokens);
  finding.prefix = services.index.acquire_prefix(spaces, finding.prompt.hashes(), ranks);
  finding.spaces = spaces;
  finding.units = units_of(key, request.tp_size);
  services.metrics.lookup_answered(
      key.model_name, key.cache_salt, requested_tokens, finding.prefix.chunks * chunk_tokens);
  log::debug("lookup {}: {} of {} chunks",
             key.request_id,
             finding.prefix.chunks,
             finding.prompt.chunk_count());
  services.sessions.begin(caller.connection, key.request_id, std::move(finding));
  return None{};
}

void after_refused_lookup(Services& services,
                          const Caller& caller,
                          protocol::Frames frames,
                          protocol::Release) {
  if (frames.empty()) {
    return;
  }
  if (const std::optional<std::string> request_id = protocol::request_id_of_key(frames[0])) {
    services.sessions.begin_empty(caller.connection, *request_id);
  }
}

Result<std::optional<std::int64_t>> on_query_prefetch_status(
    Services& services, const Caller& caller, const protocol::SessionRequest& request) {
  return std::optional(services.sessions.answer(caller.connection, request.request_id, true));
}

// A lookup is finished when it is answered, so there is never anything to wait for.
Result<std::optional<std::int64_t>> on_wait_prefetch_status(Services& services,
                                                            const Caller& caller,
                                                            const protocol::WaitRequest& request) {
  return std::optional(services.sessions.answer(caller.connection, request.request_id, true));
}

Result<std::optional<std::int64_t>> on_query_prefetch_lookup_hits(
    Services& services, const Caller& caller, const protocol::SessionRequest& request) {
  return std::optional(services.sessions.answer(caller.connection, request.request_id, false));
}

Result<None> on_free_lookup_locks(Services& services,
                                  const Caller& caller,
                                  const protocol::FreeLookupLocksRequest& request) {
  const protocol::Key& key = request.key;
  if (key.world_size < 1 || key.world_size > keys::kWorldSizeMax) {
    return None{};
  }
  if (key.names_readers && key.num_kv_readers < 1) {
    return Error{Code::kInvalid, fmt::format("{} readers of a lookup", key.num_kv_readers)};
  }
  const sessions::SessionContent content{
      key.model_name, key.cache_salt, ranks_of(key, static_cast<std::uint32_t>(key.world_size))};
  std::vector<protocol::TokenRange> ranges{{key.start, key.end}};
  ranges.insert(ranges.end(), request.extra_ranges.begin(), request.extra_ranges.end());
  for (const protocol::TokenRange& range : ranges) {
    services.sessions.free(
        caller.connection,
        key.request_id,
        content,
        keys::chunks_within(
            key.token_ids.size(), range.start, range.end, services.settings.chunk_tokens),
        units_of(key, request.tp_size));
  }
  return None{};
}

Result<None> on_end_session(Services& services,
                            const Caller& caller,
                            const protocol::SessionRequest& request) {
  const std::optional<sessions::Ended> ended =
      services.sessions.end(caller.connection, request.request_id);
  if (ended.has_value()) {
    services.index.touch(ended->spaces, ended->prompt.hashes(), ended->content.kv_ranks);
  }
  return None{};
}

}  // namespace larder::handlers
