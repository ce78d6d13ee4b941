#include "zmtp/handshake.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

namespace larder::zmtp {
namespace {

using Bytes = std::span<const std::byte>;

constexpr std::size_t kSignatureEnd = 9;
constexpr std::size_t kMajor = 10;
constexpr std::size_t kMechanism = 12;
constexpr std::size_t kMechanismBytes = 20;
constexpr std::byte kMajorSpoken{3};
constexpr std::byte kMinorSpoken{1};
constexpr std::byte kSignatureFirst{0xff};
constexpr std::byte kSignatureLast{0x7f};
constexpr std::byte kTlsHandshake{0x16};

constexpr std::string_view kNull = "NULL";
constexpr std::string_view kSocketType = "Socket-Type";
constexpr std::string_view kIdentity = "Identity";
constexpr std::size_t kIdentityBytesMax = 255;
constexpr std::size_t kValueLengthBytes = 4;
constexpr unsigned kBitsOfByte = 8;

constexpr std::size_t kReadyBytes = 43;
using Hello = std::array<std::byte, kGreetingBytes + kReadyBytes>;

constexpr Hello make_hello() {
  // Command frame of 41 bytes; command READY; Socket-Type = ROUTER; Identity = nothing.
  constexpr std::string_view kReady(
      "\x04\x29\x05READY\x0bSocket-Type\0\0\0\x06ROUTER\x08Identity\0\0\0\0", kReadyBytes);
  Hello hello{};
  hello[0] = kSignatureFirst;
  hello[kSignatureEnd - 1] = std::byte{1};  // as libzmq: the length of no identity, plus one
  hello[kSignatureEnd] = kSignatureLast;
  hello[kMajor] = kMajorSpoken;
  hello[kMajor + 1] = kMinorSpoken;
  const auto put = [&hello](std::size_t at, std::string_view text) {
    for (std::size_t i = 0; i < text.size(); ++i) {
      hello[at + i] = static_cast<std::byte>(text[i]);
    }
  };
  put(kMechanism, kNull);
  put(kGreetingBytes, kReady);
  return hello;
}

constexpr Hello kHello = make_hello();

std::string_view text_of(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

char lower(char letter) {
  return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
}

// Property names are compared without case (RFC 37).
bool same_name(std::string_view left, std::string_view right) {
  return std::equal(left.begin(), left.end(), right.begin(), right.end(), [](char a, char b) {
    return lower(a) == lower(b);
  });
}

// Which crowd a peer that does not begin with a signature belongs to.
CloseReason foreign_kind(std::byte first) {
  if (first == kTlsHandshake) {
    return CloseReason::kTls;
  }
  // ZMTP 1 begins with the length of its identity frame, plus one.
  if (first == std::byte{1}) {
    return CloseReason::kOldZmtp;
  }
  constexpr std::string_view kVerbs =
      "CDGHOPT";  // CONNECT, DELETE, GET, HEAD, OPTIONS, POST, TRACE
  if (kVerbs.find(static_cast<char>(first)) != std::string_view::npos) {
    return CloseReason::kHttp;
  }
  return CloseReason::kForeign;
}

bool is_null_mechanism(Bytes mechanism) {
  const std::string_view name = text_of(mechanism);
  return name.starts_with(kNull) &&
         name.find_first_not_of('\0', kNull.size()) == std::string_view::npos;
}

bool is_served(std::string_view socket_type) {
  return socket_type == "DEALER" || socket_type == "REQ" || socket_type == "ROUTER";
}

// Cuts `count` bytes off the front of `rest`; false when there are fewer.
bool cut(Bytes& rest, std::size_t count, Bytes& front) {
  if (rest.size() < count) {
    return false;
  }
  front = rest.first(count);
  rest = rest.subspan(count);
  return true;
}

bool cut_property(Bytes& rest, std::string_view& name, Bytes& value) {
  Bytes length;
  Bytes name_bytes;
  if (!cut(rest, 1, length) || !cut(rest, std::to_integer<std::size_t>(length[0]), name_bytes) ||
      !cut(rest, kValueLengthBytes, length)) {
    return false;
  }
  std::size_t value_bytes = 0;
  for (const std::byte digit : length) {
    value_bytes = value_bytes << kBitsOfByte | std::to_integer<std::size_t>(digit);
  }
  name = text_of(name_bytes);
  return cut(rest, value_bytes, value);
}

}  // namespace

std::span<const std::byte> server_hello() {
  return kHello;
}

std::optional<CloseReason> judge_greeting(std::span<const std::byte> received) {
  constexpr std::byte kOddBit{1};
  if (!received.empty() && received[0] != kSignatureFirst) {
    return foreign_kind(received[0]);
  }
  // An even byte here is the flags of ZMTP 1's long identity frame, or nothing at all.
  if (received.size() > kSignatureEnd && (received[kSignatureEnd] & kOddBit) == std::byte{0}) {
    return CloseReason::kOldZmtp;
  }
  if (received.size() > kMajor && received[kMajor] < kMajorSpoken) {
    return CloseReason::kOldZmtp;
  }
  if (received.size() >= kMechanism + kMechanismBytes &&
      !is_null_mechanism(received.subspan(kMechanism, kMechanismBytes))) {
    return CloseReason::kMechanism;
  }
  return std::nullopt;
}

std::optional<CloseReason> read_ready(std::span<const std::byte> properties, PeerReady& ready) {
  while (!properties.empty()) {
    std::string_view name;
    Bytes value;
    if (!cut_property(properties, name, value)) {
      return CloseReason::kBadReady;
    }
    if (same_name(name, kSocketType)) {
      if (!is_served(text_of(value))) {
        return CloseReason::kSocketType;
      }
      ready.socket_type = text_of(value);
    } else if (same_name(name, kIdentity)) {
      if (value.size() > kIdentityBytesMax) {
        return CloseReason::kBadReady;
      }
      ready.identity = text_of(value);
    }
  }
  return std::nullopt;
}

}  // namespace larder::zmtp
