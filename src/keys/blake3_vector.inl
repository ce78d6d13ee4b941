// blake3_vector.inl - the compression function over vectors, in the two forms that BLAKE3 allows.
//
// Rows: the 4x4 words of state are four vectors, and the four mixes of a half round run side by
// side. This is the form for one chunk after another, where each block waits for the one before; a
// 256-bit vector runs two such streams. Lanes: each of the sixteen words is a vector over several
// chunks. This is the form for long inputs.
//
// Included once by each vector kernel, inside its anonymous namespace, after it has defined
//   LARDER_VECTOR, LARDER_VECTOR_INLINE   the attributes that switch on the instruction set,
//   function by function, so that
//                                         the build needs no flags for single files
//   Vector, kLanes (32-bit words in a Vector), kStreams (128-bit parts)
//   add, exclusive_or, rotate_right<bits>, broadcast, load, store
//   shuffle<>, shuffle_two<>, blend<>, unpack_high     within each 128-bit part
//   load_streams, store_stream, set_streams, transpose, swap_word_bytes

struct Rows {
  Vector a;
  Vector b;
  Vector c;
  Vector d;
};

// The message words of one round, in the order in which the mixes take them.
struct RowMessage {
  Vector column_x;
  Vector column_y;
  Vector diagonal_x;
  Vector diagonal_y;
};

// The message word is added before row b is known. The compiler would rather add it last, which
// puts it on the path that every block waits for: 15 % slower with g++ 12.
LARDER_VECTOR_INLINE Vector add_ahead(Vector row, Vector words) {
  Vector sum = add(row, words);
  asm("" : "+x"(sum));
  return sum;
}

LARDER_VECTOR_INLINE void mix_rows(Rows& rows, Vector x, Vector y) {
  rows.a = add(add_ahead(rows.a, x), rows.b);
  rows.d = rotate_right<16>(exclusive_or(rows.d, rows.a));
  rows.c = add(rows.c, rows.d);
  rows.b = rotate_right<12>(exclusive_or(rows.b, rows.c));
  rows.a = add(add_ahead(rows.a, y), rows.b);
  rows.d = rotate_right<8>(exclusive_or(rows.d, rows.a));
  rows.c = add(rows.c, rows.d);
  rows.b = rotate_right<7>(exclusive_or(rows.b, rows.c));
}

// Row b is the last to be ready, so it keeps its place and the other three turn around it to line
// up the diagonals.
LARDER_VECTOR_INLINE void mix_round(Rows& rows, const RowMessage& message) {
  mix_rows(rows, message.column_x, message.column_y);
  rows.a = shuffle<3, 0, 1, 2>(rows.a);
  rows.c = shuffle<1, 2, 3, 0>(rows.c);
  rows.d = shuffle<2, 3, 0, 1>(rows.d);
  mix_rows(rows, message.diagonal_x, message.diagonal_y);
  rows.a = shuffle<1, 2, 3, 0>(rows.a);
  rows.c = shuffle<3, 0, 1, 2>(rows.c);
  rows.d = shuffle<2, 3, 0, 1>(rows.d);
}

// Words 0 2 4 6, 1 3 5 7, 14 8 10 12 and 15 9 11 13: mix_round() meets the diagonals in the order 3
// 0 1 2.
LARDER_VECTOR_INLINE RowMessage first_message(const std::byte* const* blocks) {
  const Vector words_0 = load_streams(blocks, 0);
  const Vector words_4 = load_streams(blocks, 16);
  const Vector words_8 = load_streams(blocks, 32);
  const Vector words_12 = load_streams(blocks, 48);
  return {.column_x = shuffle_two<0, 2, 0, 2>(words_0, words_4),
          .column_y = shuffle_two<1, 3, 1, 3>(words_0, words_4),
          .diagonal_x = shuffle<3, 0, 1, 2>(shuffle_two<0, 2, 0, 2>(words_8, words_12)),
          .diagonal_y = shuffle<3, 0, 1, 2>(shuffle_two<1, 3, 1, 3>(words_8, words_12))};
}

// One step of the message schedule: words 2 3 7 4, 6 10 0 13, 15 1 12 9 and 8 11 5 14 of the round
// before, named as in first_message().
LARDER_VECTOR_INLINE RowMessage next_message(const RowMessage& m) {
  const Vector words_2437 = shuffle_two<1, 2, 1, 3>(m.column_x, m.column_y);
  const Vector words_10_13 = blend<0, 0, 0, 1>(m.diagonal_x, m.diagonal_y);  // lanes 2 and 3
  const Vector words_1_12 = blend<0, 0, 0, 1>(m.column_y, m.diagonal_x);     // lanes 0 and 3
  const Vector words_11_5 = unpack_high(m.diagonal_y, m.column_y);           // lanes 0 and 1
  return {.column_x = shuffle<0, 2, 3, 1>(words_2437),
          .column_y = shuffle<0, 2, 1, 3>(shuffle_two<3, 0, 2, 3>(m.column_x, words_10_13)),
          .diagonal_x = shuffle<0, 2, 3, 1>(shuffle_two<0, 1, 0, 3>(m.diagonal_y, words_1_12)),
          .diagonal_y = shuffle<0, 2, 3, 1>(shuffle_two<1, 0, 0, 1>(m.diagonal_x, words_11_5))};
}

