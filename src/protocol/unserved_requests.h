// unserved_requests.h - requests that are known but not served: only the shape of their payloads is
// checked.
//
// Blend (CB_*) and peer-to-peer (P2P_*) operations are rows of the table, so that their clients get
// the answer they can live with; their arguments get structs of their own (requests.h) when they
// are served.
#pragma once

#include "protocol/payloads.h"

namespace larder::protocol {

// Every payload decodes as its kind, and there are exactly payloads.size() of them.
Result<void> check_shape(Frames frames, Payloads payloads, Release release);

// A request that decodes to nothing but the fact that it has the payloads `Declared` says.
template <typename Declared>
struct Unserved {
  static Result<Declared> decode(Frames frames, Release release) {
    const Result<void> checked = check_shape(frames, Declared::payloads(release), release);
    return checked ? Result<Declared>(Declared{}) : checked.error();
  }
};

// The same payloads in every release.
template <PayloadKind... kKinds>
struct Shape : Unserved<Shape<kKinds...>> {
  static Payloads payloads(Release) { return kPayloadList<kKinds...>; }
};

struct RegisterRopeRequest : Unserved<RegisterRopeRequest> {
  static Payloads payloads(Release release);
};

// CB_RETRIEVE_PRE_COMPUTED, _V3 before 0.5.5: into paged blocks.
struct BlendRetrieveRequest : Unserved<BlendRetrieveRequest> {
  static Payloads payloads(Release release);
};

struct PeerLookupRequest : Unserved<PeerLookupRequest> {
  static Payloads payloads(Release release);
};

}  // namespace larder::protocol
