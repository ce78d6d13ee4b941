// STORE and RETRIEVE: this server copies blocks between an engine's memory and objects.
#include <algorithm>
#include <memory>
#include <unordered_set>

#include "devices/devices.h"
#include "geometry/block_lists.h"
#include "handlers/handlers.h"
#include "handlers/transfer.h"

namespace larder::handlers {
namespace {

using devices::CopyJob;
using devices::Direction;
using devices::EngineMemory;
using protocol::EventResult;

// A block that holds nothing: vLLM gives it in place of blocks that slid out of a window, and of
// recurrent states that it does not keep.
constexpr std::int64_t kNullBlock = 0;

// The blocks of one request.
struct BlockTransfer {
  Transfer transfer;
  geometry::BlockIds block_ids;

  const sessions::Registration& registration() const { return transfer.instance->registration; }

  const geometry::CachePlan& plan() const { return registration().memory->plan(); }
};

template <typename Request>
Result<BlockTransfer> resolve_blocks(Services& services,
                                     const Caller& caller,
                                     const Request& request) {
  Result<Transfer> transfer =
      resolve_transfer(services, caller, request.key, request.instance_id, CopiedBy::kServer);
  if (!transfer) {
    return transfer.error();
  }
  BlockTransfer blocks{std::move(*transfer), request.block_ids};
  if (Result<void> known = blocks.registration().memory->check_event(request.event_handle);
      !known) {
    return known.error();
  }
  const std::size_t groups = blocks.plan().kernel_groups.size();
  if (request.has_one_list && blocks.block_ids.size() == 1) {
    blocks.block_ids.resize(groups, request.block_ids.front());
  }
  const Result<void> checked =
      geometry::check_block_lists(blocks.plan(), blocks.block_ids, blocks.transfer.range.count());
  return checked ? Result<BlockTransfer>(std::move(blocks)) : checked.error();
}

EventResult event_result(const devices::EventHandle& event, bool success) {
  EventResult result;
  result.event_handle.assign(event.begin(), event.end());
  result.success = success;
  return result;
}

// The negative that the client can live with. The operation's own refusal is one, except for a
// client that opens whatever event comes back: it gets a real one, or, where there is none, no
// answer, and learns from its PINGs that the cache is no use to it.
template <typename Request>
Result<EventResult> refuse(Services& services,
                           std::string_view operation,
                           const Request& request,
                           const Error& why) {
  if (!request.has_no_refusal) {
    return why;
  }
  if (const auto event = services.devices.completed_event(request.event_handle)) {
    services.metrics.refused(operation, why);
    return event_result(*event, false);
  }
  services.instances.turn_away(sessions::InstanceId{request.instance_id});
  return why;
}

// The chunks of which one object group holds no data: they must not be stored under their tokens'
// name.
std::unordered_set<keys::ObjectId, keys::ObjectIdHash> vacant_chunks(const BlockTransfer& blocks,
                                                                     std::size_t object_group) {
  std::unordered_set<keys::ObjectId, keys::ObjectIdHash> vacant;
  const Transfer& transfer = blocks.transfer;
  const geometry::CachePlan& plan = blocks.plan();
  const geometry::ObjectGroup& group = plan.object_groups[object_group];
  for (std::size_t chunk = 0; group.may_be_vacant && chunk < transfer.range.count(); ++chunk) {
    if (geometry::uses_block(plan, group, blocks.block_ids, chunk, kNullBlock)) {
      vacant.insert(
          {transfer.objects.hashes[transfer.range.begin + chunk], transfer.objects.kv_rank});
    }
  }
  return vacant;
}

// Memory for one object group's chunks that are not stored yet; without room for any, an empty
// lease.
Result<cache::WriteLease> reserve(Services& services,
                                  const BlockTransfer& blocks,
                                  const protocol::Key& key,
                                  std::size_t object_group) {
  const Transfer& transfer = blocks.transfer;
  const auto vacant = vacant_chunks(blocks, object_group);
  Result<cache::WriteLease> lease =
      services.index.reserve(space_of(key, blocks.registration().groups, object_group),
                             transfer.objects,
                             [&vacant](const keys::ObjectId& id) { return vacant.contains(id); });
  if (!lease && lease.error().code == Code::kNoSpace) {
    services.metrics.no_room(key.model_name, transfer.range.count());
    return cache::WriteLease();
  }
  if (lease && lease->size() < lease->missing()) {
    services.metrics.no_room(key.model_name, lease->missing() - lease->size());
  }
  return lease;
}

// What a copy needs until it is done.
struct StoreUnderWay {
  std::shared_ptr<EngineMemory> memory;
  std::vector<cache::WriteLease> leases;  // one an object group
};

struct RetrieveUnderWay {
  std::shared_ptr<EngineMemory> memory;
  std::vector<cache::ReadLease> leases;
};

Result<void> reserve_all(Services& services,
                         const BlockTransfer& blocks,
                         const protocol::Key& key,
                         StoreUnderWay& store,
                         CopyJob& job) {
  const std::size_t groups = blocks.registration().groups.size();
  for (std::size_t group = 0; group < groups; ++group) {
    Result<cache::WriteLease> lease = reserve(services, blocks, key, group);
    if (!lease) {
      return lease.error();
    }
    for (std::size_t i = 0; i < lease->size(); ++i) {
      job.objects.push_back({static_cast<std::uint32_t>(group),
                             lease->chunk(i) - blocks.transfer.range.begin,
                             lease->slot(i).bytes()});
    }
    store.leases.push_back(std::move(*lease));
  }
  return {};
}

// Pins what the request reads: of a window only the last chunks. All of it, or kNotFound; kMismatch
// when some of it has changed.
Result<void> pin_all(Services& services,
                     const BlockTransfer& blocks,
                     const protocol::Key& key,
                     RetrieveUnderWay& retrieve,
                     CopyJob& job) {
  const Transfer& transfer = blocks.transfer;
  const sessions::ObjectGroups& groups = blocks.registration().groups;
  for (std::size_t group = 0; group < groups.size(); ++group) {
    const std::size_t chunks = transfer.range.count();
    const std::size_t needed =
        std::min<std::size_t>(groups[group].window_chunks.value_or(chunks), chunks);
    const std::size_t first = transfer.range.end - needed;
    const cache::KeySpace space = space_of(key, groups, group);
    Result<cache::ReadLease> lease = pin_intact(
        services, key, space, {transfer.objects.hashes, first, transfer.objects.kv_rank});
    if (!lease) {
      return lease.error();
    }
    for (std::size_t i = 0; i < needed; ++i) {
      job.objects.push_back(
          {static_cast<std::uint32_t>(group), first - transfer.range.begin + i, lease->bytes(i)});
    }
    retrieve.leases.push_back(std::move(*lease));
  }
  return {};
}

std::vector<std::size_t> skipped_ids(const Services& services,
                                     const BlockTransfer& blocks,
                                     std::int64_t skip_tokens) {
  std::vector<std::size_t> skipped;
  const std::uint32_t chunk_tokens = services.settings.chunk_tokens;
  const std::uint64_t tokens =
      std::min<std::uint64_t>(static_cast<std::uint64_t>(std::max<std::int64_t>(skip_tokens, 0)),
                              blocks.transfer.range.count() * chunk_tokens);
  for (const geometry::KernelGroup& group : blocks.plan().kernel_groups) {
    skipped.push_back(geometry::ids_to_skip(group, tokens));
  }
  return skipped;
}

// The copies begin; without any there is nothing to wait for.
EventResult start(EngineMemory& memory, CopyJob job) {
  if (job.objects.empty()) {
    return event_result(memory.completed_event(), true);
  }
  const EngineMemory::Started started = memory.start(std::move(job));
  return event_result(started.event, started.started);
}

}  // namespace

// True says that nothing went wrong, also when there was no room or everything was stored already.
Result<EventResult> on_store(Services& services,
                             const Caller& caller,
                             const protocol::StoreRequest& request) {
  Result<BlockTransfer> blocks = resolve_blocks(services, caller, request);
  if (!blocks) {
    return refuse(services, "STORE", request, blocks.error());
  }
  const auto store = std::make_shared<StoreUnderWay>();
  store->memory = blocks->registration().memory;
  CopyJob job;
  if (Result<void> reserved = reserve_all(services, *blocks, request.key, *store, job); !reserved) {
    return refuse(services, "STORE", request, reserved.error());
  }
  job.direction = Direction::kStore;
  job.block_ids = std::move(blocks->block_ids);
  job.engine_event.assign(request.event_handle.begin(), request.event_handle.end());
  job.done = [store](bool copied) {
    for (cache::WriteLease& lease : store->leases) {
      if (copied && !lease.empty()) {
        lease.commit();
      }
    }
    store->leases.clear();
  };
  return start(*store->memory, std::move(job));
}

Result<EventResult> on_retrieve(Services& services,
                                const Caller& caller,
                                const protocol::RetrieveRequest& request) {
  Result<BlockTransfer> blocks = resolve_blocks(services, caller, request);
  if (!blocks) {
    return refuse(services, "RETRIEVE", request, blocks.error());
  }
  const auto retrieve = std::make_shared<RetrieveUnderWay>();
  retrieve->memory = blocks->registration().memory;
  const Transfer& transfer = blocks->transfer;
  CopyJob job;
  if (transfer.range.count() > 0) {
    if (Result<void> pinned = pin_all(services, *blocks, request.key, *retrieve, job); !pinned) {
      services.metrics.read_failed(
          request.key.model_name, transfer.range.count(), pinned.error().code);
      log::debug("retrieve {}: {}", request.key.request_id, pinned.error().detail);
      return event_result(retrieve->memory->completed_event(), false);
    }
  }
  job.direction = Direction::kRetrieve;
  job.skipped_ids = skipped_ids(services, *blocks, request.skip_first_n_tokens);
  job.block_ids = std::move(blocks->block_ids);
  job.engine_event.assign(request.event_handle.begin(), request.event_handle.end());
  job.done = [retrieve](bool) { retrieve->leases.clear(); };
  const EventResult result = start(*retrieve->memory, std::move(job));
  if (result.success && transfer.range.count() > 0) {
    services.metrics.chunks_loaded(
        transfer.worker, request.key.model_name, request.key.cache_salt, transfer.range.count());
  }
  return result;
}

// The query cache of 0.5.3 and later is not kept.
Result<EventResult> on_store_q(Services& services,
                               const Caller&,
                               const protocol::StoreRequest& request) {
  return refuse(services, "STORE_Q", request, Error{Code::kUnsupported, "queries are not stored"});
}

}  // namespace larder::handlers