// Unrolled, so that the shuffled rows need not move back to the registers they came from.
template <std::size_t kRoundsLeft>
LARDER_VECTOR_INLINE void mix_rounds(Rows& rows, const RowMessage& message) {
  mix_round(rows, message);
  if constexpr (kRoundsLeft > 1) {
    mix_rounds<kRoundsLeft - 1>(rows, next_message(message));
  }
}

// The chaining values of all streams: words 0-3 and 4-7.
struct RowValues {
  Vector low;
  Vector high;
};

LARDER_VECTOR_INLINE RowValues initial_rows() {
  return {.low = set_streams(kInitialValue.data(), kInitialValue.data()),
          .high = set_streams(kInitialValue.data() + 4, kInitialValue.data() + 4)};
}

LARDER_VECTOR_INLINE void compress_rows(RowValues& values,
                                        const std::byte* const* blocks,
                                        Vector parameters) {
  Rows rows{.a = values.low, .b = values.high, .c = initial_rows().low, .d = parameters};
  mix_rounds<kRounds>(rows, first_message(blocks));
  values.low = exclusive_or(rows.a, rows.c);
  values.high = exclusive_or(rows.b, rows.d);
}

LARDER_VECTOR_INLINE std::array<std::uint32_t, 4> parameters_of(const Chunk& chunk,
                                                                std::size_t block) {
  return {static_cast<std::uint32_t>(chunk.counter),
          static_cast<std::uint32_t>(chunk.counter >> 32),
          static_cast<std::uint32_t>(chunk.bytes_of(block)),
          chunk.flags_of(block)};
}

// Both streams in step; the right one may be shorter, then its value is taken when it ends and its
// lane idles on.
LARDER_VECTOR ChunkPair hash_streams(const Chunk& left, const Chunk& right) {
  ChunkPair pair{};
  RowValues values = initial_rows();
  const std::size_t left_count = left.block_count();
  const std::size_t right_count = right.block_count();
  for (std::size_t block = 0; block < left_count; ++block) {
    const std::size_t right_block = std::min(block, right_count - 1);
    const std::array<const std::byte*, 2> blocks{left.blocks + block * kBlockBytes,
                                                 right.blocks + right_block * kBlockBytes};
    const std::array<std::uint32_t, 4> left_parameters = parameters_of(left, block);
    const std::array<std::uint32_t, 4> right_parameters = parameters_of(right, right_block);
    compress_rows(
        values, blocks.data(), set_streams(left_parameters.data(), right_parameters.data()));
    if (kStreams > 1 && block + 1 == right_count) {
      store_stream<kStreams - 1>(values.low, pair[1].data());
      store_stream<kStreams - 1>(values.high, pair[1].data() + 4);
    }
  }
  store_stream<0>(values.low, pair[0].data());
  store_stream<0>(values.high, pair[0].data() + 4);
  return pair;
}

LARDER_VECTOR ChainingValue hash_chunk(const Chunk& chunk) {
  return hash_streams(chunk, chunk)[0];
}

LARDER_VECTOR ChunkPair hash_pair(const Chunk& left, const Chunk& right) {
  if constexpr (kStreams > 1) {
    return hash_streams(left, right);
  } else {
    return {hash_chunk(left), hash_chunk(right)};
  }
}

LARDER_VECTOR ChainingValue merge(const ChainingValue& left,
                                  const ChainingValue& right,
                                  std::uint32_t flags) {
  const std::array<ChainingValue, 2> block{left, right};
  const auto bytes = std::as_bytes(std::span(block));
  const std::array<const std::byte*, 2> blocks{bytes.data(), bytes.data()};
  const std::array<std::uint32_t, 4> parameters{0, 0, kBlockBytes, flags};
  RowValues values = initial_rows();
  compress_rows(values, blocks.data(), set_streams(parameters.data(), parameters.data()));
  ChainingValue value{};
  store_stream<0>(values.low, value.data());
  store_stream<0>(values.high, value.data() + 4);
  return value;
}

// Not a std::array: as a template argument, Vector would lose its attributes.
struct LaneWords {
  Vector words[16];  // NOLINT(modernize-avoid-c-arrays)
};

