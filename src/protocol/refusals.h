// refusals.h - the safe negative of each operation: what its client gets when a request was
// refused, failed or could not be read.
//
// A client that gets no answer waits for its timeout (300 s by default), and one that gets an
// answer it cannot decode may never receive again. So each operation has a type-correct answer that
// its client takes for a miss. Every function is pure and works on payloads that may not decode.
// Also used as they are when the connection has too much waiting.
#pragma once

#include "protocol/frames.h"
#include "protocol/responses.h"

namespace larder::protocol {

using Refusal = EncodedReply (*)(Frames frames, Release release);

EncodedReply refuse_with_none(Frames frames, Release release);
EncodedReply refuse_with_false(Frames frames, Release release);
EncodedReply refuse_with_true(Frames frames, Release release);
EncodedReply refuse_with_zero(Frames frames, Release release);
EncodedReply refuse_with_empty_list(Frames frames, Release release);
EncodedReply refuse_register(Frames frames, Release release);          // no shared memory offered
EncodedReply refuse_prepare_store(Frames frames, Release release);     // nothing to write
EncodedReply refuse_prepare_retrieve(Frames frames, Release release);  // a miss
EncodedReply refuse_unified_lookup(Frames frames,
                                   Release release);  // no match; none would mean "still loading"

// [event, false] with an event the client can open; unanswered where no such event exists
// (is_unanswerable below).
EncodedReply refuse_store(Frames frames,
                          Release release);  // STORE, RETRIEVE, CB_STORE_*: event is payload 3
EncodedReply refuse_last_event(Frames frames,
                               Release release);  // CB_RETRIEVE_*: event is the last payload

// The peer zips results with the keys it asked for, so the task id is the number of keys: no state
// is needed.
EncodedReply refuse_peer_lookup(Frames frames, Release release);
EncodedReply refuse_peer_results(Frames frames, Release release);

EncodedReply refuse_handshake(Frames frames, Release release);    // not the peer's version
EncodedReply refuse_module_call(Frames frames, Release release);  // success=false and a reason

// A CUDA client before 0.5.5 (a 64-byte event handle) opens whatever event comes back, and dies on
// one that cannot be opened.
bool is_unanswerable(std::span<const std::byte> event_handle, Release release);

}  // namespace larder::protocol
