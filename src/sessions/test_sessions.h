// test_sessions.h - for the tests of this room: prompts made of tokens, a small cache, and a clock
// that is moved by hand.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cache/test_cache.h"
#include "sessions/instances.h"
#include "sessions/prompt_hashes.h"
#include "sessions/quarantine.h"
#include "sessions/sessions.h"

namespace larder::sessions {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

inline constexpr std::uint32_t kTestChunkTokens = 4;

// Prompts of different numbers differ from their first token on.
inline std::vector<std::uint32_t> test_tokens(std::uint32_t prompt, std::size_t chunks) {
  std::vector<std::uint32_t> tokens;
  for (std::uint32_t i = 0; i < chunks * kTestChunkTokens; ++i) {
    tokens.push_back(prompt * 1000 + i);
  }
  return tokens;
}

inline std::vector<keys::ChunkHash> hashes_of(const std::vector<std::uint32_t>& tokens) {
  std::vector<keys::ChunkHash> hashes;
  keys::extend_hashes(tokens, kTestChunkTokens, hashes);
  return hashes;
}

inline std::vector<keys::ChunkHash> hashes_of(std::uint32_t prompt, std::size_t chunks) {
  return hashes_of(test_tokens(prompt, chunks));
}

inline PromptView test_view(std::uint32_t prompt, std::size_t chunks) {
  return {std::make_shared<const std::vector<keys::ChunkHash>>(hashes_of(prompt, chunks)), chunks};
}

inline constexpr ConnectionId kScheduler{1};
inline constexpr ConnectionId kOtherScheduler{2};
inline constexpr ConnectionId kWorkerConnection{3};

inline constexpr InstanceLimits kTestInstanceLimits{
    .reap_timeout = seconds(120),
    .registration_grace = seconds(3600),
    .write_ttl = seconds(600),
    .reconnect_grace = seconds(30),
    .quarantine_done = seconds(1),
    .quarantine_restart = seconds(30),
    .quarantine_silence = minutes(10),
    .instances_max = 4,
    .told_max = 3,
};

}  // namespace larder::sessions