template <std::size_t kA, std::size_t kB, std::size_t kC, std::size_t kD>
LARDER_VECTOR_INLINE void mix_lanes(LaneWords& state, Vector x, Vector y) {
  Vector* const v = state.words;
  v[kA] = add(add(v[kA], x), v[kB]);
  v[kD] = rotate_right<16>(exclusive_or(v[kD], v[kA]));
  v[kC] = add(v[kC], v[kD]);
  v[kB] = rotate_right<12>(exclusive_or(v[kB], v[kC]));
  v[kA] = add(add(v[kA], y), v[kB]);
  v[kD] = rotate_right<8>(exclusive_or(v[kD], v[kA]));
  v[kC] = add(v[kC], v[kD]);
  v[kB] = rotate_right<7>(exclusive_or(v[kB], v[kC]));
}

template <std::size_t kRound>
LARDER_VECTOR_INLINE void mix_lanes_round(LaneWords& state, const LaneWords& message) {
  constexpr std::array<std::size_t, 16> s = kSchedule[kRound];
  const Vector* const m = message.words;
  mix_lanes<0, 4, 8, 12>(state, m[s[0]], m[s[1]]);
  mix_lanes<1, 5, 9, 13>(state, m[s[2]], m[s[3]]);
  mix_lanes<2, 6, 10, 14>(state, m[s[4]], m[s[5]]);
  mix_lanes<3, 7, 11, 15>(state, m[s[6]], m[s[7]]);
  mix_lanes<0, 5, 10, 15>(state, m[s[8]], m[s[9]]);
  mix_lanes<1, 6, 11, 12>(state, m[s[10]], m[s[11]]);
  mix_lanes<2, 7, 8, 13>(state, m[s[12]], m[s[13]]);
  mix_lanes<3, 4, 9, 14>(state, m[s[14]], m[s[15]]);
}

LARDER_VECTOR void hash_full_chunks(const std::byte* const* chunks,
                                    std::uint64_t counter,
                                    ChainingValue* values) {
  std::array<std::uint32_t, kLanes> counter_low{};
  std::array<std::uint32_t, kLanes> counter_high{};
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    counter_low[lane] = static_cast<std::uint32_t>(counter + lane);
    counter_high[lane] = static_cast<std::uint32_t>((counter + lane) >> 32);
  }
  LaneWords state{};
  for (std::size_t i = 0; i < 8; ++i) {
    state.words[i] = broadcast(kInitialValue[i]);
  }
  LaneWords message{};
  for (std::size_t block = 0; block < kChunkBytes / kBlockBytes; ++block) {
    for (std::size_t first = 0; first < 16; first += kLanes) {
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        const std::size_t offset = block * kBlockBytes + first * sizeof(std::uint32_t);
        message.words[first + lane] = load(chunks[lane] + offset);
      }
      transpose(message.words + first);
    }
    for (std::size_t i = 0; i < 4; ++i) {
      state.words[8 + i] = broadcast(kInitialValue[i]);
    }
    const std::uint32_t start = block == 0 ? kChunkStart : 0;
    const std::uint32_t end = block + 1 == kChunkBytes / kBlockBytes ? kChunkEnd : 0;
    state.words[12] = load(counter_low.data());
    state.words[13] = load(counter_high.data());
    state.words[14] = broadcast(kBlockBytes);
    state.words[15] = broadcast(start | end);
    mix_lanes_round<0>(state, message);
    mix_lanes_round<1>(state, message);
    mix_lanes_round<2>(state, message);
    mix_lanes_round<3>(state, message);
    mix_lanes_round<4>(state, message);
    mix_lanes_round<5>(state, message);
    mix_lanes_round<6>(state, message);
    for (std::size_t i = 0; i < 8; ++i) {
      state.words[i] = exclusive_or(state.words[i], state.words[i + 8]);
    }
  }
  for (std::size_t first = 0; first < 8; first += kLanes) {
    transpose(state.words + first);
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      store(state.words[first + lane], values[lane].data() + first);
    }
  }
}

LARDER_VECTOR void store_big_endian(std::span<const std::uint32_t> words, std::byte* out) {
  std::size_t i = 0;
  for (; words.size() - i >= kLanes; i += kLanes) {
    store(swap_word_bytes(load(words.data() + i)), out + i * sizeof(std::uint32_t));
  }
  for (; i < words.size(); ++i) {
    const std::uint32_t swapped = __builtin_bswap32(words[i]);
    std::memcpy(out + i * sizeof(swapped), &swapped, sizeof(swapped));
  }
}

constexpr Kernel kVectorKernel{.lanes = kLanes,
                               .hash_full_chunks = hash_full_chunks,
                               .hash_chunk = hash_chunk,
                               .hash_pair = hash_pair,
                               .merge = merge,
                               .store_big_endian = store_big_endian};
