#include "tensors/object_cutter.h"

#include <algorithm>

#include "base/check.h"

namespace larder::tensors {
namespace {

constexpr std::size_t kByteBits = 8;

}  // namespace

std::size_t ObjectCutter::scan(std::span<const std::byte> bytes) {
  std::size_t done = 0;
  while (done < bytes.size() && state_ != State::kAtObject) {
    if (state_ == State::kBlob || state_ == State::kGivenUp) {
      done += skip(bytes.size() - done);
      continue;
    }
    const std::byte byte = bytes[done++];
    ++position_;
    if (state_ == State::kOpcode) {
      read_opcode(byte);
    } else if (state_ == State::kLength) {
      read_length(byte);
    } else if (state_ == State::kArgument || byte == std::byte{'\n'}) {
      enter(state_, left_ - 1);
    }
    if (++looked_at_ > kLookedAtMax) {
      state_ = State::kGivenUp;
    }
  }
  return done;
}

void ObjectCutter::cut_object() {
  LARDER_CHECK(is_at_object());
  next_.position = position_;
  cuts_.push_back(next_);
  state_ = State::kOpcode;
  looked_at_ = 0;
}

void ObjectCutter::keep_object() {
  LARDER_CHECK(is_at_object());
  looked_at_ = 0;
  enter(State::kBlob, object_bytes_);
}

void ObjectCutter::put_right(std::span<std::byte> left) const {
  LARDER_CHECK(left.size() == position_);
  for (const Cut& cut : cuts_) {
    std::uint64_t length = cut.length - object_bytes_;
    for (std::byte& byte : left.subspan(cut.length_position, cut.length_bytes)) {
      byte = static_cast<std::byte>(length);
      length >>= kByteBits;
    }
  }
}

void ObjectCutter::read_opcode(std::byte byte) {
  opcode_ = static_cast<codec::Opcode>(byte);
  const std::optional<codec::PickleArgument> argument = codec::argument_of(opcode_);
  if (!argument || opcode_ == codec::Opcode::kStop) {
    state_ = State::kGivenUp;
  } else if (argument->length_bytes > 0) {
    next_ = {0, position_, argument->length_bytes, 0};
    enter(State::kLength, argument->length_bytes);
  } else if (argument->lines > 0) {
    enter(State::kLines, argument->lines);
  } else {
    enter(State::kArgument, argument->bytes);
  }
}

void ObjectCutter::read_length(std::byte byte) {
  const std::size_t place = next_.length_bytes - static_cast<std::size_t>(left_);
  next_.length |= std::to_integer<std::uint64_t>(byte) << (kByteBits * place);
  if (--left_ > 0) {
    return;
  }
  const bool is_bytes = opcode_ == codec::Opcode::kBinBytes || opcode_ == codec::Opcode::kBinBytes8;
  const std::uint64_t head = next_.length - std::min<std::uint64_t>(next_.length, object_bytes_);
  ends_with_object_ = is_bytes && head >= kHeadBytesMin && head <= kHeadBytesMax;
  enter(State::kBlob, ends_with_object_ ? head : next_.length);
}

// Nothing is left of a state that has ended.
void ObjectCutter::enter(State state, std::uint64_t left) {
  left_ = left;
  state_ = left > 0 ? state : State::kOpcode;
}

std::size_t ObjectCutter::skip(std::size_t bytes_max) {
  if (state_ == State::kGivenUp) {
    position_ += bytes_max;
    return bytes_max;
  }
  const auto skipped = static_cast<std::size_t>(std::min<std::uint64_t>(left_, bytes_max));
  position_ += skipped;
  enter(State::kBlob, left_ - skipped);
  if (left_ == 0 && ends_with_object_) {
    ends_with_object_ = false;
    state_ = State::kAtObject;
  }
  return skipped;
}

}  // namespace larder::tensors
