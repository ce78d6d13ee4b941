// payloads.h - what a request's payload frames are declared to be, and whether a message looks
// like that.
//
// Every request type (requests.h, unserved_requests.h) declares its payloads for each release. The
// declaration is what tells dialects apart, where one number means several operations, and what
// docs/protocol.md shows; decoding is the request type's own.
//
// fits() is for the wire thread: it looks at counts, types and what differs between releases, and
// at a bounded part of each frame however long it is. A message that fits may still fail to decode;
// one that a real client of the release sent always fits. Unlike a decoder it coerces nothing, as
// no client sends what needs it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "protocol/frames.h"
#include "protocol/release.h"

namespace larder::protocol {

enum class PayloadKind : std::uint8_t {
  kKey,
  kSchedulerKey,  // of all workers: worker_id is nil
  kWorkerKey,     // of one: worker_id is a number
  kInt,
  kOptionalInt,
  kBool,
  kFloat,
  kBinary,
  kString,
  kTensor,             // one Ext 1 device memory descriptor
  kTensors,            // array of them
  kIntArray,           // of ints
  kIntArrays,          // array of arrays
  kTokenSpans,         // array of [int, int]
  kEngineType,         // a string out of a list
  kLayoutHints,        // map
  kEngineGroups,       // array of EngineGroupInfo
  kRegistration,       // the engine-driven registration
  kAllocationRecords,  // array of BlockAllocationRecord
  kMatches,            // array of CBMatchResult
  kPeerKeys,           // array of ObjectKey
  kMemoryLayout,       // {shapes, dtypes}
  kMemoryLayouts,      // map of int to them
  kModuleCall,         // {method, payload}
};

using Payloads = std::span<const PayloadKind>;

template <PayloadKind... kKinds>
inline constexpr std::array<PayloadKind, sizeof...(kKinds)> kPayloadList{kKinds...};

// How docs/protocol.md calls it.
std::string_view name_of(PayloadKind kind);

bool fits(Frames frames, Payloads payloads, Release release);

}  // namespace larder::protocol
