#include "codec/pickle_reader.h"

#include <algorithm>
#include <utility>

#include "codec/pickle_machine.h"
#include "codec/pickle_opcodes.h"
#include "codec/utf8.h"

namespace larder::codec {
namespace {

Error malformed(const char* what) {
  return Error{Code::kMalformed, what};
}

Error ends_early() {
  return malformed("pickle: the input ends before STOP");
}

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Takes opcodes and their arguments off the input and tells the machine what to do.
class Decoder {
 public:
  Decoder(std::span<const std::byte> input,
          std::span<const PickleGlobal> allowed_globals,
          const PickleLimits& limits)
      : input_(input),
        global_bytes_max_(limits.global_bytes_max),
        machine_(allowed_globals, limits) {}

  Result<PickleDocument> run();

 private:
  Result<void> read_header();
  Result<void> step(Opcode opcode);
  Result<void> step_scalar(Opcode opcode);
  Result<void> step_container(Opcode opcode);

  Result<std::span<const std::byte>> take(std::size_t bytes);
  Result<std::uint64_t> take_number(std::size_t bytes);
  Result<std::span<const std::byte>> take_counted(std::size_t length_bytes);
  Result<std::string_view> take_line();

  Result<void> push_bytes(std::size_t length_bytes);
  Result<void> push_text(std::size_t length_bytes);
  Result<void> push_integer(std::size_t bytes);
  Result<void> push_long();
  Result<void> global();
  Result<void> put_numbered(std::size_t bytes);
  Result<void> get_numbered(std::size_t bytes);

