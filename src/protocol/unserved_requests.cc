#include "protocol/unserved_requests.h"

#include <string>

#include "protocol/key.h"

namespace larder::protocol {
namespace {

using codec::MsgpackReader;

constexpr std::int8_t kDeviceMemoryExt = 1;

Result<void> read_int_field(MsgpackReader& reader) {
  std::int64_t ignored = 0;
  return assign(ignored, field_int(reader));
}

Result<void> read_ints(MsgpackReader& reader) {
  return read_array(reader, read_int_field);
}

Result<void> read_tensor(MsgpackReader& reader) {
  const Result<codec::MsgpackExt> ext = reader.read_ext();
  if (!ext) {
    return ext.error();
  }
  return ext->type == kDeviceMemoryExt ? Result<void>()
                                       : Error{Code::kMalformed, "unknown ext type"};
}

Result<void> read_token_span(MsgpackReader& reader) {
  const Result<std::size_t> count = reader.read_array_header();
  if (!count || *count != 2) {
    return Error{Code::kMalformed, "not a pair"};
  }
  Result<void> read = read_int_field(reader);
  return read ? read_int_field(reader) : read;
}

Result<void> read_binary_field(MsgpackReader& reader) {
  const Result<std::span<const std::byte>> bytes = reader.read_binary();
  return bytes ? Result<void>() : bytes.error();
}

Result<void> read_string_field(MsgpackReader& reader) {
  const Result<std::string_view> text = reader.read_string();
  return text ? Result<void>() : text.error();
}

Result<void> read_match(MsgpackReader& reader) {
  unsigned seen = 0;
  const Result<void> read =
      read_map(reader, [&seen](std::string_view name, MsgpackReader& value) -> Result<void> {
        constexpr std::array<std::string_view, 4> kInts{"old_st", "old_ed", "cur_st", "cur_ed"};
        for (unsigned i = 0; i < kInts.size(); ++i) {
          if (name == kInts[i]) {
            seen |= 1U << i;
            return read_int_field(value);
          }
        }
        if (name == "hash") {
          seen |= 1U << kInts.size();
          return read_binary_field(value);
        }
        return value.skip();
      });
  if (!read) {
    return read;
  }
  return seen == 0x1FU ? Result<void>()
                       : Error{Code::kMalformed, "a field of the match is missing"};
}

Result<void> read_peer_key_field(std::string_view name, MsgpackReader& value, unsigned& seen) {
  if (name == "chunk_hash") {
    seen |= 1U;
    return read_binary_field(value);
  }
  if (name == "model_name") {
    seen |= 2U;
    const Result<std::string_view> model = value.read_string();
    const bool valid = model.has_value() && model->find('@') == std::string_view::npos;
    return valid ? Result<void>() : Error{Code::kMalformed, "model_name"};
  }
  if (name == "kv_rank") {
    seen |= 4U;
    return read_int_field(value);
  }
  if (name == "object_group_id") {
    const Result<std::int64_t> group = field_int(value);
    return group.has_value() && *group >= 0 ? Result<void>()
                                            : Error{Code::kMalformed, "object_group_id"};
  }
  if (name == "cache_salt") {
    const Result<std::string_view> salt = value.read_string();
    return salt.has_value() && is_valid_salt(*salt) ? Result<void>()
                                                    : Error{Code::kMalformed, "cache_salt"};
  }
  return value.skip();
}

Result<void> read_peer_key(MsgpackReader& reader) {
  unsigned seen = 0;
  const Result<void> read = read_map(reader, [&seen](std::string_view name, MsgpackReader& value) {
    return read_peer_key_field(name, value, seen);
  });
  if (!read) {
    return read;
  }
  return seen == 7U ? Result<void>()
                    : Error{Code::kMalformed, "a field of the object key is missing"};
}

Result<void> read_memory_layout(MsgpackReader& reader) {
  std::size_t shapes = 0;
  std::size_t dtypes = 0;
  unsigned seen = 0;
  const Result<void> read =
      read_map(reader, [&](std::string_view name, MsgpackReader& value) -> Result<void> {
        if (name == "shapes") {
          seen |= 1U;
          return read_array(value, [&shapes](MsgpackReader& shape) {
            ++shapes;
            return read_ints(shape);
          });
        }
        if (name == "dtypes") {
          seen |= 2U;
          return read_array(value, [&dtypes](MsgpackReader& dtype) {
            ++dtypes;
            return read_string_field(dtype);
          });
        }
        return value.skip();
      });
  if (!read) {
    return read;
  }
  return seen == 3U && shapes == dtypes ? Result<void>() : Error{Code::kMalformed, "memory layout"};
}

Result<void> read_memory_layouts(MsgpackReader& reader) {
  const Result<std::size_t> pairs = reader.read_map_header();
  if (!pairs) {
    return pairs.error();
  }
  Result<void> read;
  for (std::size_t i = 0; read.has_value() && i < *pairs; ++i) {
    read = read_int_field(reader);
    if (read) {
      read = read_memory_layout(reader);
    }
  }
  return read;
}

Result<void> read_structure(MsgpackReader& reader, PayloadKind kind) {
  switch (kind) {
    case PayloadKind::kMemoryLayouts:
      return read_memory_layouts(reader);
    case PayloadKind::kTensor:
      return read_tensor(reader);
    case PayloadKind::kTensors:
      return read_array(reader, read_tensor);
    case PayloadKind::kIntArray:
      return read_ints(reader);
    case PayloadKind::kIntArrays:
      return read_array(reader, read_ints);
    case PayloadKind::kTokenSpans:
      return read_array(reader, read_token_span);
    case PayloadKind::kMatches:
      return read_array(reader, read_match);
    case PayloadKind::kPeerKeys:
      return read_array(reader, read_peer_key);
    case PayloadKind::kMemoryLayout:
      return read_memory_layout(reader);
    case PayloadKind::kBinary:
      return read_binary_field(reader);
    case PayloadKind::kString:
      return read_string_field(reader);
    default:
      LARDER_UNREACHABLE();
  }
}

template <typename T>
Result<void> without_value(const Result<T>& result) {
  return result ? Result<void>() : result.error();
}

Result<void> check_payload(Frame frame, PayloadKind kind, Release release) {
  switch (kind) {
    case PayloadKind::kKey:
    case PayloadKind::kSchedulerKey:
    case PayloadKind::kWorkerKey:
      return without_value(whole_key(frame, release));
    case PayloadKind::kInt:
      return without_value(whole_int(frame, release));
    case PayloadKind::kBool:
      return without_value(whole_bool(frame, release));
    default:
      return read_whole(frame,
                        [kind](MsgpackReader& reader) { return read_structure(reader, kind); });
  }
}

}  // namespace

Result<void> check_shape(Frames frames, Payloads payloads, Release release) {
  Result<void> checked = expect_count(frames, payloads.size());
  for (std::size_t i = 0; checked.has_value() && i < payloads.size(); ++i) {
    checked = check_payload(frames[i], payloads[i], release);
  }
  return checked;
}

Payloads RegisterRopeRequest::payloads(Release release) {
  using K = PayloadKind;
  if (release < Release::k052) {
    return kPayloadList<K::kInt, K::kTensor, K::kInt, K::kBool>;
  }
  if (release < Release::k053) {
    return kPayloadList<K::kInt, K::kTensors, K::kInt, K::kBool, K::kIntArray>;
  }
  if (release < Release::k056) {
    return kPayloadList<K::kInt, K::kTensors, K::kInt, K::kBool, K::kIntArray, K::kIntArrays>;
  }
  return kPayloadList<K::kInt,
                      K::kTensors,
                      K::kInt,
                      K::kBool,
                      K::kIntArray,
                      K::kIntArrays,
                      K::kIntArray,
                      K::kString>;
}

Payloads BlendRetrieveRequest::payloads(Release release) {
  using K = PayloadKind;
  if (release < Release::k052) {
    return kPayloadList<K::kKey, K::kMatches, K::kIntArray, K::kInt, K::kBinary>;
  }
  return kPayloadList<K::kKey, K::kMatches, K::kIntArrays, K::kInt, K::kBinary>;
}

Payloads PeerLookupRequest::payloads(Release release) {
  using K = PayloadKind;
  if (release < Release::k053) {
    return kPayloadList<K::kPeerKeys, K::kMemoryLayout>;
  }
  return kPayloadList<K::kPeerKeys, K::kMemoryLayouts>;
}

}  // namespace larder::protocol
