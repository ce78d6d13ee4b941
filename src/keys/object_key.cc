#include "keys/object_key.h"

#include "base/check.h"

namespace larder::keys {

std::uint32_t pack_kv_rank(std::uint32_t world_size, std::uint32_t worker) {
  LARDER_CHECK(world_size >= 1 && world_size <= kWorldSizeMax);
  LARDER_CHECK(worker < world_size);
  return world_size << 24 | worker << 16 | world_size << 8 | worker;
}

std::uint32_t world_size_of(std::uint32_t kv_rank) {
  return kv_rank >> 24;
}

}  // namespace larder::keys
