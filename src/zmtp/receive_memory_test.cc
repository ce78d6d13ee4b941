// Goal: buffers are used again, the kept ones have a bound, and a small frame does not take a huge
// one. Method: buffers taken and dropped by hand, also on another thread.
#include "zmtp/receive_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cerrno>
#include <thread>

#include "zmtp/message.h"

namespace larder::zmtp {
namespace {

constexpr std::size_t kMebibyte = 1U << 20;

const std::byte* address_of(const BufferRef& buffer) {
  return buffer->bytes().data();
}

TEST(ReceiveMemory, ADroppedLargeBufferIsTheNextOne) {
  ReceiveMemory memory;
  BufferRef first = memory.take_large(100'000);
  const std::byte* const place = address_of(first);
  first = BufferRef();
  EXPECT_GT(memory.cached_bytes(), 0U);
  EXPECT_EQ(address_of(memory.take_large(100'000)), place);
}

TEST(ReceiveMemory, OfSeveralTheSmallestThatSufficesIsTaken) {
  ReceiveMemory memory;
  std::vector<BufferRef> buffers;
  for (const std::size_t bytes : {4 * kMebibyte, kMebibyte, 2 * kMebibyte}) {
    buffers.push_back(memory.take_large(bytes));
    buffers.back()->grow(bytes);
  }
  const std::byte* const two = address_of(buffers[2]);
  const std::byte* const four = address_of(buffers[0]);
  buffers.clear();
  const BufferRef fits = memory.take_large(kMebibyte + 1);
  EXPECT_EQ(address_of(fits), two);
  const BufferRef largest = memory.take_large(100 * kMebibyte);
  EXPECT_EQ(address_of(largest), four);
}

TEST(ReceiveMemory, ASmallFrameDoesNotTakeAHugeBuffer) {
  ReceiveMemory memory;
  BufferRef huge = memory.take_large(32 * kMebibyte);
  huge->grow(32 * kMebibyte);
  huge = BufferRef();
  EXPECT_LE(memory.take_large(40'000)->capacity(), kMebibyte);
}

TEST(ReceiveMemory, WhatIsKeptHasABoundAndTheLongestUnusedGoesFirst) {
  ReceiveMemory memory(8 * kMebibyte);
  std::vector<BufferRef> buffers;
  for (int i = 0; i < 5; ++i) {
    buffers.push_back(memory.take_large(3 * kMebibyte));
    buffers.back()->grow(3 * kMebibyte);
  }
  const std::byte* const last = address_of(buffers.back());
  for (BufferRef& buffer : buffers) {
    buffer = BufferRef();
    EXPECT_LE(memory.cached_bytes(), 8 * kMebibyte);
  }
  EXPECT_EQ(memory.cached_bytes(), 6 * kMebibyte);
  const BufferRef one = memory.take_large(3 * kMebibyte);
  const BufferRef other = memory.take_large(3 * kMebibyte);
  EXPECT_TRUE(address_of(one) == last || address_of(other) == last);
  memory.trim();
  EXPECT_EQ(memory.cached_bytes(), 0U);
}

TEST(ReceiveMemory, AHugeBufferThatIsDiscardedGoesPieceByPiece) {
  ReceiveMemory memory(kMebibyte);
  BufferRef huge = memory.take_large(40 * kMebibyte);
  huge->grow(40 * kMebibyte);
  memory.discard(std::move(huge));
  int pieces = 1;
  while (memory.release_some()) {
    ++pieces;
  }
  EXPECT_EQ(pieces, 5);
  EXPECT_EQ(memory.cached_bytes(), 0U);
  BufferRef small = memory.take_large(kMebibyte);
  memory.discard(std::move(small));
  EXPECT_FALSE(memory.release_some());
  EXPECT_GT(memory.cached_bytes(), 0U);
}

// Whether the page at this address, which begins one, is mapped.
bool is_mapped(std::byte* page) {
  unsigned char resident = 0;
  return mincore(page, 1, &resident) == 0 || errno != ENOMEM;
}

TEST(ReceiveMemory, ADiscardedBufferGoesWhateverTheLengthOfItsFrame) {
  ReceiveMemory memory(kMebibyte);
  BufferRef huge = memory.take_large(40 * kMebibyte + 1);
  huge->grow(40 * kMebibyte + 1);
  ASSERT_GE(huge->capacity(), 40 * kMebibyte + 1);
  std::byte* const first = huge->bytes().data();
  std::byte* const last = first + 40 * kMebibyte;
  ASSERT_TRUE(is_mapped(last));
  memory.discard(std::move(huge));
  ASSERT_TRUE(memory.release_some());
  EXPECT_FALSE(is_mapped(last));
  EXPECT_TRUE(is_mapped(first));
  while (memory.release_some()) {
  }
  EXPECT_FALSE(is_mapped(first));
}

TEST(ReceiveMemory, AGrownBufferKeepsItsBytes) {
  ReceiveMemory memory;
  const BufferRef buffer = memory.take_large(64 * kMebibyte);
  const std::size_t before = buffer->capacity();
  std::fill(buffer->bytes().begin(), buffer->bytes().end(), std::byte{7});
  buffer->grow(16 * kMebibyte);
  EXPECT_EQ(buffer->capacity(), 16 * kMebibyte);
  EXPECT_EQ(std::count(buffer->bytes().begin(), buffer->bytes().end(), std::byte{7}),
            static_cast<std::ptrdiff_t>(before));
}

TEST(ReceiveMemory, ALeftBlockGoesOnWhereItWasLeftWhileSomebodyReadsIt) {
  ReceiveMemory memory;
  Block block = memory.take_block();
  const BufferRef reader = block.buffer;
  block.used = 1000;
  memory.leave_block(std::move(block));
  const Block again = memory.take_block();
  EXPECT_TRUE(again.buffer == reader);
  EXPECT_EQ(again.used, 1000U);
}

TEST(ReceiveMemory, ABlockNobodyReadsBeginsAnew) {
  ReceiveMemory memory;
  Block block = memory.take_block();
  const std::byte* const place = address_of(block.buffer);
  block.used = 60'000;
  memory.leave_block(std::move(block));
  const Block again = memory.take_block();
  EXPECT_EQ(address_of(again.buffer), place);
  EXPECT_EQ(again.used, 0U);
}

TEST(ReceiveMemory, BuffersComeBackFromOtherThreadsAndAfterTheMemoryIsGone) {
  auto memory = std::make_unique<ReceiveMemory>();
  BufferRef elsewhere = memory->take_large(kMebibyte);
  std::thread([buffer = std::move(elsewhere)]() mutable { buffer = BufferRef(); }).join();
  EXPECT_GT(memory->cached_bytes(), 0U);
  BufferRef late = memory->take_fresh_block();
  memory.reset();
  late->bytes()[0] = std::byte{1};
}

}  // namespace
}  // namespace larder::zmtp
