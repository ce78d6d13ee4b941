// Goal: object keys carry the rank as the reference packs it, and hash apart when any part differs.
// Method: values observed at the reference, and counting distinct hashes.
#include "keys/object_key.h"

#include <gtest/gtest.h>

#include <set>

namespace larder::keys {
namespace {

TEST(KvRank, PacksWorldSizeAndWorkerTwice) {
  EXPECT_EQ(pack_kv_rank(1, 0), 0x01000100U);
  EXPECT_EQ(pack_kv_rank(4, 2), 0x04020402U);
  EXPECT_EQ(pack_kv_rank(255, 254), 0xfffefffeU);
}

TEST(KvRankDeathTest, RefusesRanksWhoseFieldsOverlap) {
  EXPECT_DEATH(pack_kv_rank(0, 0), "world_size");
  EXPECT_DEATH(pack_kv_rank(256, 0), "world_size");
  EXPECT_DEATH(pack_kv_rank(4, 4), "worker");
}

TEST(ObjectId, DiffersInEachOfItsParts) {
  const ObjectId id{.chunk_hash = none_hash(), .kv_rank = 1};
  EXPECT_EQ(id, (ObjectId{none_hash(), 1}));
  EXPECT_NE(id, (ObjectId{none_hash(), 2}));
  EXPECT_NE(id, (ObjectId{ChunkHash{}, 1}));
}

TEST(ObjectId, HashesRanksOfOneChunkApart) {
  std::set<std::size_t> hashes;
  for (std::uint32_t worker = 0; worker < 255; ++worker) {
    hashes.insert(ObjectIdHash()(ObjectId{none_hash(), pack_kv_rank(255, worker)}));
  }
  EXPECT_EQ(hashes.size(), 255U);
}

}  // namespace
}  // namespace larder::keys
