// blake3_vector256.inl - the operations of blake3_vector.inl on 256-bit vectors: two streams of
// rows, eight lanes.
//
// Included like that file. The one operation left to the kernel is rotate_right.

using Vector = __m256i;
constexpr std::size_t kLanes = 8;
constexpr std::size_t kStreams = 2;

LARDER_VECTOR_INLINE Vector add(Vector left, Vector right) {
  return _mm256_add_epi32(left, right);
}

LARDER_VECTOR_INLINE Vector exclusive_or(Vector left, Vector right) {
  return _mm256_xor_si256(left, right);
}

// The same order of bytes in both halves.
LARDER_VECTOR_INLINE Vector shuffle_bytes(Vector v, long long high, long long low) {
  return _mm256_shuffle_epi8(v, _mm256_set_epi64x(high, low, high, low));
}

LARDER_VECTOR_INLINE Vector swap_word_bytes(Vector v) {
  return shuffle_bytes(v, 0x0c0d0e0f08090a0b, 0x0405060700010203);
}

LARDER_VECTOR_INLINE Vector broadcast(std::uint32_t word) {
  return _mm256_set1_epi32(static_cast<int>(word));
}

LARDER_VECTOR_INLINE Vector load(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

LARDER_VECTOR_INLINE void store(Vector v, void* to) {
  _mm256_storeu_si256(static_cast<__m256i*>(to), v);
}

template <int k0, int k1, int k2, int k3>
LARDER_VECTOR_INLINE Vector shuffle(Vector v) {
  return _mm256_shuffle_epi32(v, _MM_SHUFFLE(k3, k2, k1, k0));
}

template <int k0, int k1, int k2, int k3>
LARDER_VECTOR_INLINE Vector shuffle_two(Vector low, Vector high) {
  return _mm256_castps_si256(_mm256_shuffle_ps(
      _mm256_castsi256_ps(low), _mm256_castsi256_ps(high), _MM_SHUFFLE(k3, k2, k1, k0)));
}

template <int k0, int k1, int k2, int k3>
LARDER_VECTOR_INLINE Vector blend(Vector zeros, Vector ones) {
  return _mm256_blend_epi32(zeros, ones, 17 * (k0 + 2 * k1 + 4 * k2 + 8 * k3));
}

LARDER_VECTOR_INLINE Vector unpack_high(Vector left, Vector right) {
  return _mm256_unpackhi_epi32(left, right);
}

LARDER_VECTOR_INLINE __m128i load_half(const void* from) {
  return _mm_loadu_si128(static_cast<const __m128i*>(from));
}

LARDER_VECTOR_INLINE Vector load_streams(const std::byte* const* blocks, std::size_t offset) {
  return _mm256_set_m128i(load_half(blocks[1] + offset), load_half(blocks[0] + offset));
}

LARDER_VECTOR_INLINE Vector set_streams(const std::uint32_t* left, const std::uint32_t* right) {
  return _mm256_set_m128i(load_half(right), load_half(left));
}

template <std::size_t kStream>
LARDER_VECTOR_INLINE void store_stream(Vector v, std::uint32_t* to) {
  void* const bytes = to;
  _mm_storeu_si128(static_cast<__m128i*>(bytes), _mm256_extracti128_si256(v, kStream));
}

// Four rows: a 4x4 transpose within each half.
LARDER_VECTOR_INLINE void transpose_halves(Vector* rows) {
  const Vector low_01 = _mm256_unpacklo_epi32(rows[0], rows[1]);
  const Vector high_01 = _mm256_unpackhi_epi32(rows[0], rows[1]);
  const Vector low_23 = _mm256_unpacklo_epi32(rows[2], rows[3]);
  const Vector high_23 = _mm256_unpackhi_epi32(rows[2], rows[3]);
  rows[0] = _mm256_unpacklo_epi64(low_01, low_23);
  rows[1] = _mm256_unpackhi_epi64(low_01, low_23);
  rows[2] = _mm256_unpacklo_epi64(high_01, high_23);
  rows[3] = _mm256_unpackhi_epi64(high_01, high_23);
}

LARDER_VECTOR_INLINE void transpose(Vector* rows) {
  transpose_halves(rows);
  transpose_halves(rows + 4);
  for (std::size_t i = 0; i < 4; ++i) {
    const Vector low = _mm256_permute2x128_si256(rows[i], rows[i + 4], 0x20);
    rows[i + 4] = _mm256_permute2x128_si256(rows[i], rows[i + 4], 0x31);
    rows[i] = low;
  }
}
