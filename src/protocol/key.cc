#include "protocol/key.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "protocol/short_string.h"

namespace larder::protocol {
namespace {

using codec::MsgpackReader;

constexpr std::size_t kSaltCodePointsMax = 128;
constexpr std::size_t kTokenBytes = 4;

// What the reference's clients write: always all fields.
constexpr std::size_t kFieldsBefore055 = 8;
constexpr std::size_t kFieldsSince055 = 10;
constexpr std::size_t kFieldsMax = 32;  // of a key that is looked at without being decoded

// Values that are looked past to find the tokens; no client writes a larger one in front of them.
constexpr std::size_t kSkippedBytesMax = 64U << 10U;

// One bit for each field the release requires.
enum FieldBit : unsigned {
  kModelName = 1U << 0U,
  kWorldSize = 1U << 1U,
  kWorkerId = 1U << 2U,
  kTokens = 1U << 3U,
  kStart = 1U << 4U,
  kEnd = 1U << 5U,
  kRequestId = 1U << 6U,
  kAllRequired = (1U << 7U) - 1U,
};

Result<void> read_token_bytes(MsgpackReader& reader, Key& key) {
  const Result<std::span<const std::byte>> packed = reader.read_binary();
  if (!packed) {
    return packed.error();
  }
  if (packed->size() % kTokenBytes != 0) {
    return Error{Code::kMalformed, "token_bytes is not a multiple of 4"};
  }
  key.token_ids.resize(packed->size() / kTokenBytes);
  if (packed->empty()) {
    return {};
  }
  std::memcpy(key.token_ids.data(), packed->data(), packed->size());
  std::transform(key.token_ids.begin(),
                 key.token_ids.end(),
                 key.token_ids.begin(),
                 [](std::uint32_t big_endian) { return __builtin_bswap32(big_endian); });
  return {};
}

Result<void> read_tokens(MsgpackReader& reader, Key& key) {
  bool out_of_range = false;
  key.token_ids.clear();
  Result<void> read = reader.read_token_array(key.token_ids, out_of_range);
  key.tokens_hashable = !out_of_range;
  return read;
}

Result<void> read_salt(MsgpackReader& reader, Key& key) {
  const Result<std::string_view> salt = reader.read_string();
  if (!salt) {
    return salt.error();
  }
  if (!is_valid_salt(*salt)) {
    return Error{Code::kMalformed, "cache_salt"};
  }
  key.cache_salt = std::string(*salt);
  return {};
}

class KeyFields {
 public:
  KeyFields(Key& key, Release release) : key_(key), release_(release) {}

  Result<void> operator()(std::string_view name, MsgpackReader& reader) {
    if (name == "model_name") {
      return seen(kModelName, assign(key_.model_name, field_name(reader)));
    }
    if (name == "world_size") {
      return seen(kWorldSize, assign(key_.world_size, field_int(reader)));
    }
    if (name == "worker_id") {
      return seen(kWorkerId, assign(key_.worker_id, field_optional_int(reader)));
    }
    if (name == "start") {
      return seen(kStart, assign(key_.start, field_int(reader)));
    }
    if (name == "end") {
      return seen(kEnd, assign(key_.end, field_int(reader)));
    }
    if (name == "request_id") {
      return seen(kRequestId, assign(key_.request_id, field_name(reader)));
    }
    if (name == "cache_salt") {
      return read_salt(reader, key_);
    }
    return read_dialect_field(name, reader);
  }

  bool complete() const { return seen_ == kAllRequired; }

 private:
  Result<void> read_dialect_field(std::string_view name, MsgpackReader& reader) {
    if (name == "token_ids" && release_ < Release::k057rc3) {
      return seen(kTokens, read_tokens(reader, key_));
    }
    if (name == "token_bytes" && release_ >= Release::k057rc3) {
      return seen(kTokens, read_token_bytes(reader, key_));
    }
    if (name == "num_kv_readers" && release_ >= Release::k055) {
      return assign(key_.num_kv_readers, field_int(reader));
    }
    return reader.skip();
  }

