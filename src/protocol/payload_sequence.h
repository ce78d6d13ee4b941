// payload_sequence.h - for the decoders of this room: payloads in their order, and arrays of ints.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "protocol/frames.h"

namespace larder::protocol {

// Reads payloads in their order and stops at the first that fails.
class PayloadSequence {
 public:
  PayloadSequence(Frames frames, std::size_t count)
      : frames_(frames), outcome_(expect_count(frames, count)) {}

  // `read(frame)` gives the Result of the next payload.
  template <typename T, typename Read>
  PayloadSequence& next(T& to, Read read) {
    if (outcome_) {
      outcome_ = assign(to, read(frames_[position_]));
      ++position_;
    }
    return *this;
  }

  template <typename T>
  PayloadSequence& next(T& to, Release release, Result<T> (*read)(Frame, Release)) {
    return next(to, [release, read](Frame frame) { return read(frame, release); });
  }

  template <typename Request>
  Result<Request> finish(Request request) const {
    return outcome_ ? Result<Request>(std::move(request)) : outcome_.error();
  }

 private:
  Frames frames_;
  std::size_t position_ = 0;
  Result<void> outcome_;
};

inline Result<void> read_int_array(codec::MsgpackReader& reader, std::vector<std::int64_t>& to) {
  to.clear();
  return read_array(reader, [&to](codec::MsgpackReader& element) -> Result<void> {
    const Result<std::int64_t> value = field_int(element);
    if (!value) {
      return value.error();
    }
    to.push_back(*value);
    return {};
  });
}

}  // namespace larder::protocol
