// Golden frames: what the real clients sent decodes to the arguments their callers gave, and the
// real server's reply values encode to the very bytes it sent, for every recorded release. The
// arguments are compared as JSON.
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "protocol/golden_json.h"
#include "protocol/requests.h"
#include "protocol/responses.h"
#include "protocol/unserved_requests.h"

namespace larder::protocol {
namespace {

using golden::Json;
using golden::plain;
using golden::to_hex;
using K = PayloadKind;

struct Vector {
  std::string version;
  Release release;
  Json content;

  std::string operation() const { return golden::row_name(content["op"], release); }
};

std::vector<Vector> vectors_of(const std::string& version) {
  std::vector<Vector> vectors;
  const Json fixture = golden::load_version(version);
  for (const Json& vector : fixture["vectors"]) {
    vectors.push_back({version, *release_of_version(version), vector});
  }
  return vectors;
}

Json describe(const Key& key) {
  Json described{
      {"model_name", key.model_name},
      {"world_size", key.world_size},
      {"worker_id", nullptr},
      {"start", key.start},
      {"end", key.end},
      {"request_id", key.request_id},
      {"cache_salt", key.cache_salt},
  };
  if (key.worker_id.has_value()) {
    described["worker_id"] = *key.worker_id;
  }
  described["token_ids"] = key.tokens_hashable ? Json(key.token_ids) : Json("unhashable");
  if (key.names_readers) {
    described["num_kv_readers"] = key.num_kv_readers;
  }
  return described;
}

Json describe(const EmptyRequest&) {
  return Json::array();
}

Json describe(const ClearRequest& request) {
  return Json::array({request.force});
}

Json describe(const NegotiateRequest& request) {
  return Json::array({request.alignment_tokens});
}

Json describe(const ModuleCallRequest& request) {
  return Json::array({Json{{"method", request.method}, {"payload", to_hex(request.payload)}}});
}

Json describe(const FreeLookupLocksRequest& request) {
  Json ranges = Json::array();
  for (const TokenRange& range : request.extra_ranges) {
    ranges.push_back(Json::array({range.start, range.end}));
  }
  return Json::array({describe(request.key), request.tp_size, ranges});
}

Json describe(const PrepareStoreRequest& request) {
  return Json::array({describe(request.key), request.instance_id, request.skips_chunks});
}

Json describe(const PingRequest& request) {
  return Json::array(
      {request.instance_id.has_value() ? Json(*request.instance_id) : Json(nullptr)});
}

Json describe(const InstanceRequest& request) {
  return Json::array({request.instance_id});
}

Json describe(const SessionRequest& request) {
  return Json::array({request.request_id});
}

Json describe(const WaitRequest& request) {
  return Json::array({request.request_id, request.timeout_s});
}

Json describe(const LookupRequest& request) {
  return Json::array({describe(request.key), request.tp_size});
}

Json describe(const TransferRequest& request) {
  return Json::array({describe(request.key), request.instance_id});
}

Json describe(const CommitStoreRequest& request) {
  return Json::array({describe(request.key), request.instance_id, to_hex(request.payload)});
}

Json describe(const StoreRequest& request) {
  return Json::array({describe(request.key),
                      request.instance_id,
                      request.block_ids,
                      to_hex(request.event_handle)});
}

Json describe(const RetrieveRequest& request) {
  return Json::array({describe(request.key),
                      request.instance_id,
                      request.block_ids,
                      to_hex(request.event_handle),
                      request.skip_first_n_tokens});
}

Json describe(const RegisterEngineDrivenRequest& request) {
  return Json::array({Json{
      {"instance_id", request.instance_id},
      {"model_name", request.model_name},
      {"world_size", request.world_size},
      {"block_size", request.block_size},
      {"num_layers", request.num_layers},
      {"hidden_dim_size", request.hidden_dim_size},
      {"dtype_str", request.dtype_name},
      {"use_mla", request.use_mla},
      {"num_physical_slots",
       request.num_physical_slots ? Json(*request.num_physical_slots) : Json(nullptr)},
      {"group_layouts", request.group_count},
  }});
}

Json describe(const LayoutHints& hints) {
  Json described = Json::object();
  if (!hints.kv_layout.empty()) {
    described["kv_layout"] = hints.kv_layout;
  }
  if (!hints.kv_list_layout.empty()) {
    described["kv_list_layout"] = hints.kv_list_layout;
  }
  if (hints.num_kv_heads) {
    described["num_kv_heads"] = *hints.num_kv_heads;
  }
  if (hints.tokens_per_block) {
    described["tokens_per_block"] = *hints.tokens_per_block;
  }
  if (hints.head_dim) {
    described["head_dim"] = *hints.head_dim;
  }
  return described;
}

Json describe(const RegisterKvCacheRequest& request) {
  Json tensors = Json::array();
  for (const auto& body : request.tensors) {
    tensors.push_back(to_hex(body));
  }
  Json groups = Json::array();
  for (const EngineGroup& group : request.groups) {
    groups.push_back({{"engine_group_id", group.engine_group_id},
                      {"layer_indices", group.layer_indices},
                      {"tokens_per_block", group.tokens_per_block},
                      {"sw_size_tokens", group.sliding_window_tokens},
                      {"extra_object_group_tag", group.object_group_tag},
                      {"recurrent_state", group.is_recurrent}});
  }
  return Json::array({request.instance_id,
                      tensors,
                      request.model_name,
                      request.world_size,
                      request.engine_type,
                      describe(request.hints),
                      groups});
}

Json describe(const BlockAllocationRequest& request) {
  return Json::array({request.instance_id, request.model_name, request.record_count});
}

template <typename Declared>
Json describe(const Unserved<Declared>&) {
  return "shape";
}

using Decode = std::function<Result<Json>(Frames, Release)>;

template <typename Request>
Result<Json> decode_as(Frames frames, Release release) {
  const Result<Request> request = Request::decode(frames, release);
  return request ? Result<Json>(describe(*request)) : request.error();
}

const std::map<std::string, Decode>& decoders() {
  static const std::map<std::string, Decode> kDecoders{
      {"GET_CHUNK_SIZE", decode_as<EmptyRequest>},
      {"NOOP", decode_as<EmptyRequest>},
      {"CLEAR", decode_as<ClearRequest>},
      {"PING", decode_as<PingRequest>},
      {"LOOKUP", decode_as<LookupRequest>},
      {"FREE_LOOKUP_LOCKS", decode_as<FreeLookupLocksRequest>},
      {"QUERY_PREFETCH_STATUS", decode_as<SessionRequest>},
      {"QUERY_PREFETCH_LOOKUP_HITS", decode_as<SessionRequest>},
      {"WAIT_PREFETCH_STATUS", decode_as<WaitRequest>},
      {"END_SESSION", decode_as<SessionRequest>},
      {"STORE", decode_as<StoreRequest>},
      {"RETRIEVE", decode_as<RetrieveRequest>},
      {"REGISTER_KV_CACHE", decode_as<RegisterKvCacheRequest>},
      {"UNREGISTER_KV_CACHE", decode_as<InstanceRequest>},
      {"REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT", decode_as<RegisterEngineDrivenRequest>},
      {"UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT", decode_as<InstanceRequest>},
      {"PREPARE_STORE", decode_as<PrepareStoreRequest>},
      {"COMMIT_STORE", decode_as<CommitStoreRequest>},
      {"PREPARE_RETRIEVE", decode_as<TransferRequest>},
      {"COMMIT_RETRIEVE", decode_as<TransferRequest>},
      {"REPORT_BLOCK_ALLOCATION", decode_as<BlockAllocationRequest>},
      {"CB_REGISTER_KV_CACHE", decode_as<Shape<K::kInt, K::kTensors, K::kString, K::kInt>>},
      {"CB_UNREGISTER_KV_CACHE", decode_as<Shape<K::kInt>>},
      {"CB_STORE_PRE_COMPUTED", decode_as<Shape<K::kKey, K::kInt, K::kInt, K::kBinary>>},
      {"CB_STORE_FINAL", decode_as<Shape<K::kKey, K::kInt, K::kInt, K::kBinary>>},
      {"CB_LOOKUP_PRE_COMPUTED_V1", decode_as<Shape<K::kKey>>},
      {"CB_LOOKUP_PRE_COMPUTED_V2", decode_as<Shape<K::kKey>>},
      {"CB_RETRIEVE_PRE_COMPUTED_V1",
       decode_as<Shape<K::kKey, K::kTokenSpans, K::kInt, K::kInt, K::kBinary>>},
      {"CB_RETRIEVE_PRE_COMPUTED_V2",
       decode_as<Shape<K::kKey, K::kMatches, K::kInt, K::kInt, K::kBinary>>},
      {"CB_RETRIEVE_PRE_COMPUTED", decode_as<BlendRetrieveRequest>},
      {"CB_REGISTER_ROPE", decode_as<RegisterRopeRequest>},
      {"CB_UNREGISTER_ROPE", decode_as<Shape<K::kInt>>},
      {"CB_PROTOCOL_HANDSHAKE", decode_as<Shape<K::kInt>>},
      {"CB_REORDER_PLAN", decode_as<Shape<K::kKey, K::kInt, K::kInt>>},
      {"SUBSCRIBE_KV_EVENTS", decode_as<Shape<K::kInt, K::kString, K::kInt, K::kInt>>},
      {"SERVER_MODULE_CALL", decode_as<ModuleCallRequest>},
      {"SERVER_MODULE_AFFINITY_CALL", decode_as<ModuleCallRequest>},
      {"NEGOTIATE_CHUNK_SIZE", decode_as<NegotiateRequest>},
      {"GET_EXPERIMENTAL", decode_as<EmptyRequest>},
      {"REGISTER_Q_CACHE", decode_as<RegisterKvCacheRequest>},
      {"UNREGISTER_Q_CACHE", decode_as<InstanceRequest>},
      {"STORE_Q", decode_as<StoreRequest>},
      {"CB_UNIFIED_LOOKUP", decode_as<LookupRequest>},
      {"P2P_LOOKUP_AND_LOCK", decode_as<PeerLookupRequest>},
      {"P2P_QUERY_LOOKUP_RESULTS", decode_as<Shape<K::kInt>>},
      {"P2P_UNLOCK_OBJECTS", decode_as<Shape<K::kPeerKeys>>},
  };
  return kDecoders;
}

bool has_unhashable_token(const Json& tokens) {
  return std::any_of(tokens.begin(), tokens.end(), [](const Json& token) {
    return token.is_number_unsigned() ? token.get<std::uint64_t>() > 0xFFFFFFFFU
                                      : token.get<std::int64_t>() < 0;
  });
}

std::vector<std::uint32_t> unpacked(const std::string& hex) {
  const std::vector<std::byte> bytes = golden::from_hex(hex);
  std::vector<std::uint32_t> tokens;
  for (std::size_t i = 0; i < bytes.size(); i += 4) {
    std::uint32_t token = 0;
    for (std::size_t byte = i; byte < i + 4; ++byte) {
      token = token << 8U | std::to_integer<std::uint32_t>(bytes[byte]);
    }
    tokens.push_back(token);
  }
  return tokens;
}

void make_plain_key(Json& key) {
  key.erase("request_configs");
  if (key.contains("token_bytes")) {
    key["token_ids"] = unpacked(key["token_bytes"]);
    key.erase("token_bytes");
  }
  if (has_unhashable_token(key["token_ids"])) {
    key["token_ids"] = "unhashable";
  }
}

// What the decoded request keeps of arguments whose details it does not need, and of payloads that
// older releases do not have.
void reduce(const Vector& vector, Json& arguments) {
  const std::string operation = vector.operation();
  if (operation == "REGISTER_KV_CACHE" || operation == "REGISTER_Q_CACHE") {
    if (arguments.size() == 6) {
      arguments.push_back(Json::array());
    }
    for (Json& group : arguments[6]) {
      group.emplace("extra_object_group_tag", 0);
      group.emplace("recurrent_state", false);
    }
  } else if (operation == "REPORT_BLOCK_ALLOCATION") {
    arguments[2] = arguments[2].size();
  } else if (operation == "REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT") {
    arguments[0]["group_layouts"] = arguments[0].value("group_layouts", Json::array()).size();
    arguments[0].emplace("num_physical_slots", nullptr);
  } else if (operation == "FREE_LOOKUP_LOCKS" && arguments.size() == 2) {
    arguments.push_back(Json::array());
  } else if (operation == "PREPARE_STORE") {
    const bool skips = arguments.size() == 3 && !arguments[2].empty();
    arguments[2] = skips;
  } else if ((operation == "STORE" || operation == "RETRIEVE") && vector.release < Release::k047) {
    arguments[2] = Json::array({arguments[2]});
  } else if (operation == "CLEAR" && arguments.empty()) {
    arguments.push_back(true);  // before there was a choice
  } else if (operation == "PING" && arguments.empty()) {
    arguments.push_back(nullptr);
  }
}

// The arguments as the caller gave them, with what the wire cannot tell apart made equal.
Json expected_arguments(const Vector& vector) {
  Json arguments = plain(vector.content["args"]);
  for (Json& argument : arguments) {
    const bool is_for_int = argument.is_boolean() && vector.operation() != "CLEAR";
    if (is_for_int) {
      argument = argument.get<bool>() ? 1 : 0;  // coerced by the client
    } else if (vector.operation() == "CLEAR" && argument.is_number()) {
      argument = argument != 0;
    }
    if (argument.is_object() && argument.contains("request_id")) {
      make_plain_key(argument);
    }
  }
  reduce(vector, arguments);
  return arguments;
}

std::vector<BlendMatch> matches_of(const Json& values) {
  std::vector<BlendMatch> matches;
  for (const Json& value : values) {
    BlendMatch& match = matches.emplace_back();
    match.old_start = value["old_st"];
    match.old_end = value["old_ed"];
    match.current_start = value["cur_st"];
    match.current_end = value["cur_ed"];
    const std::vector<std::byte> hash = golden::from_hex(value["hash"]);
    match.hash.assign(hash.begin(), hash.end());
  }
  return matches;
}

// Keeps the shapes that slot descriptors point to.
class SlotBuilder {
 public:
  std::vector<SlotDescriptor> build(const Json& slots) {
    shapes_.clear();
    shapes_.reserve(slots.size());
    dtypes_.reserve(slots.size());
    std::vector<SlotDescriptor> built;
    for (const Json& slot : slots) {
      shapes_.push_back(slot["shape"]);
      dtypes_.push_back(slot["dtype"]);
      built.push_back({slot["offset"], slot["length"], shapes_.back(), dtypes_.back()});
    }
    return built;
  }

