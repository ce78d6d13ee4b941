#include "zmtp/decoder.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace larder::zmtp {
namespace {

// Less is not worth a call to the kernel.
constexpr std::size_t kRoomMin = 4U << 10;

// What a sink sees at a time of what may be in front of a piece: few bytes of the piece are to be
// copied then.
constexpr std::size_t kSortedBytes = 4U << 10;

// uid, operation and two payloads: most requests.
constexpr std::size_t kFramesExpected = 4;

constexpr std::string_view kReadyName = "READY";
constexpr std::string_view kPingName = "PING";

}  // namespace

std::span<const std::byte> Decoder::unread() const {
  if (!block_) {
    return {};
  }
  return block_->bytes().subspan(begin_, end_ - begin_);
}

std::span<std::byte> Decoder::writable(std::size_t bytes_max) {
  if (state_ == State::kLargeBody) {
    return large_room(bytes_max);
  }
  make_room();
  const std::span<std::byte> room = block_->bytes().subspan(end_);
  return room.first(std::min(room.size(), bytes_max));
}

void Decoder::received(std::size_t bytes) {
  if (state_ != State::kLargeBody) {
    end_ += bytes;
    return;
  }
  large_received_ += bytes;
  if (sink_ == nullptr) {
    large_kept_ += bytes;
  } else if (!sink_->room().empty()) {
    sink_->arrived(bytes);
  } else {
    sort_in(large_->bytes().subspan(large_kept_, bytes));
  }
}

std::span<std::byte> Decoder::large_room(std::size_t bytes_max) {
  std::size_t wanted = std::min(large_bytes_ - large_received_, bytes_max);
  if (sink_ != nullptr) {
    const std::span<std::byte> room = sink_->room();
    if (!room.empty()) {
      return room.first(std::min(room.size(), wanted));
    }
    wanted = std::min(wanted, std::max(sink_->kept_ahead(), kSortedBytes));
  }
  if (large_kept_ == large_->capacity()) {
    large_->grow(std::min(large_->capacity() * 2, std::max(large_bytes_, large_->capacity())));
  }
  return large_->bytes().subspan(large_kept_, std::min(wanted, large_->capacity() - large_kept_));
}

// What came at the end of the buffer stays there, or goes to the sink.
void Decoder::sort_in(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const std::span<std::byte> room = sink_->room();
    if (!room.empty()) {
      const std::span<std::byte> piece = bytes.first(std::min(room.size(), bytes.size()));
      std::copy(piece.begin(), piece.end(), room.begin());
      sink_->arrived(piece.size());
      bytes = bytes.subspan(piece.size());
      continue;
    }
    const std::size_t kept = sink_->keep(bytes);
    LARDER_CHECK(kept == bytes.size() || (kept < bytes.size() && !sink_->room().empty()));
    std::memmove(large_->bytes().data() + large_kept_, bytes.data(), kept);
    large_kept_ += kept;
    bytes = bytes.subspan(kept);
  }
}

// Room for what next() waits for, in one piece with what is there of it.
void Decoder::make_room() {
  if (!block_) {
    Block block = memory_.take_block();
    block_ = std::move(block.buffer);
    begin_ = end_ = block.used;
  }
  const std::span<const std::byte> rest = unread();
  const std::size_t wanted = std::max(needed_ - std::min(needed_, rest.size()), kRoomMin);
  if (block_->capacity() - end_ >= wanted) {
    return;
  }
  if (block_.is_unique()) {
    std::memmove(block_->bytes().data(), rest.data(), rest.size());
  } else {
    BufferRef fresh = memory_.take_fresh_block();
    std::copy(rest.begin(), rest.end(), fresh->bytes().begin());
    message_.leave_blocks();
    block_ = std::move(fresh);
  }
  end_ = rest.size();
  begin_ = 0;
}

void Decoder::rest() {
  if (!message_.frames.empty()) {
    message_.leave_blocks();
  }
  if (block_ && begin_ == end_) {
    memory_.leave_block({std::move(block_), end_});
    begin_ = end_ = 0;
  }
}

void Decoder::drop_all() {
  state_ = State::kRefused;
  for (BufferRef& owner : message_.owners) {
    memory_.discard(std::move(owner));
  }
  memory_.discard(std::exchange(large_, BufferRef()));
  message_ = {};
  message_bytes_ = 0;
  sink_.reset();
  large_received_ = large_kept_ = 0;
  block_ = BufferRef();
  begin_ = end_ = 0;
}

Event Decoder::next() {
  if (state_ == State::kRefused) {
    return Event::kRefused;
  }
  std::optional<Event> event;
  while (!event) {
    switch (state_) {
      case State::kGreeting:
        event = read_greeting();
        break;
      case State::kLargeBody:
        event = read_large_body();
        break;
      case State::kReady:
      case State::kTraffic:
        event = read_frame();
        break;
      case State::kRefused:
        LARDER_UNREACHABLE();
    }
  }
  return *event;
}

Event Decoder::need(std::size_t bytes) {
  needed_ = bytes;
  return Event::kNeedsInput;
}

