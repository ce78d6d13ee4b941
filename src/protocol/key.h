// key.h - the cache key as it travels: what a request is about.
//
// A map on the wire (wire.md section 5). Decoding checks what every reference client guarantees:
// field types, the salt's rule, valid UTF-8. It does not check ranges: start after end, or tokens
// no hash can take, decode and are judged by the handlers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "protocol/frames.h"

namespace larder::protocol {

struct Key {
  std::string model_name;
  std::int64_t world_size = 0;
  std::optional<std::int64_t> worker_id;  // nullopt: all workers (the scheduler's requests)
  std::vector<std::uint32_t> token_ids;   // the whole prompt so far, not only the range
  bool tokens_hashable = true;            // false: an id outside [0, 2^32) stands as 0 in token_ids
  std::int64_t start = 0;                 // in tokens
  std::int64_t end = 0;
  std::string request_id;
  std::string cache_salt;
  bool names_readers = false;       // 0.5.5 and later: the next field says who will read
  std::int64_t num_kv_readers = 0;  // of each object; below 1 is no valid request
};

// Ids and names are kept for the life of a request or an engine, so their length is bounded. Real
// ones are tens of bytes.
inline constexpr std::size_t kNameBytesMax = 1024;

// A request id or model name; kTooLarge beyond kNameBytesMax.
Result<std::string> field_name(codec::MsgpackReader& reader);
Result<std::string> whole_name(Frame frame);

// The salt's rule: none of '@', '/', '\', NUL; at most 128 code points.
bool is_valid_salt(std::string_view salt);

Result<Key> read_key(codec::MsgpackReader& reader, Release release);
Result<Key> whole_key(Frame frame, Release release);

enum class KeyOf : std::uint8_t { kAny, kScheduler, kWorker };

// Whether a key looks as the release's clients write it: the number of its fields, the form of its
// tokens, and whether it names a worker. Looks at the fields up to the tokens only, and at no
// token.
bool fits_key(codec::MsgpackReader& reader, Release release, KeyOf whose);

// Only the request id, from a key that may otherwise be broken; nullopt when even that cannot be
// read.
std::optional<std::string> request_id_of_key(Frame frame);

}  // namespace larder::protocol