 private:
  std::vector<std::vector<std::int64_t>> shapes_;
  std::vector<std::string> dtypes_;
};

EncodedReply encode_prepared_store(const Json& value, Release release) {
  SlotBuilder slots;
  PrepareStoreResponse response;
  const Json& context = value["context"];
  response.empty_context = context.empty();
  if (!context.empty()) {
    response.slots = slots.build(context["slots"]);
    response.chunk_indices = context["chunk_indices"].get<std::vector<std::int64_t>>();
  }
  return encode_reply(response, release);
}

EncodedReply encode_prepared_retrieve(const Json& value, Release release) {
  SlotBuilder slots;
  PrepareRetrieveResponse response;
  response.success = value["success"];
  // Its first byte is the head, its last the tail, and what is between is lent in two pieces.
  const auto payload = std::make_shared<std::vector<std::byte>>(golden::from_hex(value["data"]));
  const std::span<const std::byte> bytes(*payload);
  if (bytes.size() > 2) {
    const std::span<const std::byte> inner = bytes.subspan(1, bytes.size() - 2);
    response.payload = {{bytes.front()},
                        {inner.first(inner.size() / 2), inner.subspan(inner.size() / 2)},
                        {bytes.back()},
                        payload};
  } else {
    response.payload.head.assign(bytes.begin(), bytes.end());
  }
  if (value["context"].contains("slots")) {
    response.slots = slots.build(value["context"]["slots"]);
  }
  return encode_reply(response, release);
}

EncodedReply encode_event(const Json& value, Release release) {
  EventResult result;
  const std::vector<std::byte> handle = golden::from_hex(value[0]);
  result.event_handle.assign(handle.begin(), handle.end());
  result.success = value[1];
  return encode_reply(result, release);
}

EncodedReply encode_module_call(const Json& value, Release release) {
  const std::vector<std::byte> payload = golden::from_hex(value["payload"]);
  const std::string error = value["error"];
  return encode_reply(ModuleCallResponse{value["success"], payload, error}, release);
}

EncodedReply encode_object(const Json& value, Release release) {
  if (value.contains("error")) {
    return encode_module_call(value, release);
  }
  if (value.contains("shm_name")) {
    return encode_reply(RegisterEngineDrivenResponse{value["shm_name"], value["pool_size"]},
                        release);
  }
  if (value.contains("success")) {
    return encode_prepared_retrieve(value, release);
  }
  if (value.contains("context")) {
    return encode_prepared_store(value, release);
  }
  BlendUnifiedLookupResponse response;
  response.prefix_coverage_tokens = value["prefix_coverage_tokens"];
  response.non_prefix_segments = matches_of(value["non_prefix_segments"]);
  response.segmented_prefix_segments =
      matches_of(value.value("segmented_prefix_segments", Json::array()));
  return encode_reply(response, release);
}

EncodedReply encode_array(const Json& value, Release release) {
  if (value.size() == 2 && value[0].is_string() && value[1].is_boolean()) {
    return encode_event(value, release);
  }
  if (value.size() == 2 && value[0].is_number() && value[1].is_boolean()) {
    return encode_reply(HandshakeResponse{value[0], value[1]}, release);
  }
  if (!value.empty() && value[0].is_number()) {
    return encode_reply(value.get<IntList>(), release);
  }
  if (!value.empty() && value[0].is_string()) {
    return encode_reply(value.get<std::vector<std::string>>(), release);
  }
  if (!value.empty() && value[0].is_array()) {
    return encode_reply(value.get<TokenSpans>(), release);
  }
  if (!value.empty() && value[0].contains("offset")) {
    std::vector<PeerAddress> addresses;
    for (const Json& address : value) {
      addresses.push_back({address["offset"], address["size"]});
    }
    return encode_reply(addresses, release);
  }
  return encode_reply(matches_of(value), release);
}

EncodedReply encode_value(const Json& value, Release release) {
  if (value.is_null()) {
    return encode_reply(None{}, release);
  }
  if (value.is_boolean()) {
    return encode_reply(value.get<bool>(), release);
  }
  if (value.is_number_integer()) {
    return encode_reply(value.get<std::int64_t>(), release);
  }
  if (value.is_string()) {
    return encode_reply(std::string_view(value.get_ref<const std::string&>()), release);
  }
  return value.is_array() ? encode_array(value, release) : encode_object(value, release);
}

class GoldenFrames : public testing::TestWithParam<std::string> {
 protected:
  std::vector<Vector> vectors() const { return vectors_of(GetParam()); }
};

TEST_P(GoldenFrames, RequestsDecodeToTheirArguments) {
  for (const Vector& vector : vectors()) {
    SCOPED_TRACE(vector.content["id"]);
    const std::string operation = vector.operation();
    ASSERT_TRUE(decoders().contains(operation)) << operation;
    const golden::RecordedFrames frames(vector.content["request"]);
    const Result<Json> arguments = decoders().at(operation)(frames.payloads(), vector.release);
    if (vector.content["response"].is_null()) {
      EXPECT_FALSE(arguments.has_value()) << "the release's own server did not take it";
      continue;
    }
    ASSERT_TRUE(arguments.has_value()) << arguments.error().detail;
    if (*arguments != Json("shape")) {
      EXPECT_EQ(*arguments, expected_arguments(vector));
    }
  }
}

std::ptrdiff_t offset_of_lent(const EncodedReply& reply) {
  return static_cast<std::ptrdiff_t>(reply.lent_at);
}

TEST_P(GoldenFrames, ReplyValuesEncodeToTheRecordedBytes) {
  for (const Vector& vector : vectors()) {
    SCOPED_TRACE(vector.content["id"]);
    const Json& response = vector.content["response"];
    if (response.is_null()) {
      continue;  // the reference did not answer
    }
    const EncodedReply reply =
        encode_value(plain(vector.content["response_value"]), vector.release);
    ASSERT_EQ(reply.has_value, response.size() == 3);
    if (reply.has_value) {
      codec::Bytes whole(reply.value.begin(), reply.value.begin() + offset_of_lent(reply));
      for (const std::span<const std::byte> lent : reply.lent) {
        whole.insert(whole.end(), lent.begin(), lent.end());
      }
      whole.insert(whole.end(), reply.value.begin() + offset_of_lent(reply), reply.value.end());
      EXPECT_EQ(to_hex(whole), response[2].get<std::string>());
    }
  }
}

void expect_no_prefix_decodes(const Decode& decode,
                              Release release,
                              const golden::RecordedFrames& recorded,
                              std::size_t cut) {
  std::vector<Frame> frames(recorded.payloads().begin(), recorded.payloads().end());
  const Frame whole = frames[cut];
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    // A copy of exactly these bytes, so that reading past them is caught by the sanitizer.
    const std::vector<std::byte> shorter(whole.begin(),
                                         whole.begin() + static_cast<std::ptrdiff_t>(bytes));
    frames[cut] = shorter;
    EXPECT_FALSE(decode(frames, release).has_value()) << "payload " << cut << " cut to " << bytes;
  }
}

// A payload cut short at any byte is an error: never a crash, never a shorter argument.
TEST_P(GoldenFrames, RequestsCutShortDoNotDecode) {
  for (const Vector& vector : vectors()) {
    SCOPED_TRACE(vector.content["id"]);
    const golden::RecordedFrames recorded(vector.content["request"]);
    for (std::size_t cut = 0; cut < recorded.payloads().size(); ++cut) {
      expect_no_prefix_decodes(decoders().at(vector.operation()), vector.release, recorded, cut);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Recorded,
                         GoldenFrames,
                         testing::ValuesIn(golden::recorded_versions()),
                         golden::name_of_version);

}  // namespace
}  // namespace larder::protocol
