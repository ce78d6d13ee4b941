#include "keys/blake3.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "keys/blake3_kernel.h"
#include "keys/blake3_tree.h"

namespace larder::keys {

namespace {

using blake3_kernel::kBlockBytes;
using blake3_kernel::kChunkBytes;

// Two spans as one input. Only a chunk across the seam and a last chunk that does not end with a
// block are copied.
class SpanSource {
 public:
  SpanSource(std::span<const std::byte> first, std::span<const std::byte> second)
      : first_(first), second_(second) {}

  std::size_t bytes() const { return first_.size() + second_.size(); }

  const std::byte* chunk(std::size_t index, std::byte* scratch) const {
    const std::size_t begin = index * kChunkBytes;
    const std::size_t end = std::min(begin + kChunkBytes, bytes());
    if (end > begin && end % kBlockBytes == 0) {
      if (end <= first_.size()) {
        return first_.data() + begin;
      }
      if (begin >= first_.size()) {
        return second_.data() + (begin - first_.size());
      }
    }
    const std::size_t seam = first_.size();
    std::byte* out = append(part(first_, begin, end), scratch);
    out = append(part(second_, begin - std::min(begin, seam), end - std::min(end, seam)), out);
    const std::size_t tail = (end - begin) % kBlockBytes;
    if (tail != 0 || end == begin) {
      std::fill_n(out, kBlockBytes - tail, std::byte{0});
    }
    return scratch;
  }

 private:
  // What of [begin, end) lies within the span.
  static std::span<const std::byte> part(std::span<const std::byte> span,
                                         std::size_t begin,
                                         std::size_t end) {
    const std::size_t from = std::min(begin, span.size());
    return span.subspan(from, std::min(end, span.size()) - from);
  }

  static std::byte* append(std::span<const std::byte> from, std::byte* to) {
    if (!from.empty()) {  // the pointer of an empty span may be null
      std::memcpy(to, from.data(), from.size());
    }
    return to + from.size();
  }

  std::span<const std::byte> first_;
  std::span<const std::byte> second_;
};

}  // namespace

namespace blake3_kernel {

const Kernel& kernel_of(Blake3Implementation implementation) {
  LARDER_CHECK(blake3_available(implementation));
  switch (implementation) {
    case Blake3Implementation::kPortable:
      return kPortableKernel;
#if defined(__x86_64__)
    case Blake3Implementation::kSse41:
      return kSse41Kernel;
    case Blake3Implementation::kAvx2:
      return kAvx2Kernel;
    case Blake3Implementation::kAvx512:
      return kAvx512Kernel;
#else
    case Blake3Implementation::kSse41:
    case Blake3Implementation::kAvx2:
    case Blake3Implementation::kAvx512:
      break;
#endif
  }
  LARDER_UNREACHABLE();
}

const Kernel& best_kernel() {
  static const Kernel& best = []() -> const Kernel& {
    for (const auto implementation : {Blake3Implementation::kAvx512,
                                      Blake3Implementation::kAvx2,
                                      Blake3Implementation::kSse41}) {
      if (blake3_available(implementation)) {
        return kernel_of(implementation);
      }
    }
    return kPortableKernel;
  }();
  return best;
}

}  // namespace blake3_kernel

bool blake3_available(Blake3Implementation implementation) {
  switch (implementation) {
    case Blake3Implementation::kPortable:
      return true;
#if defined(__x86_64__)
    case Blake3Implementation::kSse41:
      return __builtin_cpu_supports("sse4.1") != 0;
    case Blake3Implementation::kAvx2:
      return __builtin_cpu_supports("avx2") != 0;
    case Blake3Implementation::kAvx512:
      return __builtin_cpu_supports("avx512vl") != 0;
#else
    case Blake3Implementation::kSse41:
    case Blake3Implementation::kAvx2:
    case Blake3Implementation::kAvx512:
      return false;
#endif
  }
  LARDER_UNREACHABLE();
}

Blake3Digest blake3(std::span<const std::byte> first, std::span<const std::byte> second) {
  return blake3_kernel::hash_tree(blake3_kernel::best_kernel(), SpanSource(first, second));
}

Blake3Digest blake3_by(Blake3Implementation implementation,
                       std::span<const std::byte> first,
                       std::span<const std::byte> second) {
  return blake3_kernel::hash_tree(blake3_kernel::kernel_of(implementation),
                                  SpanSource(first, second));
}

}  // namespace larder::keys
