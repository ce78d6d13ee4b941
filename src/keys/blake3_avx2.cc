#if defined(__x86_64__)

#include <immintrin.h>

#include <cstring>

#include "keys/blake3_kernel.h"

#define LARDER_VECTOR __attribute__((target("avx2")))
#define LARDER_VECTOR_INLINE __attribute__((target("avx2"), always_inline)) inline

namespace larder::keys::blake3_kernel {
namespace {

#include "keys/blake3_vector256.inl"

template <int kBits>
LARDER_VECTOR_INLINE Vector rotate_right(Vector v) {
  if constexpr (kBits == 16) {
    return shuffle_bytes(v, 0x0d0c0f0e09080b0a, 0x0504070601000302);
  } else if constexpr (kBits == 8) {
    return shuffle_bytes(v, 0x0c0f0e0d080b0a09, 0x0407060500030201);
  } else {
    return _mm256_or_si256(_mm256_srli_epi32(v, kBits), _mm256_slli_epi32(v, 32 - kBits));
  }
}

#include "keys/blake3_vector.inl"

}  // namespace

const Kernel kAvx2Kernel = kVectorKernel;

}  // namespace larder::keys::blake3_kernel

#endif
