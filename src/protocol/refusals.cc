#include "protocol/refusals.h"

#include <algorithm>
#include <cstring>

namespace larder::protocol {
namespace {

constexpr std::size_t kCudaEventHandleBytes = 64;

// What clients without a device put where an event handle belongs, and accept back.
constexpr std::string_view kStubEventHandle = "stub_ipc_handle";

// More keys than a prefetch asks for in one request: a prompt of a million tokens in chunks of 256,
// of four ranks. Bounds the reply, 15 bytes for each, that a few bytes can make us build.
constexpr std::int64_t kPeerKeysMax = 1 << 14;

EncodedReply refuse_event(std::span<const std::byte> event_handle, Release release) {
  if (is_unanswerable(event_handle, release)) {
    EncodedReply unanswered;
    unanswered.send = false;
    return unanswered;
  }
  EventResult result;
  if (release < Release::k055) {
    result.event_handle.resize(kStubEventHandle.size());
    std::memcpy(result.event_handle.data(), kStubEventHandle.data(), kStubEventHandle.size());
  }
  return encode_reply(result, release);
}

std::span<const std::byte> event_of(Frames frames, std::size_t index) {
  if (index >= frames.size()) {
    return {};
  }
  const Result<std::span<const std::byte>> event = whole_binary(frames[index]);
  return event ? *event : std::span<const std::byte>{};
}

}  // namespace

bool is_unanswerable(std::span<const std::byte> event_handle, Release release) {
  return release < Release::k055 && event_handle.size() == kCudaEventHandleBytes;
}

EncodedReply refuse_with_none(Frames, Release) {
  return {};
}

EncodedReply refuse_with_false(Frames, Release release) {
  return encode_reply(false, release);
}

EncodedReply refuse_with_true(Frames, Release release) {
  return encode_reply(true, release);
}

EncodedReply refuse_with_zero(Frames, Release release) {
  return encode_reply(std::int64_t{0}, release);
}

EncodedReply refuse_with_empty_list(Frames, Release release) {
  return encode_reply(std::vector<BlendMatch>{}, release);
}

EncodedReply refuse_handshake(Frames, Release release) {
  return encode_reply(HandshakeResponse{}, release);
}

EncodedReply refuse_module_call(Frames, Release release) {
  return encode_reply(ModuleCallResponse{false, {}, "this server has no modules"}, release);
}

EncodedReply refuse_register(Frames, Release release) {
  return encode_reply(RegisterEngineDrivenResponse{}, release);
}

EncodedReply refuse_prepare_store(Frames, Release release) {
  return encode_reply(PrepareStoreResponse{}, release);
}

EncodedReply refuse_prepare_retrieve(Frames, Release release) {
  return encode_reply(PrepareRetrieveResponse{}, release);
}

EncodedReply refuse_unified_lookup(Frames, Release release) {
  return encode_reply(BlendUnifiedLookupResponse{}, release);
}

EncodedReply refuse_store(Frames frames, Release release) {
  return refuse_event(event_of(frames, 3), release);
}

EncodedReply refuse_last_event(Frames frames, Release release) {
  return refuse_event(
      frames.empty() ? std::span<const std::byte>{} : event_of(frames, frames.size() - 1), release);
}

EncodedReply refuse_peer_lookup(Frames frames, Release release) {
  std::int64_t keys = 0;
  if (!frames.empty()) {
    codec::MsgpackReader reader(frames[0]);
    if (const Result<std::size_t> count = reader.read_array_header()) {
      keys = static_cast<std::int64_t>(*count);
    }
  }
  return encode_reply(keys, release);
}

EncodedReply refuse_peer_results(Frames frames, Release release) {
  std::int64_t keys = 0;
  if (!frames.empty()) {
    if (const Result<std::int64_t> task = whole_int(frames[0], release)) {
      keys = std::clamp<std::int64_t>(*task, 0, kPeerKeysMax);
    }
  }
  return encode_reply(std::vector<PeerAddress>(static_cast<std::size_t>(keys)), release);
}

}  // namespace larder::protocol
