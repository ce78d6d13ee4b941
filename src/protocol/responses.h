// responses.h - the values of replies, and their encoding.
//
// encode() appends one msgpack value, byte for byte as the reference's server encodes it. "No
// value" is std::monostate (or an empty optional) and is a missing frame, never nil.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "codec/bytes.h"
#include "codec/msgpack_writer.h"
#include "protocol/release.h"

namespace larder::protocol {

// What the dispatcher sends back: the third frame, or none.
struct EncodedReply {
  bool send = true;        // false: the request stays unanswered (engine.md section 12's one case)
  bool has_value = false;  // false: two frames
  codec::Bytes value;

  // What is sent from where it lies, as part of the value: in front of value[lent_at].
  std::vector<std::span<const std::byte>> lent;
  std::size_t lent_at = 0;
  std::shared_ptr<void> lent_owner;  // handed from the handler to whoever sends it
};

using None = std::monostate;

struct SlotDescriptor {
  std::uint64_t offset = 0;         // in the segment
  std::uint64_t length = 0;         // numel * item size
  std::vector<std::int64_t> shape;  // its own: the instance it is of may be gone by the encoding
  std::string_view dtype;           // a literal
};

struct RegisterEngineDrivenResponse {
  std::string shm_name;  // "" with pool_bytes 0: no shared memory
  std::uint64_t pool_bytes = 0;
};

struct PrepareStoreResponse {
  bool empty_context =
      false;  // the reference's copy mode: {}; never sent by larder, as nobody needs it
  std::vector<SlotDescriptor> slots;
  std::vector<std::int64_t> chunk_indices;  // slot i is for this chunk of the request's range
};

// Bytes that are never copied, as they may be as large as the pool: one binary of a head, objects
// and a tail.
struct LentPayload {
  codec::Bytes head;
  std::vector<std::span<const std::byte>> objects;
  codec::Bytes tail;
  std::shared_ptr<void> owner;  // keeps the objects; handed on to whoever sends them

  std::size_t byte_count() const;
};

struct PrepareRetrieveResponse {
  bool success = false;
  LentPayload payload;                               // the pickled tensors of copy mode, or none
  std::optional<std::vector<SlotDescriptor>> slots;  // nullopt: an empty context
};

struct EventResult {  // STORE, RETRIEVE and the blend transfers
  codec::Bytes event_handle;
  bool success = false;
};

struct BlendMatch {
  std::int64_t old_start = 0;
  std::int64_t old_end = 0;
  std::int64_t current_start = 0;
  std::int64_t current_end = 0;
  codec::Bytes hash;
};

struct BlendUnifiedLookupResponse {
  std::int64_t prefix_coverage_tokens = 0;
  std::vector<BlendMatch> non_prefix_segments;
  std::vector<BlendMatch> segmented_prefix_segments;
};

struct ModuleCallResponse {
  bool success = false;
  std::span<const std::byte> payload;
  std::string_view error;
};

struct HandshakeResponse {  // of blend's wire protocol
  std::int64_t version = 1;
  bool is_compatible = false;
};

struct PeerAddress {
  std::int64_t offset = -1;  // -1 with size 0: not here
  std::int64_t size = 0;
};

using TokenSpans = std::vector<std::pair<std::int64_t, std::int64_t>>;
using IntList = std::vector<std::int64_t>;

void encode(codec::MsgpackWriter& writer, bool value, Release release);
void encode(codec::MsgpackWriter& writer, std::int64_t value, Release release);
void encode(codec::MsgpackWriter& writer, std::string_view value, Release release);
void encode(codec::MsgpackWriter& writer, const std::vector<std::string>& value, Release release);
void encode(codec::MsgpackWriter& writer,
            const RegisterEngineDrivenResponse& value,
            Release release);
void encode(codec::MsgpackWriter& writer, const PrepareStoreResponse& value, Release release);
void encode(codec::MsgpackWriter& writer, const EventResult& value, Release release);
void encode(codec::MsgpackWriter& writer, const std::vector<BlendMatch>& value, Release release);
void encode(codec::MsgpackWriter& writer, const TokenSpans& value, Release release);
void encode(codec::MsgpackWriter& writer, const BlendUnifiedLookupResponse& value, Release release);
void encode(codec::MsgpackWriter& writer, const std::vector<PeerAddress>& value, Release release);
void encode(codec::MsgpackWriter& writer, const ModuleCallResponse& value, Release release);
void encode(codec::MsgpackWriter& writer, const HandshakeResponse& value, Release release);
void encode(codec::MsgpackWriter& writer, const IntList& value, Release release);

inline EncodedReply encode_reply(None, Release) {
  return {};
}

template <typename T>
EncodedReply encode_reply(const T& value, Release release) {
  EncodedReply reply;
  reply.has_value = true;
  codec::MsgpackWriter writer(reply.value);
  encode(writer, value, release);
  return reply;
}

template <typename T>
EncodedReply encode_reply(const std::optional<T>& value, Release release) {
  return value.has_value() ? encode_reply(*value, release) : EncodedReply{};
}

EncodedReply encode_reply(const PrepareRetrieveResponse& value, Release release);

// In 0.4.6 the operation has no response, whatever came of it.
EncodedReply encode_reply(const RegisterEngineDrivenResponse& value, Release release);

// What a reply is declared to be in a release: equal texts are equal encodings. Shown in
// docs/protocol.md, and used to tell whether releases can be answered alike.
template <typename Reply>
struct ReplyOf {};

std::string_view text_of(ReplyOf<None>, Release);
std::string_view text_of(ReplyOf<bool>, Release);
std::string_view text_of(ReplyOf<std::int64_t>, Release);
std::string_view text_of(ReplyOf<std::optional<std::int64_t>>, Release);
std::string_view text_of(ReplyOf<std::string_view>, Release);
std::string_view text_of(ReplyOf<std::vector<std::string>>, Release);
std::string_view text_of(ReplyOf<RegisterEngineDrivenResponse>, Release release);
std::string_view text_of(ReplyOf<PrepareStoreResponse>, Release);
std::string_view text_of(ReplyOf<PrepareRetrieveResponse>, Release);
std::string_view text_of(ReplyOf<EventResult>, Release);
std::string_view text_of(ReplyOf<std::vector<BlendMatch>>, Release);
std::string_view text_of(ReplyOf<TokenSpans>, Release);
std::string_view text_of(ReplyOf<std::optional<BlendUnifiedLookupResponse>>, Release release);
std::string_view text_of(ReplyOf<std::optional<std::vector<PeerAddress>>>, Release);
std::string_view text_of(ReplyOf<ModuleCallResponse>, Release);
std::string_view text_of(ReplyOf<HandshakeResponse>, Release);
std::string_view text_of(ReplyOf<IntList>, Release);

template <typename Reply>
inline constexpr bool kMayBeNone = std::is_same_v<Reply, None>;
template <typename T>
inline constexpr bool kMayBeNone<std::optional<T>> = true;

}  // namespace larder::protocol
