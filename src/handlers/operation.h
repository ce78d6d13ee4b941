// operation.h - a row of the operation table, and op<>, which makes one from a handler.
//
// op<&on_x> reads the request and reply types off the handler's signature
//
//   Result<Reply> on_x(Services& services, const Caller& caller, const Request& request);
//
// and makes the decode-call-encode function of the row, so a row cannot disagree with its handler.
// Whatever fails on the way, the reply is the row's refusal: no handler writes an error reply.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "handlers/services.h"
#include "protocol/frames.h"
#include "protocol/payloads.h"
#include "protocol/refusals.h"
#include "protocol/release.h"
#include "protocol/requests.h"
#include "protocol/responses.h"
#include "transport/dispatcher.h"

namespace larder::handlers {

inline constexpr std::int16_t kAbsent = -1;  // the release does not know this operation
inline constexpr std::int16_t kByName = -2;  // it sends the row's name in lower case

using WireIds = std::array<std::int16_t, protocol::kReleaseCount>;

// What running a request came to: the error is for the log and the counters, the reply goes out
// either way.
struct RunResult {
  protocol::EncodedReply reply;
  Result<void> outcome;
};

// Called with the payloads of a request that was refused, for operations whose refusal leaves
// something behind.
using RefusalHook = void (*)(Services& services,
                             const Caller& caller,
                             protocol::Frames frames,
                             protocol::Release release);

struct Operation {
  std::string_view name;
  WireIds ids;
  transport::Lane lane;
  protocol::Refusal refusal;
  RefusalHook after_refusal;
  protocol::Payloads (*payloads)(protocol::Release release);
  std::string_view (*reply)(protocol::Release release);  // its declared type
  bool reply_may_be_none;
  bool (*decodes)(protocol::Frames frames, protocol::Release release);  // for tests
  RunResult (*run)(Services& services,
                   const Caller& caller,
                   protocol::Frames frames,
                   protocol::Release release);
};

template <typename Handler>
struct HandlerTypes;

template <typename ReplyType, typename RequestType>
struct HandlerTypes<Result<ReplyType> (*)(Services&, const Caller&, const RequestType&)> {
  using Reply = ReplyType;
  using Request = RequestType;
};

template <auto kHandler, protocol::Refusal kRefusal>
RunResult run_operation(Services& services,
                        const Caller& caller,
                        protocol::Frames frames,
                        protocol::Release release) {
  using Types = HandlerTypes<decltype(kHandler)>;
  const Result<typename Types::Request> request = Types::Request::decode(frames, release);
  if (!request) {
    if constexpr (std::is_same_v<typename Types::Request, protocol::EmptyRequest>) {
      // A question without arguments is answered whatever comes with it.
      if (const auto answer = kHandler(services, caller, {})) {
        return {protocol::encode_reply(*answer, release), request.error()};
      }
    }
    return {kRefusal(frames, release), request.error()};
  }
  const auto reply = kHandler(services, caller, *request);
  if (!reply) {
    return {kRefusal(frames, release), reply.error()};
  }
  return {protocol::encode_reply(*reply, release), {}};
}

// kAfterRefusal is for the few operations that must remember that they were refused.
template <auto kHandler, protocol::Refusal kRefusal, RefusalHook kAfterRefusal = nullptr>
constexpr Operation op(std::string_view name, WireIds ids, transport::Lane lane) {
  using Types = HandlerTypes<decltype(kHandler)>;
  return Operation{
      name,
      ids,
      lane,
      kRefusal,
      kAfterRefusal,
      &Types::Request::payloads,
      [](protocol::Release release) {
        return text_of(protocol::ReplyOf<typename Types::Reply>{}, release);
      },
      protocol::kMayBeNone<typename Types::Reply>,
      [](protocol::Frames frames, protocol::Release release) {
        return Types::Request::decode(frames, release).has_value();
      },
      &run_operation<kHandler, kRefusal>,
  };
}

}  // namespace larder::handlers
