#include "handlers/operations.h"

#include <algorithm>

#include "codec/msgpack_reader.h"
#include "handlers/handlers.h"

namespace larder::handlers {
namespace {

using namespace protocol;  // NOLINT(google-build-using-namespace): the table reads better without
                           // prefixes
using transport::Lane;
using P = PayloadKind;

constexpr std::int16_t kNone = kAbsent;

// An operation frame; names are of tens of bytes. While a message arrives its operation is looked
// at before it is known to be short enough to be echoed.
constexpr std::size_t kOperationBytesMax = 256;

// Blend and peer-to-peer operations and the event stream are not served: their rows check the
// payloads and refuse. (To a subscription the refusal, two frames, is the orderly end of a stream.)
template <typename Reply, typename Request>
Result<Reply> on_unserved(Services&, const Caller&, const Request&) {
  return Error{Code::kUnsupported, "not served by this server"};
}

// clang-format off
constexpr auto kOperations = std::to_array<Operation>({
    //                                                                                          0.4.5  0.4.6  0.4.7  0.5.0-1 0.5.2  0.5.3-4 0.5.5  0.5.6    0.5.7rc3
    op<&on_register_kv_cache, &refuse_with_none, &after_refused_register>("REGISTER_KV_CACHE",   {1,     1,     1,     1,      1,     1,      1,     1,       1}, Lane::kTransfer),
    op<&on_unregister_kv_cache, &refuse_with_none>("UNREGISTER_KV_CACHE",                        {2,     2,     2,     2,      2,     2,      2,     2,       2}, Lane::kTransfer),
    op<&on_unserved<None, RegisterKvCacheRequest>, &refuse_with_none>("REGISTER_Q_CACHE",        {kNone, kNone, kNone, kNone,  kNone, 3,      3,     3,       3}, Lane::kLookup),
    op<&on_unserved<None, InstanceRequest>, &refuse_with_none>("UNREGISTER_Q_CACHE",             {kNone, kNone, kNone, kNone,  kNone, 4,      4,     4,       4}, Lane::kLookup),
    op<&on_store_q, &refuse_store>("STORE_Q",                                                    {kNone, kNone, kNone, kNone,  kNone, 5,      5,     5,       5}, Lane::kTransfer),
    op<&on_store, &refuse_store>("STORE",                                                        {3,     3,     3,     3,      3,     6,      6,     6,       6}, Lane::kTransfer),
    op<&on_retrieve, &refuse_store>("RETRIEVE",                                                  {4,     4,     4,     4,      4,     7,      7,     7,       7}, Lane::kTransfer),
    op<&on_lookup, &refuse_with_none, &after_refused_lookup>("LOOKUP",                           {5,     5,     5,     5,      5,     8,      8,     8,       8}, Lane::kLookup),
    op<&on_query_prefetch_status, &refuse_with_zero>("QUERY_PREFETCH_STATUS",                    {6,     6,     6,     6,      6,     9,      9,     9,       9}, Lane::kLookup),
    op<&on_wait_prefetch_status, &refuse_with_zero>("WAIT_PREFETCH_STATUS",                      {kNone, kNone, kNone, 7,      7,     10,     10,    10,      10}, Lane::kLookup),
    op<&on_query_prefetch_lookup_hits, &refuse_with_zero>("QUERY_PREFETCH_LOOKUP_HITS",          {7,     7,     7,     8,      8,     11,     11,    kNone,   kNone}, Lane::kLookup),
    op<&on_free_lookup_locks, &refuse_with_none>("FREE_LOOKUP_LOCKS",                            {8,     8,     8,     9,      9,     12,     12,    12,      12}, Lane::kLookup),
    op<&on_end_session, &refuse_with_none>("END_SESSION",                                        {9,     9,     9,     10,     10,    13,     13,    13,      13}, Lane::kLookup),
    op<&on_register_engine_driven, &refuse_register, &after_refused_engine_driven>("REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT",  {kNone, 10,    10,    11,     11,    14,     14,    14,      14}, Lane::kLookup),
    op<&on_unregister_engine_driven, &refuse_with_none>("UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT", {kNone, kNone, 11,    12,     12,    15,     15,    15,      15}, Lane::kLookup),
    op<&on_prepare_store, &refuse_prepare_store>("PREPARE_STORE",                                {kNone, 11,    12,    13,     13,    16,     16,    16,      16}, Lane::kTransfer),
    op<&on_commit_store, &refuse_with_false>("COMMIT_STORE",                                     {kNone, 12,    13,    14,     14,    17,     17,    17,      17}, Lane::kTransfer),
    op<&on_prepare_retrieve, &refuse_prepare_retrieve>("PREPARE_RETRIEVE",                       {kNone, 13,    14,    15,     15,    18,     18,    18,      18}, Lane::kTransfer),
    op<&on_commit_retrieve, &refuse_with_true>("COMMIT_RETRIEVE",                                {kNone, 14,    15,    16,     16,    19,     19,    19,      19}, Lane::kTransfer),
    op<&on_clear, &refuse_with_none>("CLEAR",                                                    {10,    15,    16,    17,     17,    20,     20,    20,      20}, Lane::kLookup),
    op<&on_get_chunk_size, &refuse_with_none>("GET_CHUNK_SIZE",                                  {11,    16,    17,    18,     18,    21,     21,    21,      21}, Lane::kWire),
    op<&on_negotiate_chunk_size, &refuse_with_none>("NEGOTIATE_CHUNK_SIZE",                      {kNone, kNone, kNone, kNone,  kNone, kNone,  kNone, kNone,   kByName}, Lane::kWire),
    op<&on_ping, &refuse_with_true>("PING",                                                      {12,    17,    18,    19,     19,    22,     22,    22,      22}, Lane::kWire),
    op<&on_report_block_allocation, &refuse_with_none>("REPORT_BLOCK_ALLOCATION",                {13,    18,    19,    20,     20,    23,     23,    23,      23}, Lane::kLookup),
    op<&on_noop, &refuse_with_none>("NOOP",                                                      {14,    19,    20,    21,     21,    24,     24,    24,      24}, Lane::kWire),
    op<&on_get_experimental, &refuse_with_empty_list>("GET_EXPERIMENTAL",                        {kNone, kNone, kNone, kNone,  kNone, 40,     32,    32,      32}, Lane::kWire),
    op<&on_unserved<None, Shape<P::kInt, P::kString, P::kInt, P::kInt>>, &refuse_with_none>("SUBSCRIBE_KV_EVENTS", {kNone, kNone, kNone, kNone,  kNone, kNone,  kNone, kByName, kByName}, Lane::kLookup),
    op<&on_module_call, &refuse_module_call>("SERVER_MODULE_CALL",                               {kNone, kNone, kNone, kNone,  kNone, kNone,  kNone, kByName, kByName}, Lane::kLookup),
    op<&on_module_call, &refuse_module_call>("SERVER_MODULE_AFFINITY_CALL",                      {kNone, kNone, kNone, kNone,  kNone, kNone,  kNone, kNone,   kByName}, Lane::kLookup),
    op<&on_unserved<None, Shape<P::kInt, P::kTensors, P::kString, P::kInt>>, &refuse_with_none>("CB_REGISTER_KV_CACHE", {15,    20,    21,    22,     22,    25,     kNone, kNone,   kNone}, Lane::kLookup),
    op<&on_unserved<None, Shape<P::kInt>>, &refuse_with_none>("CB_UNREGISTER_KV_CACHE",          {16,    21,    22,    23,     23,    26,     kNone, kNone,   kNone}, Lane::kLookup),
    op<&on_unserved<EventResult, Shape<P::kKey, P::kInt, P::kInt, P::kBinary>>, &refuse_store>("CB_STORE_PRE_COMPUTED", {17,    22,    23,    24,     24,    27,     kNone, kNone,   kNone}, Lane::kTransfer),
    op<&on_unserved<TokenSpans, Shape<P::kKey>>, &refuse_with_empty_list>("CB_LOOKUP_PRE_COMPUTED_V1", {18,    23,    24,    25,     25,    28,     kNone, kNone,   kNone}, Lane::kLookup),
    op<&on_unserved<EventResult, Shape<P::kKey, P::kTokenSpans, P::kInt, P::kInt, P::kBinary>>, &refuse_last_event>("CB_RETRIEVE_PRE_COMPUTED_V1", {19,    24,    25,    26,     26,    29,     kNone, kNone,   kNone}, Lane::kTransfer),
    op<&on_unserved<EventResult, Shape<P::kKey, P::kInt, P::kInt, P::kBinary>>, &refuse_store>("CB_STORE_FINAL", {20,    25,    26,    27,     27,    30,     kNone, kNone,   kNone}, Lane::kTransfer),
    op<&on_unserved<std::vector<BlendMatch>, Shape<P::kKey>>, &refuse_with_empty_list>("CB_LOOKUP_PRE_COMPUTED_V2", {21,    26,    27,    28,     28,    31,     kNone, kNone,   kNone}, Lane::kLookup),
    op<&on_unserved<EventResult, Shape<P::kKey, P::kMatches, P::kInt, P::kInt, P::kBinary>>, &refuse_last_event>("CB_RETRIEVE_PRE_COMPUTED_V2", {22,    27,    28,    29,     29,    32,     kNone, kNone,   kNone}, Lane::kTransfer),
    op<&on_unserved<None, RegisterRopeRequest>, &refuse_with_none>("CB_REGISTER_ROPE",           {kNone, kNone, 29,    30,     30,    33,     25,    25,      25}, Lane::kLookup),
    op<&on_unserved<None, Shape<P::kInt>>, &refuse_with_none>("CB_UNREGISTER_ROPE",              {kNone, kNone, 30,    31,     31,    34,     26,    26,      26}, Lane::kLookup),
    op<&on_unserved<EventResult, BlendRetrieveRequest>, &refuse_last_event>("CB_RETRIEVE_PRE_COMPUTED", {kNone, kNone, 31,    32,     32,    35,     27,    27,      27}, Lane::kTransfer),
    op<&on_unserved<std::optional<BlendUnifiedLookupResponse>, LookupRequest>, &refuse_unified_lookup>("CB_UNIFIED_LOOKUP", {kNone, kNone, 32,    33,     33,    36,     28,    28,      28}, Lane::kLookup),
    op<&on_unserved<HandshakeResponse, Shape<P::kInt>>, &refuse_handshake>("CB_PROTOCOL_HANDSHAKE", {kNone, kNone, kNone, kNone,  kNone, kNone,  33,    33,      33}, Lane::kWire),
    op<&on_unserved<IntList, Shape<P::kKey, P::kInt, P::kInt>>, &refuse_with_empty_list>("CB_REORDER_PLAN", {kNone, kNone, kNone, kNone,  kNone, kNone,  kNone, kByName, kByName}, Lane::kLookup),
    op<&on_unserved<std::int64_t, PeerLookupRequest>, &refuse_peer_lookup>("P2P_LOOKUP_AND_LOCK", {kNone, kNone, kNone, 34,     34,    37,     29,    29,      29}, Lane::kLookup),
    op<&on_unserved<std::optional<std::vector<PeerAddress>>, Shape<P::kInt>>, &refuse_peer_results>("P2P_QUERY_LOOKUP_RESULTS", {kNone, kNone, kNone, 35,     35,    38,     30,    30,      30}, Lane::kLookup),
    op<&on_unserved<None, Shape<P::kPeerKeys>>, &refuse_with_none>("P2P_UNLOCK_OBJECTS",         {kNone, kNone, kNone, 36,     36,    39,     31,    31,      31}, Lane::kLookup),
});

// clang-format on

// No other row has this row's number in the release.
consteval bool is_unique(std::size_t row, std::size_t column) {
  const std::int16_t id = kOperations[row].ids[column];
  for (std::size_t other = 0; other < kOperations.size(); ++other) {
    if (other != row && id >= 0 && id == kOperations[other].ids[column]) {
      return false;
    }
  }
  return true;
}

consteval bool wire_ids_are_unique() {
  for (std::size_t column = 0; column < kReleaseCount; ++column) {
    for (std::size_t row = 0; row < kOperations.size(); ++row) {
      if (!is_unique(row, column)) {
        return false;
      }
    }
  }
  return true;
}

consteval bool names_are_unique_and_used() {
  for (std::size_t row = 0; row < kOperations.size(); ++row) {
    bool is_used = false;
    for (const std::int16_t id : kOperations[row].ids) {
      is_used = is_used || id != kAbsent;
    }
    if (!is_used) {
      return false;
    }
    for (std::size_t other = row + 1; other < kOperations.size(); ++other) {
      if (kOperations[row].name == kOperations[other].name) {
        return false;
      }
    }
  }
  return true;
}

constexpr std::int64_t kNumbersEnd = 64;  // above every number in use
constexpr std::uint8_t kNoRow = 0xFF;

using RowsOfRelease = std::array<std::uint8_t, static_cast<std::size_t>(kNumbersEnd)>;

consteval std::array<RowsOfRelease, kReleaseCount> rows_of_numbers() {
  std::array<RowsOfRelease, kReleaseCount> rows{};
  for (std::size_t column = 0; column < kReleaseCount; ++column) {
    rows[column].fill(kNoRow);
    for (std::size_t row = 0; row < kOperations.size(); ++row) {
      const std::int16_t id = kOperations[row].ids[column];
      if (id >= 0) {
        rows[column].at(static_cast<std::size_t>(id)) = static_cast<std::uint8_t>(row);
      }
    }
  }
  return rows;
}

constexpr std::array<RowsOfRelease, kReleaseCount> kRowOfNumber = rows_of_numbers();

bool is_lower_case_of(std::string_view lower, std::string_view upper) {
  return std::equal(lower.begin(), lower.end(), upper.begin(), upper.end(), [](char l, char u) {
    return l == (u >= 'A' && u <= 'Z' ? static_cast<char>(u - 'A' + 'a') : u);
  });
}

static_assert(kOperations.size() < kNoRow);
static_assert(wire_ids_are_unique());
static_assert(names_are_unique_and_used());

}  // namespace

std::span<const Operation> operations() {
  return kOperations;
}

const Operation* find_operation(const OperationId& id, Release release) {
  if (const auto* const number = std::get_if<std::int64_t>(&id)) {
    const bool is_in_table = *number >= 0 && *number < kNumbersEnd;
    const std::uint8_t row =
        is_in_table ? kRowOfNumber[column_of(release)][static_cast<std::size_t>(*number)] : kNoRow;
    return row == kNoRow ? nullptr : &kOperations[row];
  }
  if (release < Release::k056) {
    return nullptr;
  }
  const auto name = std::get<std::string_view>(id);
  const auto* const found =
      std::find_if(kOperations.begin(), kOperations.end(), [&](const Operation& operation) {
        return operation.ids[column_of(release)] != kAbsent &&
               is_lower_case_of(name, operation.name);
      });
  return found == kOperations.end() ? nullptr : found;
}

Result<OperationId> read_operation_id(protocol::Frame frame) {
  if (frame.size() > kOperationBytesMax) {
    return Error{Code::kTooLarge, "longer than any operation"};
  }
  codec::MsgpackReader reader(frame);
  const Result<codec::MsgpackType> type = reader.peek();
  if (!type) {
    return type.error();
  }
  Result<OperationId> id = Error{Code::kMalformed, "neither a number nor a name"};
  if (*type == codec::MsgpackType::kString) {
    const Result<std::string_view> name = reader.read_string();
    id = name ? Result<OperationId>(*name) : name.error();
  } else if (*type == codec::MsgpackType::kInt) {
    const Result<std::int64_t> number = reader.read_int64();
    id = number ? Result<OperationId>(*number) : number.error();
  }
  if (id && !reader.at_end()) {
    return Error{Code::kMalformed, "bytes after the operation"};
  }
  return id;
}

}  // namespace larder::handlers
