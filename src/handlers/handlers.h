// handlers.h - one function per operation; operations.cc ties them to names and numbers.
//
// A handler gets decoded arguments and returns a reply value or an Error; an Error becomes the
// operation's safe negative. Handlers run on the lane their row names: kWire handlers take
// microseconds and no contended lock; the others may hash, copy and wait for the pool. None throws.
#pragma once

#include <cstdint>
#include <optional>

#include "handlers/services.h"
#include "protocol/requests.h"
#include "protocol/responses.h"
#include "protocol/unserved_requests.h"

namespace larder::handlers {

using protocol::None;

// management.cc
Result<std::int64_t> on_get_chunk_size(Services&, const Caller&, const protocol::EmptyRequest&);
Result<std::int64_t> on_negotiate_chunk_size(Services&,
                                             const Caller&,
                                             const protocol::NegotiateRequest&);
Result<std::string_view> on_noop(Services&, const Caller&, const protocol::EmptyRequest&);
Result<bool> on_ping(Services&, const Caller&, const protocol::PingRequest&);
Result<None> on_clear(Services&, const Caller&, const protocol::ClearRequest&);
Result<None> on_report_block_allocation(Services&,
                                        const Caller&,
                                        const protocol::BlockAllocationRequest&);
Result<std::vector<std::string>> on_get_experimental(Services&,
                                                     const Caller&,
                                                     const protocol::EmptyRequest&);

Result<protocol::ModuleCallResponse> on_module_call(Services&,
                                                    const Caller&,
                                                    const protocol::ModuleCallRequest&);

void clear_cache(Services& services);  // what CLEAR and POST /cache/clear do

// registration.cc
Result<protocol::RegisterEngineDrivenResponse> on_register_engine_driven(
    Services&, const Caller&, const protocol::RegisterEngineDrivenRequest&);
void after_refused_engine_driven(Services& services,
                                 const Caller& caller,
                                 protocol::Frames frames,
                                 protocol::Release release);
Result<None> on_unregister_engine_driven(Services&,
                                         const Caller&,
                                         const protocol::InstanceRequest&);
// register_kv_cache.cc
Result<None> on_register_kv_cache(Services&,
                                  const Caller&,
                                  const protocol::RegisterKvCacheRequest&);
void after_refused_register(Services& services,
                            const Caller& caller,
                            protocol::Frames frames,
                            protocol::Release release);
Result<None> on_unregister_kv_cache(Services&, const Caller&, const protocol::InstanceRequest&);

// lookup.cc
Result<None> on_lookup(Services&, const Caller&, const protocol::LookupRequest&);
Result<std::optional<std::int64_t>> on_query_prefetch_status(Services&,
                                                             const Caller&,
                                                             const protocol::SessionRequest&);
Result<std::optional<std::int64_t>> on_wait_prefetch_status(Services&,
                                                            const Caller&,
                                                            const protocol::WaitRequest&);
Result<std::optional<std::int64_t>> on_query_prefetch_lookup_hits(Services&,
                                                                  const Caller&,
                                                                  const protocol::SessionRequest&);
Result<None> on_free_lookup_locks(Services&,
                                  const Caller&,
                                  const protocol::FreeLookupLocksRequest&);
Result<None> on_end_session(Services&, const Caller&, const protocol::SessionRequest&);
void after_refused_lookup(Services& services,
                          const Caller& caller,
                          protocol::Frames frames,
                          protocol::Release release);

// store.cc
Result<protocol::PrepareStoreResponse> on_prepare_store(Services&,
                                                        const Caller&,
                                                        const protocol::PrepareStoreRequest&);
Result<bool> on_commit_store(Services&, const Caller&, const protocol::CommitStoreRequest&);

// retrieve.cc
Result<protocol::PrepareRetrieveResponse> on_prepare_retrieve(Services&,
                                                              const Caller&,
                                                              const protocol::TransferRequest&);
Result<bool> on_commit_retrieve(Services&, const Caller&, const protocol::TransferRequest&);

// block_transfers.cc
Result<protocol::EventResult> on_store(Services&, const Caller&, const protocol::StoreRequest&);
Result<protocol::EventResult> on_store_q(Services&, const Caller&, const protocol::StoreRequest&);
Result<protocol::EventResult> on_retrieve(Services&,
                                          const Caller&,
                                          const protocol::RetrieveRequest&);

}  // namespace larder::handlers
