#include "cache/checksum.h"

// The plain function of Debian's library uses SSE2 alone, a fourth of the speed.
#if defined(__x86_64__)
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

namespace larder::cache {

std::uint64_t checksum_of(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace larder::cache
