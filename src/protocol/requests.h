// requests.h - the decoded arguments of every operation.
//
// Each struct says with `payloads` what its frames are declared to be in a release, and has one
// `decode` that takes the frames and the release; a payload that changed between releases is
// decoded here and nowhere else. Decoding is pure and strict: it fails on a wrong count, type or
// trailing byte. Spans and string views point into the frames, which outlive the request.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/frames.h"
#include "protocol/key.h"
#include "protocol/payloads.h"

namespace larder::protocol {

// NEGOTIATE_CHUNK_SIZE.
struct NegotiateRequest {
  std::int64_t alignment_tokens = 0;  // the chunk size must be a multiple of it

  static Payloads payloads(Release release);
  static Result<NegotiateRequest> decode(Frames frames, Release release);
};

// SERVER_MODULE_CALL, SERVER_MODULE_AFFINITY_CALL.
struct ModuleCallRequest {
  std::string_view method;
  std::span<const std::byte> payload;

  static Payloads payloads(Release release);
  static Result<ModuleCallRequest> decode(Frames frames, Release release);
};

// GET_CHUNK_SIZE, NOOP, GET_EXPERIMENTAL.
struct EmptyRequest {
  static Payloads payloads(Release release);
  static Result<EmptyRequest> decode(Frames frames, Release release);
};

struct ClearRequest {
  bool force = true;  // before 0.5.6 there is no such payload and CLEAR always forces

  static Payloads payloads(Release release);
  static Result<ClearRequest> decode(Frames frames, Release release);
};

struct PingRequest {
  std::optional<std::uint64_t> instance_id;  // nullopt: a scheduler or a prober
  bool is_of_connection = false;             // before 0.5.0: speaks for whoever shares it

  static Payloads payloads(Release release);
  static Result<PingRequest> decode(Frames frames, Release release);
};

// UNREGISTER_*.
struct InstanceRequest {
  std::uint64_t instance_id = 0;

  static Payloads payloads(Release release);
  static Result<InstanceRequest> decode(Frames frames, Release release);
};

// QUERY_PREFETCH_STATUS, QUERY_PREFETCH_LOOKUP_HITS, END_SESSION.
struct SessionRequest {
  std::string request_id;

  static Payloads payloads(Release release);
  static Result<SessionRequest> decode(Frames frames, Release release);
};

struct WaitRequest {
  std::string request_id;
  double timeout_s = 0.0;  // as sent: may be negative, huge or NaN

  static Payloads payloads(Release release);
  static Result<WaitRequest> decode(Frames frames, Release release);
};

// LOOKUP, CB_UNIFIED_LOOKUP.
struct LookupRequest {
  Key key;
  std::int64_t tp_size = 0;  // says who will read up to 0.5.4; later the key does

  static Payloads payloads(Release release);
  static Result<LookupRequest> decode(Frames frames, Release release);
};

struct TokenRange {
  std::int64_t start = 0;
  std::int64_t end = 0;
};

struct FreeLookupLocksRequest {
  Key key;
  std::int64_t tp_size = 0;
  std::vector<TokenRange> extra_ranges;  // 0.5.7 and later: more ranges of the same prompt

  static Payloads payloads(Release release);
  static Result<FreeLookupLocksRequest> decode(Frames frames, Release release);
};

struct PrepareStoreRequest {
  Key key;
  std::uint64_t instance_id = 0;
  bool skips_chunks = false;  // 0.5.7 and later: some chunks of some KV group will not be stored

  static Payloads payloads(Release release);
  static Result<PrepareStoreRequest> decode(Frames frames, Release release);
};

// PREPARE_RETRIEVE, COMMIT_RETRIEVE.
struct TransferRequest {
  Key key;
  std::uint64_t instance_id = 0;

  static Payloads payloads(Release release);
  static Result<TransferRequest> decode(Frames frames, Release release);
};

struct CommitStoreRequest {
  Key key;
  std::uint64_t instance_id = 0;
  std::span<const std::byte> payload;  // empty: the client wrote into its slots

