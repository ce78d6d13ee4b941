// traces.h - made-up request traces for the eviction simulator, the same for the same seed.
//
// A trace is a tree of chunks and requests that each end somewhere in it: the path from the root is
// the prompt, so prompts that share a beginning share nodes. Texts are counted in tokens and only
// full chunks become nodes, as in the server: the rest of one turn is the beginning of the next
// one's first chunk.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace larder::bench {

inline constexpr std::uint32_t kChunkTokens = 256;
inline constexpr std::uint32_t kRoot = 0;

struct Request {
  double arrival_s;         // of the lookup
  double finish_s;          // of the store and the end
  std::uint32_t asked;      // node of the prompt's last full chunk
  std::uint32_t generated;  // node of the last full chunk of prompt and answer
};

struct Trace {
  std::vector<std::uint32_t> parents;  // by node; the root is its own
  std::vector<Request> requests;       // by arrival

  std::uint32_t chunks() const { return static_cast<std::uint32_t>(parents.size() - 1); }

  // The most chunks that are stored and will be asked for again at one moment: a pool of this size
  // could find all that can be found, if it knew the future.
  std::size_t working_set() const;

  std::vector<std::uint32_t> path(std::uint32_t node) const;  // from the first chunk to `node`
};

inline constexpr std::array<std::string_view, 5> kTraceNames = {
    "chat", "rag", "agent", "scan", "mix"};

// REQUIRES: one of kTraceNames.
Trace make_trace(std::string_view name, std::uint64_t seed);

}  // namespace larder::bench
