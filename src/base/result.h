// result.h - errors as values.
//
// Result<T> holds a T or an Error; Result<void> holds success or an Error. The members are named as
// in std::expected, which g++ 12 has only from C++23 on and clang 14 not at all. Nothing here
// throws; reading the wrong side is a bug and aborts. The class is [[nodiscard]], so a dropped
// result does not compile.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "base/check.h"

namespace larder {

// The one error enum of the server. Each value says who acts on it.
enum class Code {
  kMalformed,    // bytes of a peer that do not decode: the request is refused
  kInvalid,      // decodes, but the values make no sense: the request is refused
  kTooLarge,     // beyond a configured limit: the request is refused
  kNoSpace,      // the pool (or its memory) is full: the caller may evict and try again
  kNotFound,     // the instance, object or request is not known: a miss
  kMismatch,     // what is there has another layout, owner or content: a miss
  kUnsupported,  // known, but not served by this server: the request is refused
  kBusy,         // in use by somebody else (port, segment)
  kSystem,       // the operating system refused; detail carries errno's text
};

std::string_view to_string(Code code);

struct Error {
  Code code;
  std::string detail;  // for the log, never for a peer
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}

  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool has_value() const { return state_.index() == 0; }

  explicit operator bool() const { return has_value(); }

  T& value() & {
    LARDER_CHECK(has_value());
    return *std::get_if<0>(&state_);
  }

  const T& value() const& {
    LARDER_CHECK(has_value());
    return *std::get_if<0>(&state_);
  }

  T&& value() && {
    LARDER_CHECK(has_value());
    return std::move(*std::get_if<0>(&state_));
  }

  T& operator*() & { return value(); }

  const T& operator*() const& { return value(); }

  T&& operator*() && { return std::move(*this).value(); }

  T* operator->() { return &value(); }

  const T* operator->() const { return &value(); }

  const Error& error() const {
    LARDER_CHECK(!has_value());
    return *std::get_if<1>(&state_);
  }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;

  Result(Error error) : error_(std::move(error)) {}

  bool has_value() const { return !error_.has_value(); }

  explicit operator bool() const { return has_value(); }

  const Error& error() const {
    LARDER_CHECK(error_.has_value());
    return *error_;
  }

 private:
  std::optional<Error> error_;
};

}  // namespace larder
