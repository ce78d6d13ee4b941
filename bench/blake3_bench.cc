// Claim: naming the chunks of a prompt costs about a nanosecond a byte, so a lookup of 128k tokens
// spends well under a millisecond on hashing. Method: the chain of hashes of a 128k-token prompt in
// chunks of 256 tokens (each hash begins the next input), by each implementation, and as
// extend_hashes() does it, which also turns the tokens to big-endian. Bytes per second count the
// tokens' bytes. Compare with bench/blake3_chain.py.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <vector>

#include "keys/blake3.h"
#include "keys/token_hash.h"

namespace larder::keys {
namespace {

constexpr std::size_t kPromptTokens = 131072;
constexpr std::uint32_t kChunkTokens = 256;
constexpr std::size_t kPromptBytes = kPromptTokens * sizeof(std::uint32_t);

std::vector<std::uint32_t> prompt() {
  std::vector<std::uint32_t> tokens(kPromptTokens);
  std::uint32_t token = 1;
  std::ranges::generate(tokens, [&] {
    token = token * 1664525 + 1013904223;
    return token % 150000;
  });
  return tokens;
}

void hash_prompt(benchmark::State& state, Blake3Implementation implementation) {
  if (!blake3_available(implementation)) {
    state.SkipWithError("this processor lacks the instructions");
    return;
  }
  const std::vector<std::uint32_t> tokens = prompt();
  const auto bytes = std::as_bytes(std::span(tokens));
  constexpr std::size_t kStep = kChunkTokens * sizeof(std::uint32_t);
  for ([[maybe_unused]] auto turn : state) {
    Blake3Digest digest = none_hash().bytes;
    for (std::size_t at = 0; at < bytes.size(); at += kStep) {
      digest = blake3_by(implementation, digest, bytes.subspan(at, kStep));
    }
    benchmark::DoNotOptimize(digest);
  }
  state.SetBytesProcessed(state.iterations() * std::int64_t{kPromptBytes});
}

void extend_hashes_of_prompt(benchmark::State& state) {
  const std::vector<std::uint32_t> tokens = prompt();
  for ([[maybe_unused]] auto turn : state) {
    std::vector<ChunkHash> hashes;
    extend_hashes(tokens, static_cast<std::uint32_t>(state.range(0)), hashes);
    benchmark::DoNotOptimize(hashes.data());
  }
  state.SetBytesProcessed(state.iterations() * std::int64_t{kPromptBytes});
}

BENCHMARK_CAPTURE(hash_prompt, portable, Blake3Implementation::kPortable)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(hash_prompt, sse41, Blake3Implementation::kSse41)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(hash_prompt, avx2, Blake3Implementation::kAvx2)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(hash_prompt, avx512, Blake3Implementation::kAvx512)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(extend_hashes_of_prompt)
    ->ArgName("chunk_tokens")
    ->Arg(16)
    ->Arg(kChunkTokens)
    ->Arg(4096)
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace larder::keys