Event Decoder::refuse(CloseReason reason) {
  state_ = State::kRefused;
  reason_ = reason;
  return Event::kRefused;
}

std::optional<Event> Decoder::read_greeting() {
  const std::span<const std::byte> greeting =
      unread().first(std::min(unread().size(), kGreetingBytes));
  if (const std::optional<CloseReason> reason = judge_greeting(greeting)) {
    return refuse(*reason);
  }
  if (greeting.size() < kGreetingBytes) {
    return need(kGreetingBytes);
  }
  consume(kGreetingBytes);
  state_ = State::kReady;
  return std::nullopt;
}

std::optional<Event> Decoder::read_frame() {
  const std::optional<FrameHeader> header = read_frame_header(unread());
  if (!header) {
    return need(kLongHeaderBytes);
  }
  if (header->is_command) {
    return read_command_frame(*header);
  }
  if (state_ == State::kReady) {
    return refuse(CloseReason::kNoReady);
  }
  return read_message_frame(*header);
}

std::optional<Event> Decoder::read_command_frame(const FrameHeader& header) {
  if (header.body_bytes > kCommandBytesMax) {
    return refuse(CloseReason::kLongCommand);
  }
  const std::size_t frame_bytes = header.header_bytes + header.body_bytes;
  if (unread().size() < frame_bytes) {
    return need(frame_bytes);
  }
  const Command command = read_command(unread().subspan(header.header_bytes, header.body_bytes));
  consume(frame_bytes);
  ++frame_count_;
  return act_on(command);
}

Event Decoder::act_on(const Command& command) {
  if (state_ == State::kReady) {
    if (command.name != kReadyName) {
      return refuse(CloseReason::kNoReady);
    }
    if (const std::optional<CloseReason> reason = read_ready(command.content, peer_)) {
      return refuse(*reason);
    }
    state_ = State::kTraffic;
    return Event::kHandshaken;
  }
  if (command.name != kPingName) {
    return Event::kIgnored;
  }
  const std::optional<Ping> ping = read_ping(command.content);
  if (!ping) {
    return refuse(CloseReason::kBadPing);
  }
  ping_ = *ping;
  return Event::kPing;
}

std::optional<Event> Decoder::read_message_frame(const FrameHeader& header) {
  if (message_.frames.size() == limits_.frames_max) {
    return refuse(CloseReason::kMessageFrames);
  }
  if (header.body_bytes > limits_.message_bytes_max - message_bytes_) {
    return refuse(CloseReason::kMessageBytes);
  }
  const std::size_t frame_bytes = header.header_bytes + header.body_bytes;
  if (unread().size() >= frame_bytes) {
    const Frame frame = unread().subspan(header.header_bytes, header.body_bytes);
    consume(frame_bytes);
    return add_frame(frame, block_, header.has_more);
  }
  if (header.body_bytes <= kLargeFrameBytes) {
    return need(frame_bytes);
  }
  begin_large(header);
  return std::nullopt;
}

void Decoder::begin_large(const FrameHeader& header) {
  if (sinks_ != nullptr) {
    sink_ = sinks_->find(message_.frames, header.body_bytes);
  }
  large_ = memory_.take_large(sink_ == nullptr ? header.body_bytes : kBlockBytes);
  consume(header.header_bytes);
  large_bytes_ = header.body_bytes;
  large_received_ = large_kept_ = 0;
  large_has_more_ = header.has_more;
  state_ = State::kLargeBody;
  // What has come of it is less than the frame, and less than a block.
  while (!unread().empty()) {
    const std::span<std::byte> room = writable(unread().size());
    std::copy_n(unread().begin(), room.size(), room.begin());
    consume(room.size());
    received(room.size());
  }
}

std::optional<Event> Decoder::read_large_body() {
  if (large_received_ < large_bytes_) {
    return Event::kNeedsInput;
  }
  state_ = State::kTraffic;
  large_received_ = 0;
  const BufferRef owner = std::exchange(large_, BufferRef());
  const std::span<std::byte> kept = owner->bytes().first(std::exchange(large_kept_, 0));
  if (sink_ != nullptr) {
    sink_->finish(kept);
    const std::size_t placed_bytes = large_bytes_ - kept.size();
    message_bytes_ += placed_bytes;
    message_.placed.push_back({message_.frames.size(), std::move(sink_), placed_bytes});
  }
  return add_frame(kept, owner, large_has_more_);
}

std::optional<Event> Decoder::add_frame(Frame frame, const BufferRef& owner, bool has_more) {
  if (message_.frames.empty()) {
    message_.frames.reserve(kFramesExpected);
  }
  ++frame_count_;
  message_.frames.push_back(frame);
  message_bytes_ += frame.size();
  if (owner && (message_.owners.empty() || !(message_.owners.back() == owner))) {
    message_.owners.push_back(owner);
  }
  if (has_more) {
    return std::nullopt;
  }
  message_bytes_ = 0;
  return Event::kMessage;
}

Message Decoder::take_message() {
  return std::exchange(message_, Message{});
}

}  // namespace larder::zmtp