  static Payloads payloads(Release release);
  static Result<CommitStoreRequest> decode(Frames frames, Release release);
};

struct RegisterEngineDrivenRequest {
  std::uint64_t instance_id = 0;
  std::string model_name;
  std::int64_t world_size = 0;
  std::int64_t block_size = 0;
  std::int64_t num_layers = 0;
  std::int64_t hidden_dim_size = 0;
  std::string dtype_name;
  bool use_mla = false;                            // one plane instead of K and V
  std::optional<std::int64_t> num_physical_slots;  // tokens of an object; 0.5.5 and later
  std::size_t group_count = 0;                     // KV groups; 0.5.7 and later
  bool is_recurrent = false;                       // one of these keeps a state, not tokens
  bool can_map_pool = true;                        // 0.4.7 and later

  static Payloads payloads(Release release);
  static Result<RegisterEngineDrivenRequest> decode(Frames frames, Release release);
};

// Who registers, out of a registration that may otherwise be broken; nullopt when even that cannot
// be read.
struct RegistrationNames {
  std::uint64_t instance_id = 0;
  std::string model_name;
  std::int64_t world_size = 0;
};

std::optional<RegistrationNames> names_in_registration(Frame frame);

using BlockIds = std::vector<std::vector<std::int64_t>>;  // one list per KV group

struct StoreRequest {
  Key key;
  std::uint64_t instance_id = 0;
  BlockIds block_ids;
  bool has_one_list = false;  // before 0.4.7: one list, for all KV groups
  std::span<const std::byte> event_handle;
  bool has_no_refusal = false;  // a failure has no answer (refusals.h)

  static Payloads payloads(Release release);
  static Result<StoreRequest> decode(Frames frames, Release release);
};

struct RetrieveRequest {
  Key key;
  std::uint64_t instance_id = 0;
  BlockIds block_ids;
  bool has_one_list = false;
  std::span<const std::byte> event_handle;
  std::int64_t skip_first_n_tokens = 0;
  bool has_no_refusal = false;

  static Payloads payloads(Release release);
  static Result<RetrieveRequest> decode(Frames frames, Release release);
};

struct EngineGroup {
  std::int64_t engine_group_id = 0;
  std::vector<std::int64_t> layer_indices;
  std::int64_t tokens_per_block = 0;
  std::int64_t sliding_window_tokens = -1;  // -1: full attention
  std::int64_t object_group_tag = 0;        // 0.5.5 and later
  bool is_recurrent = false;                // 0.5.5 and later: blocks keep a state, not tokens
};

// What an engine says about its tensors beyond their shapes.
struct LayoutHints {
  std::string kv_layout;       // "NHD", "HND", from 0.5.5 on "BLHNC", "BLNHC"; "" when absent
  std::string kv_list_layout;  // 0.5.5 and later: "k_v", "unified"; "" when absent
  std::optional<std::int64_t> num_kv_heads;
  std::optional<std::int64_t> tokens_per_block;
  std::optional<std::int64_t> head_dim;
};

struct RegisterKvCacheRequest {
  std::uint64_t instance_id = 0;
  std::vector<std::span<const std::byte>> tensors;  // bodies of the Ext 1 descriptors
  std::string model_name;
  std::int64_t world_size = 0;
  std::string engine_type;
  LayoutHints hints;
  std::vector<EngineGroup> groups;  // 0.4.7 and later
  bool is_since_055 = false;        // its layout hint counts also without an accelerator

  static Payloads payloads(Release release);
  static Result<RegisterKvCacheRequest> decode(Frames frames, Release release);
};

struct BlockAllocationRequest {
  std::uint64_t instance_id = 0;
  std::string model_name;
  std::size_t record_count = 0;

  static Payloads payloads(Release release);
  static Result<BlockAllocationRequest> decode(Frames frames, Release release);
};

}  // namespace larder::protocol
