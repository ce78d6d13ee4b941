// object_cutter.h - takes whole objects out of a pickled tensor list while it arrives.
//
// A client pickles each tensor with a storage of its own: a blob that begins with some hundred
// bytes of torch's and ends with the tensor's bytes. So a blob that is a little longer than an
// object ends with one, and the object can be received where it is wanted. This is a guess by
// length alone: read_tensor_list() judges what is left, which put_right() makes a pickle of its
// own, together with what was cut out.
//
// Walks the opcodes as codec/pickle_reader.h does and keeps no byte of them; nothing inside a blob
// is looked at. Gives up where that reader would refuse the stream, at STOP, and where much comes
// without an object: nothing is cut any more then. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "codec/pickle_opcodes.h"

namespace larder::tensors {

class ObjectCutter {
 public:
  // What a storage has in front of its bytes; torch writes about 260.
  static constexpr std::size_t kHeadBytesMin = 64;
  static constexpr std::size_t kHeadBytesMax = 1024;

  // Looked at between two objects, at most.
  static constexpr std::size_t kLookedAtMax = 64U << 10;

  // Positions are those in the stream without the objects that were cut out.
  struct Cut {
    std::size_t position;
    std::size_t length_position;  // of the blob that the object was the end of:
    std::size_t length_bytes;     // its length, in so many bytes
    std::uint64_t length;
  };

  explicit ObjectCutter(std::size_t object_bytes) : object_bytes_(object_bytes) {}

  // Goes on in the stream. Returns how many of the bytes are done with: all of them, or those in
  // front of an object, if not is_at_object() already.
  std::size_t scan(std::span<const std::byte> bytes);

  // The object_bytes that come next are an object's. Scanning goes on after one of the two below.
  bool is_at_object() const { return state_ == State::kAtObject; }

  // They are not shown to scan() and no part of the stream any more. REQUIRES: is_at_object().
  void cut_object();

  // They are bytes as any others. REQUIRES: is_at_object().
  void keep_object();

  // So many bytes from here on hold no object, whatever they are.
  std::uint64_t bytes_ahead() const { return state_ == State::kBlob ? left_ : 0; }

  bool has_given_up() const { return state_ == State::kGivenUp; }

  const std::vector<Cut>& cuts() const { return cuts_; }

  // Makes what is left of the stream say the lengths that it has now. REQUIRES: all of it.
  void put_right(std::span<std::byte> left) const;

 private:
  enum class State : std::uint8_t {
    kOpcode,
    kArgument,  // left_ bytes of it
    kLength,    // left_ bytes of it
    kBlob,      // left_ bytes that are not looked at
    kLines,     // left_ of them
    kAtObject,
    kGivenUp,
  };

  void read_opcode(std::byte byte);
  void read_length(std::byte byte);
  void enter(State state, std::uint64_t left);
  std::size_t skip(std::size_t bytes_max);

  const std::size_t object_bytes_;
  State state_ = State::kOpcode;
  std::uint64_t left_ = 0;
  bool ends_with_object_ = false;  // the blob that left_ bytes are left of
  codec::Opcode opcode_{};
  Cut next_{};  // as far as it is known
  std::size_t position_ = 0;
  std::vector<Cut> cuts_;
  std::size_t looked_at_ = 0;
};

}  // namespace larder::tensors
