// blake3.h - BLAKE3, unkeyed, 32-byte output (specification: github.com/BLAKE3-team/BLAKE3-specs,
// version 1).
//
// The implementations (portable, SSE4.1, AVX2, AVX-512VL) give the same bytes; the best one the
// processor has is chosen once at first use. Pure; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace larder::keys {

using Blake3Digest = std::array<std::byte, 32>;

// The hash of `first` followed by `second`, without joining them in memory.
Blake3Digest blake3(std::span<const std::byte> first, std::span<const std::byte> second = {});

// For tests and benchmarks: the same, by one implementation. REQUIRES:
// blake3_available(implementation).
enum class Blake3Implementation { kPortable, kSse41, kAvx2, kAvx512 };
bool blake3_available(Blake3Implementation implementation);
Blake3Digest blake3_by(Blake3Implementation implementation,
                       std::span<const std::byte> first,
                       std::span<const std::byte> second = {});

}  // namespace larder::keys
