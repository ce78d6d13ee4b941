// limits.h - the bounds of queues, waits and sizes that no flag sets. One line of reason each.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace larder::config {

// Largest message, unless the pool is larger (a payload beyond the pool cannot be stored) or a flag
// says so.
inline constexpr std::size_t kMessageBytesMin = 64U << 20;

// Bytes of one connection's requests that wait or run: many million-token keys (5 MB each), or one
// payload as large as the pool.
inline constexpr std::size_t kBufferedBytesPerPeerMin = 256U << 20;

// The same of all connections: a node's worth of copy-mode stores at a time.
inline constexpr std::size_t kBufferedBytesMin = std::size_t{1} << 30;

// Bytes of replies that a peer has not read.
inline constexpr std::size_t kUnreadBytesPerPeerMin = 256U << 20;

// The same of all connections, without what is sent from the pool. Such replies are of a hundred
// kilobytes at most, so more than this is peers that read none.
inline constexpr std::size_t kUnreadHeapBytesMax = 512U << 20;

// Tokens in one key: 64M ids are 256 MB decoded, far beyond any context window.
inline constexpr std::size_t kTokensMax = 64U << 20;

// Token prefixes kept so that a request is hashed once (4 bytes a token).
inline constexpr std::size_t kPromptHashTokensMax = 8U << 20;

// How long an idle prompt's hashes are kept.
inline constexpr std::chrono::seconds kPromptHashIdle{600};

// Ids told once to register again; beyond, the oldest is forgotten and may be told twice.
inline constexpr std::size_t kToldInstancesMax = 4096;

// Registered instances; an engine worker is one.
inline constexpr std::size_t kInstancesMax = 65536;

// Sessions (lookups not yet ended); the oldest is ended when a peer floods us with more.
inline constexpr std::size_t kSessionsMax = 65536;

// A slot whose client said it is done (UNREGISTER) may still be written for a moment by its copy
// threads.
inline constexpr std::chrono::seconds kQuarantineAfterUnregister{1};

// How long an engine that unregisters waits for the copies of its memory under way: longer than any
// takes whose engine still works.
inline constexpr std::chrono::seconds kRetirePatience{2};

// A slot whose client fell silent may be written when it wakes up; kept until its connection is
// gone, at most this long.
inline constexpr std::chrono::minutes kQuarantineAfterSilence{10};

// A client that registers again may have copies of before still running; its old slots rest this
// long.
inline constexpr std::chrono::seconds kQuarantineAfterRestart{30};

// After a connection is gone, how long its instance may take to show up on a new one before its
// transfers are dropped.
inline constexpr std::chrono::seconds kReconnectGrace{30};

// The reply of the request loop to the health probe.
inline constexpr std::chrono::milliseconds kProbeTimeout{1000};

// A maintenance thread that has not finished a pass for this long counts as dead.
inline constexpr std::chrono::seconds kMaintenanceSilenceMax{15};

}  // namespace larder::config