  std::span<const std::byte> input_;
  std::size_t global_bytes_max_;
  std::size_t position_ = 0;
  PickleMachine machine_;
};

Result<PickleDocument> Decoder::run() {
  if (Result<void> header = read_header(); !header) {
    return header.error();
  }
  while (position_ < input_.size()) {
    const auto opcode = static_cast<Opcode>(input_[position_++]);
    if (opcode == Opcode::kStop) {
      Result<PickleDocument> document = machine_.stop();
      if (document) {
        document.value().bytes_read = position_;
      }
      return document;
    }
    if (Result<void> done = step(opcode); !done) {
      return done.error();
    }
  }
  return ends_early();
}

Result<void> Decoder::read_header() {
  if (input_.size() < 2) {
    return ends_early();
  }
  if (static_cast<Opcode>(input_[0]) != Opcode::kProto) {
    return malformed("pickle: does not begin with PROTO");
  }
  const auto protocol = std::to_integer<unsigned>(input_[1]);
  if (protocol < 2 || protocol > 5) {
    return Error{Code::kUnsupported, "pickle: a protocol other than 2 to 5"};
  }
  position_ = 2;
  return {};
}

Result<void> Decoder::step(Opcode opcode) {
  switch (opcode) {
    case Opcode::kFrame: {
      // The length only tells a stream how much to read ahead.
      const Result<std::uint64_t> ignored = take_number(8);
      return ignored ? Result<void>() : ignored.error();
    }
    case Opcode::kGlobal:
      return global();
    case Opcode::kStackGlobal:
      return machine_.stack_global();
    case Opcode::kReduce:
      return machine_.call(false);
    case Opcode::kNewObj:
      return machine_.call(true);
    case Opcode::kBuild:
      return machine_.build();
    case Opcode::kBinPersId:
      return machine_.persistent_id();
    case Opcode::kMemoize:
      return machine_.memoize();
    case Opcode::kBinPut:
      return put_numbered(1);
    case Opcode::kLongBinPut:
      return put_numbered(4);
    case Opcode::kBinGet:
      return get_numbered(1);
    case Opcode::kLongBinGet:
      return get_numbered(4);
    default:
      return step_scalar(opcode);
  }
}

Result<void> Decoder::step_scalar(Opcode opcode) {
  switch (opcode) {
    case Opcode::kNone:
      return machine_.push(PickleNone{});
    case Opcode::kNewTrue:
      return machine_.push(true);
    case Opcode::kNewFalse:
      return machine_.push(false);
    case Opcode::kBinInt:
      return push_integer(4);
    case Opcode::kBinInt1:
      return push_integer(1);
    case Opcode::kBinInt2:
      return push_integer(2);
    case Opcode::kLong1:
      return push_long();
    case Opcode::kShortBinBytes:
      return push_bytes(1);
    case Opcode::kBinBytes:
      return push_bytes(4);
    case Opcode::kBinBytes8:
      return push_bytes(8);
    case Opcode::kShortBinUnicode:
      return push_text(1);
    case Opcode::kBinUnicode:
      return push_text(4);
    case Opcode::kBinUnicode8:
      return push_text(8);
    default:
      return step_container(opcode);
  }
}

Result<void> Decoder::step_container(Opcode opcode) {
  switch (opcode) {
    case Opcode::kMark:
      return machine_.mark();
    case Opcode::kEmptyList:
      return machine_.push(PickleSequence{false, {}});
    case Opcode::kEmptyTuple:
      return machine_.push(PickleSequence{true, {}});
    case Opcode::kEmptyDict:
      return machine_.push(PickleDict{});
    case Opcode::kList:
      return machine_.make_sequence_from_mark(false);
    case Opcode::kTuple:
      return machine_.make_sequence_from_mark(true);
    case Opcode::kTuple1:
      return machine_.make_tuple(1);
    case Opcode::kTuple2:
      return machine_.make_tuple(2);
    case Opcode::kTuple3:
      return machine_.make_tuple(3);
    case Opcode::kAppend:
      return machine_.append();
    case Opcode::kAppends:
      return machine_.append_from_mark();
    case Opcode::kSetItem:
      return machine_.set_item();
    case Opcode::kSetItems:
      return machine_.set_items_from_mark();
    default:
      return Error{Code::kUnsupported, "pickle: an opcode that is not allowed"};
  }
}

Result<std::span<const std::byte>> Decoder::take(std::size_t bytes) {
  if (bytes > input_.size() - position_) {
    return ends_early();
  }
  const std::span<const std::byte> taken = input_.subspan(position_, bytes);
  position_ += bytes;
  return taken;
}

Result<std::uint64_t> Decoder::take_number(std::size_t bytes) {
  const Result<std::span<const std::byte>> taken = take(bytes);
  if (!taken) {
    return taken.error();
  }
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < bytes; ++i) {
    number |= std::to_integer<std::uint64_t>(taken.value()[i]) << (8 * i);
  }
  return number;
}

Result<std::span<const std::byte>> Decoder::take_counted(std::size_t length_bytes) {
  const Result<std::uint64_t> length = take_number(length_bytes);
  if (!length) {
    return length.error();
  }
  return take(length.value());
}

Result<std::string_view> Decoder::take_line() {
  const std::size_t searched = std::min(input_.size() - position_, global_bytes_max_ + 1);
  const std::string_view text = as_text(input_.subspan(position_, searched));
  const std::size_t length = text.find('\n');
  if (length == std::string_view::npos) {
    return searched > global_bytes_max_ ? Error{Code::kTooLarge, "pickle: a long global name"}
                                        : ends_early();
  }
  position_ += length + 1;
  return text.substr(0, length);
}

Result<void> Decoder::push_bytes(std::size_t length_bytes) {
  const Result<std::span<const std::byte>> bytes = take_counted(length_bytes);
  return bytes ? machine_.push(bytes.value()) : bytes.error();
}

Result<void> Decoder::push_text(std::size_t length_bytes) {
  const Result<std::span<const std::byte>> bytes = take_counted(length_bytes);
  if (!bytes) {
    return bytes.error();
  }
  const std::string_view text = as_text(bytes.value());
  if (!is_valid_utf8(text)) {
    return malformed("pickle: a str that is not UTF-8");
  }
  return machine_.push(text);
}

Result<void> Decoder::push_integer(std::size_t bytes) {
  const Result<std::uint64_t> number = take_number(bytes);
  if (!number) {
    return number.error();
  }
  // Only the four-byte form is signed.
  if (bytes == 4) {
    return machine_.push(
        std::int64_t{static_cast<std::int32_t>(static_cast<std::uint32_t>(number.value()))});
  }
  return machine_.push(static_cast<std::int64_t>(number.value()));
}

Result<void> Decoder::push_long() {
  const Result<std::span<const std::byte>> bytes = take_counted(1);
  if (!bytes) {
    return bytes.error();
  }
  const std::size_t size = bytes.value().size();
  if (size > sizeof(std::int64_t)) {
    return machine_.push(PickleBigInt{bytes.value()});
  }
  if (size == 0) {
    return machine_.push(std::int64_t{0});
  }
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < size; ++i) {
    number |= std::to_integer<std::uint64_t>(bytes.value()[i]) << (8 * i);
  }
  const auto unused_bits = static_cast<int>(8 * (sizeof(number) - size));
  return machine_.push(static_cast<std::int64_t>(number << unused_bits) >> unused_bits);
}

Result<void> Decoder::global() {
  const Result<std::string_view> module = take_line();
  if (!module) {
    return module.error();
  }
  const Result<std::string_view> name = take_line();
  if (!name) {
    return name.error();
  }
  return machine_.push_global(module.value(), name.value());
}

Result<void> Decoder::put_numbered(std::size_t bytes) {
  const Result<std::uint64_t> slot = take_number(bytes);
  return slot ? machine_.put(slot.value()) : slot.error();
}

Result<void> Decoder::get_numbered(std::size_t bytes) {
  const Result<std::uint64_t> slot = take_number(bytes);
  return slot ? machine_.get(slot.value()) : slot.error();
}

}  // namespace

Result<PickleDocument> read_pickle(std::span<const std::byte> input,
                                   std::span<const PickleGlobal> allowed_globals,
                                   const PickleLimits& limits) {
  // Picklers number memo slots densely, so none reaches the input's length. Without this, five
  // bytes that name the last slot allowed would allocate all of them.
  PickleLimits bounded = limits;
  bounded.memo_max = std::min(limits.memo_max, input.size());
  return Decoder(input, allowed_globals, bounded).run();
}

}  // namespace larder::codec
