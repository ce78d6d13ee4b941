#if defined(__x86_64__)

#include <immintrin.h>

#include <cstring>

#include "keys/blake3_kernel.h"

#define LARDER_VECTOR __attribute__((target("sse4.1")))
#define LARDER_VECTOR_INLINE __attribute__((target("sse4.1"), always_inline)) inline

namespace larder::keys::blake3_kernel {
namespace {

using Vector = __m128i;
constexpr std::size_t kLanes = 4;
constexpr std::size_t kStreams = 1;

LARDER_VECTOR_INLINE Vector add(Vector left, Vector right) {
  return _mm_add_epi32(left, right);
}

LARDER_VECTOR_INLINE Vector exclusive_or(Vector left, Vector right) {
  return _mm_xor_si128(left, right);
}

template <int kBits>
LARDER_VECTOR_INLINE Vector rotate_right(Vector v) {
  if constexpr (kBits == 16) {
    return _mm_shuffle_epi8(v, _mm_set_epi64x(0x0d0c0f0e09080b0a, 0x0504070601000302));
  } else if constexpr (kBits == 8) {
    return _mm_shuffle_epi8(v, _mm_set_epi64x(0x0c0f0e0d080b0a09, 0x0407060500030201));
  } else {
    return _mm_or_si128(_mm_srli_epi32(v, kBits), _mm_slli_epi32(v, 32 - kBits));
  }
}

LARDER_VECTOR_INLINE Vector swap_word_bytes(Vector v) {
  return _mm_shuffle_epi8(v, _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203));
}

LARDER_VECTOR_INLINE Vector broadcast(std::uint32_t word) {
  return _mm_set1_epi32(static_cast<int>(word));
}

LARDER_VECTOR_INLINE Vector load(const void* from) {
  return _mm_loadu_si128(static_cast<const __m128i*>(from));
}

LARDER_VECTOR_INLINE void store(Vector v, void* to) {
  _mm_storeu_si128(static_cast<__m128i*>(to), v);
}

template <int k0, int k1, int k2, int k3>
LARDER_VECTOR_INLINE Vector shuffle(Vector v) {
  return _mm_shuffle_epi32(v, _MM_SHUFFLE(k3, k2, k1, k0));
}

template <int k0, int k1, int k2, int k3>
LARDER_VECTOR_INLINE Vector shuffle_two(Vector low, Vector high) {
  return _mm_castps_si128(
      _mm_shuffle_ps(_mm_castsi128_ps(low), _mm_castsi128_ps(high), _MM_SHUFFLE(k3, k2, k1, k0)));
}

template <int k0, int k1, int k2, int k3>
LARDER_VECTOR_INLINE Vector blend(Vector zeros, Vector ones) {
  return _mm_blend_epi16(zeros, ones, 3 * k0 + 12 * k1 + 48 * k2 + 192 * k3);
}

LARDER_VECTOR_INLINE Vector unpack_high(Vector left, Vector right) {
  return _mm_unpackhi_epi32(left, right);
}

LARDER_VECTOR_INLINE Vector load_streams(const std::byte* const* blocks, std::size_t offset) {
  return load(blocks[0] + offset);
}

LARDER_VECTOR_INLINE Vector set_streams(const std::uint32_t* words, const std::uint32_t*) {
  return load(words);
}

template <std::size_t kStream>
LARDER_VECTOR_INLINE void store_stream(Vector v, std::uint32_t* to) {
  store(v, to);
}

LARDER_VECTOR_INLINE void transpose(Vector* rows) {
  const Vector low_01 = _mm_unpacklo_epi32(rows[0], rows[1]);
  const Vector high_01 = _mm_unpackhi_epi32(rows[0], rows[1]);
  const Vector low_23 = _mm_unpacklo_epi32(rows[2], rows[3]);
  const Vector high_23 = _mm_unpackhi_epi32(rows[2], rows[3]);
  rows[0] = _mm_unpacklo_epi64(low_01, low_23);
  rows[1] = _mm_unpackhi_epi64(low_01, low_23);
  rows[2] = _mm_unpacklo_epi64(high_01, high_23);
  rows[3] = _mm_unpackhi_epi64(high_01, high_23);
}

#include "keys/blake3_vector.inl"

}  // namespace

const Kernel kSse41Kernel = kVectorKernel;

}  // namespace larder::keys::blake3_kernel

#endif