  Result<void> seen(FieldBit bit, Result<void> read) {
    seen_ |= bit;
    return read;
  }

  Key& key_;
  Release release_;
  unsigned seen_ = 0;
};

bool has_tokens_of(MsgpackReader& reader, std::string_view name, Release release) {
  const Result<codec::MsgpackType> type = reader.peek();
  if (!type) {
    return false;
  }
  return name == "token_bytes" ? release >= Release::k057rc3 && *type == codec::MsgpackType::kBinary
                               : release < Release::k057rc3 && *type == codec::MsgpackType::kArray;
}

bool is_worker_id_of(const MsgpackReader& reader, KeyOf whose) {
  const Result<codec::MsgpackType> type = reader.peek();
  const bool is_nil = type.has_value() && *type == codec::MsgpackType::kNil;
  return whose == KeyOf::kAny || is_nil == (whose == KeyOf::kScheduler);
}

// Past one value, unless it is a large container.
bool skip_small(MsgpackReader& reader, std::size_t frame_bytes) {
  const Result<codec::MsgpackType> type = reader.peek();
  const bool is_container = type.has_value() && (*type == codec::MsgpackType::kArray ||
                                                 *type == codec::MsgpackType::kMap);
  return (!is_container || frame_bytes <= kSkippedBytesMax) && reader.skip().has_value();
}

}  // namespace

bool fits_key(MsgpackReader& reader, Release release, KeyOf whose) {
  const Result<std::size_t> fields = reader.read_map_header();
  if (!fields || *fields > kFieldsMax) {
    return false;
  }
  const std::size_t foreign = release >= Release::k055 ? kFieldsBefore055 : kFieldsSince055;
  if (*fields == foreign) {
    return false;
  }
  for (std::size_t i = 0; i < *fields; ++i) {
    const Result<std::string_view> name = read_short_string(reader, kNameBytesMax);
    if (!name) {
      return false;
    }
    if (*name == "token_ids" || *name == "token_bytes") {
      return has_tokens_of(reader, *name, release);
    }
    if (*name == "worker_id" && !is_worker_id_of(reader, whose)) {
      return false;
    }
    if (!skip_small(reader, reader.input_bytes())) {
      return false;
    }
  }
  return false;
}

Result<std::string> field_name(MsgpackReader& reader) {
  const Result<std::string_view> text = read_short_string(reader, kNameBytesMax);
  return text ? Result<std::string>(std::string(*text)) : text.error();
}

Result<std::string> whole_name(Frame frame) {
  return read_whole(frame, [](MsgpackReader& reader) { return field_name(reader); });
}

bool is_valid_salt(std::string_view salt) {
  if (salt.find_first_of(std::string_view("@/\\\0", 4)) != std::string_view::npos) {
    return false;
  }
  const auto code_points = std::count_if(salt.begin(), salt.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  });
  return static_cast<std::size_t>(code_points) <= kSaltCodePointsMax;
}

Result<Key> read_key(MsgpackReader& reader, Release release) {
  Key key;
  key.names_readers = release >= Release::k055;
  KeyFields fields(key, release);
  if (Result<void> read = read_map(
          reader,
          [&fields](std::string_view name, MsgpackReader& value) { return fields(name, value); });
      !read) {
    return read.error();
  }
  if (!fields.complete()) {
    return Error{Code::kMalformed, "a required field of the key is missing"};
  }
  return key;
}

Result<Key> whole_key(Frame frame, Release release) {
  return read_whole(frame, [release](MsgpackReader& reader) { return read_key(reader, release); });
}

std::optional<std::string> request_id_of_key(Frame frame) {
  MsgpackReader reader(frame);
  std::optional<std::string> found;
  const Result<void> read =
      read_map(reader, [&found](std::string_view name, MsgpackReader& value) -> Result<void> {
        if (name != "request_id") {
          return value.skip();
        }
        Result<std::string> text = field_name(value);
        if (text) {
          found = std::move(*text);
          return {};
        }
        return text.error();
      });
  static_cast<void>(read);  // what follows the id may be broken
  return found;
}

}  // namespace larder::protocol
