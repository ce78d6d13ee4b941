#include "keys/token_hash.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "keys/blake3_kernel.h"
#include "keys/blake3_tree.h"

namespace larder::keys {

namespace {

using blake3_kernel::kBlockBytes;
using blake3_kernel::kChunkBytes;
using blake3_kernel::Kernel;

// The previous hash and then the tokens, turned to big-endian as the tree asks for them: a chunk of
// tokens of any length is hashed without a buffer of that length.
class ChunkSource {
 public:
  ChunkSource(const Kernel& kernel,
              const ChunkHash& previous,
              std::span<const std::uint32_t> tokens)
      : kernel_(kernel), previous_(previous), tokens_(tokens) {}

  std::size_t bytes() const { return sizeof(ChunkHash) + tokens_.size_bytes(); }

  const std::byte* chunk(std::size_t index, std::byte* scratch) const {
    std::byte* out = scratch;
    std::size_t token = 0;
    std::size_t room = kChunkBytes / sizeof(std::uint32_t);
    if (index == 0) {
      std::memcpy(out, previous_.bytes.data(), sizeof(ChunkHash));
      out += sizeof(ChunkHash);
      room -= kHashWords;
    } else {
      token = index * room - kHashWords;
    }
    const auto words = tokens_.subspan(token, std::min(room, tokens_.size() - token));
    kernel_.store_big_endian(words, out);
    out += words.size_bytes();
    const std::size_t tail = static_cast<std::size_t>(out - scratch) % kBlockBytes;
    if (tail != 0) {
      std::fill_n(out, kBlockBytes - tail, std::byte{0});
    }
    return scratch;
  }

 private:
  static constexpr std::size_t kHashWords = sizeof(ChunkHash) / sizeof(std::uint32_t);

  const Kernel& kernel_;
  const ChunkHash& previous_;
  std::span<const std::uint32_t> tokens_;
};

}  // namespace

const ChunkHash& none_hash() {
  static const ChunkHash kHash{blake3(std::array<std::byte, 12>{})};
  return kHash;
}

ChunkHash hash_chunk(const ChunkHash& previous, std::span<const std::uint32_t> chunk_tokens) {
  const Kernel& kernel = blake3_kernel::best_kernel();
  return {blake3_kernel::hash_tree(kernel, ChunkSource(kernel, previous, chunk_tokens))};
}

void extend_hashes(std::span<const std::uint32_t> tokens,
                   std::uint32_t chunk_tokens,
                   std::vector<ChunkHash>& hashes) {
  LARDER_CHECK(chunk_tokens > 0);
  const std::size_t complete = tokens.size() / chunk_tokens;
  LARDER_CHECK(hashes.size() <= complete);
  hashes.reserve(complete);
  while (hashes.size() < complete) {
    const ChunkHash& previous = hashes.empty() ? none_hash() : hashes.back();
    hashes.push_back(
        hash_chunk(previous, tokens.subspan(hashes.size() * chunk_tokens, chunk_tokens)));
  }
}

ChunkRange chunks_within(std::size_t token_count,
                         std::int64_t start,
                         std::int64_t end,
                         std::uint32_t chunk_tokens) {
  LARDER_CHECK(chunk_tokens > 0);
  const std::size_t tokens =
      end > 0 ? std::min(token_count, static_cast<std::size_t>(end)) : std::size_t{0};
  const std::size_t first_token = start > 0 ? static_cast<std::size_t>(start) : 0;
  const std::size_t chunks = tokens / chunk_tokens;
  const std::size_t begin = first_token / chunk_tokens + (first_token % chunk_tokens != 0 ? 1 : 0);
  return {.begin = std::min(begin, chunks), .end = chunks};
}

}  // namespace larder::keys
