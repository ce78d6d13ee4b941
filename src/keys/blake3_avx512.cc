#if defined(__x86_64__)

#include <immintrin.h>

#include <cstring>

#include "keys/blake3_kernel.h"

#define LARDER_VECTOR __attribute__((target("avx2,avx512f,avx512vl")))
#define LARDER_VECTOR_INLINE __attribute__((target("avx2,avx512f,avx512vl"), always_inline)) inline

namespace larder::keys::blake3_kernel {
namespace {

#include "keys/blake3_vector256.inl"

template <int kBits>
LARDER_VECTOR_INLINE Vector rotate_right(Vector v) {
  return _mm256_ror_epi32(v, kBits);
}

#include "keys/blake3_vector.inl"

}  // namespace

const Kernel kAvx512Kernel = kVectorKernel;

}  // namespace larder::keys::blake3_kernel

#endif
