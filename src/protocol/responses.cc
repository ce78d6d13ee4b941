#include "protocol/responses.h"

namespace larder::protocol {
namespace {

using codec::MsgpackWriter;

void write_slots(MsgpackWriter& writer, const std::vector<SlotDescriptor>& slots) {
  writer.write_string("slots");
  writer.write_array_header(slots.size());
  for (const SlotDescriptor& slot : slots) {
    writer.write_map_header(4);
    writer.write_string("offset");
    writer.write_uint(slot.offset);
    writer.write_string("length");
    writer.write_uint(slot.length);
    writer.write_string("shape");
    writer.write_array_header(slot.shape.size());
    for (const std::int64_t dimension : slot.shape) {
      writer.write_int(dimension);
    }
    writer.write_string("dtype");
    writer.write_string(slot.dtype);
  }
}

void write_matches(MsgpackWriter& writer, const std::vector<BlendMatch>& matches) {
  writer.write_array_header(matches.size());
  for (const BlendMatch& match : matches) {
    writer.write_map_header(5);
    writer.write_string("old_st");
    writer.write_int(match.old_start);
    writer.write_string("old_ed");
    writer.write_int(match.old_end);
    writer.write_string("cur_st");
    writer.write_int(match.current_start);
    writer.write_string("cur_ed");
    writer.write_int(match.current_end);
    writer.write_string("hash");
    writer.write_binary(match.hash);
  }
}

}  // namespace

void encode(MsgpackWriter& writer, bool value, Release) {
  writer.write_bool(value);
}

void encode(MsgpackWriter& writer, std::int64_t value, Release) {
  writer.write_int(value);
}

void encode(MsgpackWriter& writer, std::string_view value, Release) {
  writer.write_string(value);
}

void encode(MsgpackWriter& writer, const std::vector<std::string>& value, Release) {
  writer.write_array_header(value.size());
  for (const std::string& text : value) {
    writer.write_string(text);
  }
}

void encode(MsgpackWriter& writer, const RegisterEngineDrivenResponse& value, Release release) {
  const bool has_null_block = release >= Release::k057rc3;
  writer.write_map_header(has_null_block ? 3 : 2);
  writer.write_string("shm_name");
  writer.write_string(value.shm_name);
  writer.write_string("pool_size");
  writer.write_uint(value.pool_bytes);
  if (has_null_block) {
    writer.write_string("null_block_id");
    writer.write_int(0);
  }
}

void encode(MsgpackWriter& writer, const PrepareStoreResponse& value, Release) {
  writer.write_map_header(1);
  writer.write_string("context");
  if (value.empty_context) {
    writer.write_map_header(0);
    return;
  }
  writer.write_map_header(2);
  write_slots(writer, value.slots);
  writer.write_string("chunk_indices");
  writer.write_array_header(value.chunk_indices.size());
  for (const std::int64_t index : value.chunk_indices) {
    writer.write_int(index);
  }
}

void encode(MsgpackWriter& writer, const EventResult& value, Release) {
  writer.write_array_header(2);
  writer.write_binary(value.event_handle);
  writer.write_bool(value.success);
}

void encode(MsgpackWriter& writer, const std::vector<BlendMatch>& value, Release) {
  write_matches(writer, value);
}

void encode(MsgpackWriter& writer, const TokenSpans& value, Release) {
  writer.write_array_header(value.size());
  for (const auto& [start, end] : value) {
    writer.write_array_header(2);
    writer.write_int(start);
    writer.write_int(end);
  }
}

void encode(MsgpackWriter& writer, const BlendUnifiedLookupResponse& value, Release release) {
  const bool has_segmented = release >= Release::k050;
  writer.write_map_header(has_segmented ? 3 : 2);
  writer.write_string("prefix_coverage_tokens");
  writer.write_int(value.prefix_coverage_tokens);
  writer.write_string("non_prefix_segments");
  write_matches(writer, value.non_prefix_segments);
  if (has_segmented) {
    writer.write_string("segmented_prefix_segments");
    write_matches(writer, value.segmented_prefix_segments);
  }
}

void encode(MsgpackWriter& writer, const std::vector<PeerAddress>& value, Release) {
  writer.write_array_header(value.size());
  for (const PeerAddress& address : value) {
    writer.write_map_header(2);
    writer.write_string("offset");
    writer.write_int(address.offset);
    writer.write_string("size");
    writer.write_int(address.size);
  }
}

void encode(MsgpackWriter& writer, const ModuleCallResponse& value, Release) {
  writer.write_map_header(3);
  writer.write_string("success");
  writer.write_bool(value.success);
  writer.write_string("payload");
  writer.write_binary(value.payload);
  writer.write_string("error");
  writer.write_string(value.error);
}

void encode(MsgpackWriter& writer, const HandshakeResponse& value, Release) {
  writer.write_array_header(2);
  writer.write_int(value.version);
  writer.write_bool(value.is_compatible);
}

void encode(MsgpackWriter& writer, const IntList& value, Release) {
  writer.write_array_header(value.size());
  for (const std::int64_t number : value) {
    writer.write_int(number);
  }
}

std::size_t LentPayload::byte_count() const {
  std::size_t bytes = head.size() + tail.size();
  for (const std::span<const std::byte> object : objects) {
    bytes += object.size();
  }
  return bytes;
}

EncodedReply encode_reply(const PrepareRetrieveResponse& value, Release) {
  EncodedReply reply;
  reply.has_value = true;
  MsgpackWriter writer(reply.value);
  writer.write_map_header(3);
  writer.write_string("success");
  writer.write_bool(value.success);
  writer.write_string("data");
  const LentPayload& payload = value.payload;
  writer.write_binary_header(payload.byte_count());
  reply.value.insert(reply.value.end(), payload.head.begin(), payload.head.end());
  reply.lent = payload.objects;
  reply.lent_at = reply.value.size();
  reply.lent_owner = payload.owner;
  reply.value.insert(reply.value.end(), payload.tail.begin(), payload.tail.end());
  writer.write_string("context");
  writer.write_map_header(value.slots.has_value() ? 1 : 0);
  if (value.slots.has_value()) {
    write_slots(writer, *value.slots);
  }
  return reply;
}

EncodedReply encode_reply(const RegisterEngineDrivenResponse& value, Release release) {
  EncodedReply reply;
  reply.has_value = release >= Release::k047;
  if (reply.has_value) {
    MsgpackWriter writer(reply.value);
    encode(writer, value, release);
  }
  return reply;
}

std::string_view text_of(ReplyOf<None>, Release) {
  return "none";
}

std::string_view text_of(ReplyOf<bool>, Release) {
  return "bool";
}

std::string_view text_of(ReplyOf<std::int64_t>, Release) {
  return "int";
}

std::string_view text_of(ReplyOf<std::optional<std::int64_t>>, Release) {
  return "int or none";
}

std::string_view text_of(ReplyOf<std::string_view>, Release) {
  return "str";
}

std::string_view text_of(ReplyOf<std::vector<std::string>>, Release) {
  return "[str]";
}

std::string_view text_of(ReplyOf<RegisterEngineDrivenResponse>, Release release) {
  if (release < Release::k047) {
    return "none";
  }
  return release < Release::k057rc3 ? "{shm_name, pool_size}"
                                    : "{shm_name, pool_size, null_block_id}";
}

std::string_view text_of(ReplyOf<PrepareStoreResponse>, Release) {
  return "{context: {slots, chunk_indices}}";
}

std::string_view text_of(ReplyOf<PrepareRetrieveResponse>, Release) {
  return "{success, data, context: {slots}}";
}

std::string_view text_of(ReplyOf<EventResult>, Release) {
  return "[bin, bool]";
}

std::string_view text_of(ReplyOf<std::vector<BlendMatch>>, Release) {
  return "[CBMatchResult]";
}

std::string_view text_of(ReplyOf<TokenSpans>, Release) {
  return "[[int, int]]";
}

std::string_view text_of(ReplyOf<std::optional<BlendUnifiedLookupResponse>>, Release release) {
  return release < Release::k050 ? "{prefix_coverage_tokens, non_prefix_segments} or none"
                                 : "{prefix_coverage_tokens, non_prefix_segments, "
                                   "segmented_prefix_segments} or none";
}

std::string_view text_of(ReplyOf<std::optional<std::vector<PeerAddress>>>, Release) {
  return "[{offset, size}] or none";
}

std::string_view text_of(ReplyOf<ModuleCallResponse>, Release) {
  return "{success, payload, error}";
}

std::string_view text_of(ReplyOf<HandshakeResponse>, Release) {
  return "[int, bool]";
}

std::string_view text_of(ReplyOf<IntList>, Release) {
  return "[int]";
}

}  // namespace larder::protocol
