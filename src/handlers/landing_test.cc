// Goal: what a copy-mode client stores is the same bytes whether they were received in the pool or
// copied into it, nothing else can be read of them, and every slot that was taken while a message
// arrived is an object or free again.
// Method: whole messages through the dispatcher, their data fed to the sink it gives as the
// transport does, in random pieces (LARDER_TEST_SEED); the pool's use counted afterwards. Objects
// of 32 KiB in a pool of 32; the connection speaks 0.5.2.
#include "handlers/landing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "base/test_random.h"
#include "handlers/handlers.h"
#include "handlers/test_copy_mode.h"
#include "handlers/test_services.h"
#include "handlers/transfer.h"

namespace larder::handlers {
namespace {

constexpr std::int64_t kCommitStore = 14;
constexpr std::int64_t kGetChunkSize = 18;
constexpr std::uint64_t kInstance = 7;
constexpr std::int64_t kHidden = 2048;
constexpr std::size_t kObjectBytes = 2UL * kTestChunkTokens * kHidden * 2;
static_assert(kObjectBytes == Landings::kObjectBytesMin);
constexpr transport::ConnectionId kConnection{1};
constexpr sessions::ConnectionId kCaller{1};

class LandingTest : public testing::Test {
 protected:
  LandingTest() {
    server_.dispatch.connection_opened(kConnection, {});
    TestMessage hello({packed_int(0), packed_int(kGetChunkSize)});
    EXPECT_TRUE(server_.dispatch.route(hello.request).has_value());
    enroll(kInstance, kHidden);
  }

  ~LandingTest() override {
    EXPECT_EQ(server_.dispatch.landings().byte_count(), 0U);
    EXPECT_EQ(server_.index.stats().reserved_objects, 0U);
    EXPECT_EQ(server_.pool->usage().used_bytes,
              server_.index.stats().resident_objects * kObjectBytes);
  }

  void enroll(std::uint64_t instance, std::int64_t hidden) {
    const protocol::RegisterEngineDrivenRequest request = registration_of(instance, hidden);
    ASSERT_TRUE(on_register_engine_driven(server_.services, {kCaller}, request).has_value());
  }

  tensors::Layout layout() {
    return server_.instances.find(sessions::InstanceId{kInstance}, kCaller)
        ->registration.groups.front()
        .layout;
  }

  // The frames of a COMMIT_STORE.
  Objects frames_of(const protocol::Key& key, const std::vector<std::byte>& pickle) {
    return {packed_int(1),
            packed_int(kCommitStore),
            packed(key),
            packed_int(kInstance),
            binary(pickle)};
  }

  std::unique_ptr<transport::FrameSink> place(const Objects& frames) {
    const std::vector<transport::Frame> begun(frames.begin(), frames.end() - 1);
    return server_.dispatch.place(kConnection, begun, frames.back().size());
  }

  std::size_t below(std::size_t bound) { return random_() % bound; }

  // Feeds the sink; returns what stays in the frame.
  std::vector<std::byte> arrive(transport::FrameSink& sink, std::span<const std::byte> bytes) {
    std::vector<std::byte> kept;
    const std::size_t most = below(2) == 0 ? 100 : 50'000;
    while (!bytes.empty()) {
      std::span<const std::byte> piece = bytes.first(std::min(bytes.size(), 1 + below(most)));
      bytes = bytes.subspan(piece.size());
      while (!piece.empty()) {
        const std::span<std::byte> room = sink.room();
        std::size_t taken = std::min(room.size(), piece.size());
        std::copy_n(piece.begin(), taken, room.begin());
        if (room.empty()) {
          taken = sink.keep(piece);
          kept.insert(
              kept.end(), piece.begin(), piece.begin() + static_cast<std::ptrdiff_t>(taken));
        } else {
          sink.arrived(taken);
        }
        piece = piece.subspan(taken);
      }
    }
    sink.finish(kept);
    return kept;
  }

  // Runs the message as if it had come in pieces. The answer's bytes; empty: dropped.
  std::vector<std::byte> send(Objects frames) {
    std::unique_ptr<transport::FrameSink> sink = place(frames);
    has_landed_ = sink != nullptr;
    std::size_t placed_bytes = 0;
    if (sink != nullptr) {
      const std::size_t whole = frames.back().size();
      frames.back() = arrive(*sink, frames.back());
      placed_bytes = whole - frames.back().size();
    }
    TestMessage message(std::move(frames));
    if (sink != nullptr) {
      message.request.placed.push_back({4, std::move(sink), placed_bytes});
    }
    return answer_to(message);
  }

  // The same without a sink.
  std::vector<std::byte> send_plainly(Objects frames) {
    TestMessage message(std::move(frames));
    return answer_to(message);
  }

  std::vector<std::byte> answer_to(TestMessage& message) {
    const std::optional<transport::Route> route = server_.dispatch.route(message.request);
    if (!route) {
      return {};
    }
    message.request.route = *route;
    return value_of(server_.dispatch.run(message.request));
  }

  // Nothing: not all of them are stored.
  Objects stored(const protocol::Key& key) {
    const Result<Transfer> transfer =
        resolve_transfer(server_.services, {kCaller}, key, kInstance, CopiedBy::kEngine);
    EXPECT_TRUE(transfer.has_value());
    const Result<cache::ReadLease> lease =
        server_.index.acquire(transfer->space, transfer->objects);
    Objects objects;
    for (std::size_t i = 0; lease.has_value() && i < lease->size(); ++i) {
      objects.emplace_back(lease->bytes(i).begin(), lease->bytes(i).end());
    }
    return objects;
  }

  std::uint64_t landed_bytes() { return server_.metrics.copy_mode_bytes_landed.value(); }

  const std::vector<std::byte> yes_{std::byte{0xc3}};
  const std::vector<std::byte> no_{std::byte{0xc2}};

  std::mt19937_64 random_{test_seed()};
  TestServices server_;
  bool has_landed_ = false;
};

TEST_F(LandingTest, ObjectsOfAStoreAreReceivedInTheirSlots) {
  const protocol::Key key = key_of("r", 1, 3);
  const Objects objects = objects_of(1, 3, kObjectBytes);
  EXPECT_EQ(send(frames_of(key, list_of(layout(), objects))), yes_);
  EXPECT_TRUE(has_landed_);
  EXPECT_EQ(landed_bytes(), 3 * kObjectBytes);
  EXPECT_TRUE(stored(key) == objects);
}

TEST_F(LandingTest, SlotsOfAMessageThatNeverEndsGoWithIt) {
  const Objects frames =
      frames_of(key_of("r", 1, 3), list_of(layout(), objects_of(1, 3, kObjectBytes)));
  for (const std::size_t come : {std::size_t{10}, kObjectBytes + 700, 3 * kObjectBytes}) {
    std::unique_ptr<transport::FrameSink> sink = place(frames);
    ASSERT_NE(sink, nullptr);
    arrive(*sink, std::span(frames.back()).first(come));
    EXPECT_EQ(server_.dispatch.landings().byte_count(), server_.pool->usage().used_bytes);
    sink.reset();
    EXPECT_EQ(server_.pool->usage().used_bytes, 0U);
  }
}

TEST_F(LandingTest, WhatIsStoredAlreadyGivesItsSlotsBack) {
  const protocol::Key head = key_of("a", 1, 1);
  const protocol::Key all = key_of("b", 1, 3);
  const Objects objects = objects_of(1, 3, kObjectBytes);
  EXPECT_EQ(send_plainly(frames_of(head, list_of(layout(), {objects[0]}))), yes_);
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(send(frames_of(all, list_of(layout(), objects))), yes_);
    EXPECT_TRUE(stored(all) == objects);
    EXPECT_EQ(server_.pool->usage().used_bytes, 3 * kObjectBytes);
  }
}

TEST_F(LandingTest, ObjectsWithoutAFreeSlotStayInThePayloadAndAreCopied) {
  // All messages under way may hold a quarter of the pool: eight objects.
  const protocol::Key key = key_of("r", 1, 12);
  const Objects objects = objects_of(1, 12, kObjectBytes);
  EXPECT_EQ(send(frames_of(key, list_of(layout(), objects))), yes_);
  EXPECT_EQ(landed_bytes(), 8 * kObjectBytes);
  EXPECT_TRUE(stored(key) == objects);
  // A full pool: nothing lands, and room is made when the request runs.
  for (std::uint32_t prompt = 2; prompt < 6; ++prompt) {
    const protocol::Key next = key_of("r", prompt, 8);
    EXPECT_EQ(send(frames_of(next, list_of(layout(), objects_of(prompt, 8, kObjectBytes)))), yes_);
    EXPECT_TRUE(stored(next) == objects_of(prompt, 8, kObjectBytes));
  }
  // But for two objects, for which room was made ahead when the pool was full first.
  EXPECT_EQ(landed_bytes(), (8 + 8 + 8 + 4 + 2) * kObjectBytes);
}

TEST_F(LandingTest, MessagesThatAreNoSuchStoreAreNotPlaced) {
  const Objects good =
      frames_of(key_of("r", 1, 3), list_of(layout(), objects_of(1, 3, kObjectBytes)));
  EXPECT_NE(place(good), nullptr);
  Objects other = good;
  other[1] = packed_int(15);  // another operation
  EXPECT_EQ(place(other), nullptr);
  other = good;
  other[3] = packed_int(99);  // nobody registered
  EXPECT_EQ(place(other), nullptr);
  other[3] = {std::byte{0xc1}};
  EXPECT_EQ(place(other), nullptr);
  other = good;
  other.erase(other.begin() + 2);
  EXPECT_EQ(place(other), nullptr);
  other = good;
  other.back().resize(kObjectBytes);  // no room for one object in it
  EXPECT_EQ(place(other), nullptr);
  const std::vector<transport::Frame> begun(good.begin(), good.end() - 1);
  EXPECT_EQ(server_.dispatch.place(transport::ConnectionId{2}, begun, good.back().size()), nullptr)
      << "its release is not known";
  server_.instances.find(sessions::InstanceId{kInstance}, kCaller)
      ->learn_kind(sessions::ClientKind::kSharedMemory);
  EXPECT_EQ(place(good), nullptr);
  enroll(kInstance, kHidden / 2);
  EXPECT_EQ(place(good), nullptr) << "objects that are too small";
}

TEST_F(LandingTest, AnotherOperationThanTheOneItWasTakenForIsRefused) {
  Objects frames = frames_of(key_of("r", 1, 3), list_of(layout(), objects_of(1, 3, kObjectBytes)));
  std::unique_ptr<transport::FrameSink> sink = place(frames);
  ASSERT_NE(sink, nullptr);
  frames.back() = arrive(*sink, frames.back());
  TestMessage message(std::move(frames));
  message.request.placed.push_back({4, std::move(sink), 3 * kObjectBytes});
  const auto* const other = find_operation(std::int64_t{16}, protocol::Release::k052);
  message.request.route = {
      transport::Lane::kTransfer,
      static_cast<std::uint16_t>(other - operations().data()),
      static_cast<std::uint8_t>(protocol::Release::k052),
      static_cast<std::uint8_t>(Treatment::kRun),
  };
  EXPECT_EQ(value_of(server_.dispatch.run(message.request)), yes_) << "COMMIT_RETRIEVE's refusal";
  EXPECT_TRUE(stored(key_of("r", 1, 3)).empty());
}

TEST_F(LandingTest, DataThatIsNotAsLongAsItSaysIsRefused) {
  const protocol::Key key = key_of("r", 1, 3);
  const Objects good = frames_of(key, list_of(layout(), objects_of(1, 3, kObjectBytes)));
  for (const std::size_t size :
       {kObjectBytes + 700, 2 * kObjectBytes, good.back().size() - 1, good.back().size() + 1}) {
    Objects frames = good;
    frames.back().resize(size);
    EXPECT_EQ(send(frames), no_) << size;
    EXPECT_TRUE(has_landed_);
  }
  for (std::size_t at = 0; at < 5; ++at) {
    Objects frames = good;
    frames.back()[at] ^= std::byte{1};
    EXPECT_EQ(send(frames), no_) << at;
  }
  EXPECT_TRUE(stored(key).empty());
}

TEST_F(LandingTest, AnInstanceThatRegistersAnewMeanwhileGetsNothingOfItsOldForm) {
  Objects frames = frames_of(key_of("r", 1, 3), list_of(layout(), objects_of(1, 3, kObjectBytes)));
  std::unique_ptr<transport::FrameSink> sink = place(frames);
  ASSERT_NE(sink, nullptr);
  frames.back() = arrive(*sink, frames.back());
  enroll(kInstance, kHidden * 2);
  TestMessage message(std::move(frames));
  message.request.placed.push_back({4, std::move(sink), 3 * kObjectBytes});
  EXPECT_EQ(answer_to(message), no_);
}

TEST_F(LandingTest, SlotsSetAsideAtPrepareAreFilledFromThoseItLandedIn) {
  const protocol::Key key = key_of("r", 1, 3);
  const Result<Transfer> transfer =
      resolve_transfer(server_.services, {kCaller}, key, kInstance, CopiedBy::kEngine);
  Result<cache::WriteLease> lease =
      server_.index.reserve(transfer->space, transfer->objects, [](const auto&) { return false; });
  ASSERT_TRUE(lease.has_value());
  ASSERT_TRUE(transfer->instance->open_store(
      transfer->key, key.request_id, std::move(*lease), server_.clock.now()));
  EXPECT_EQ(send(frames_of(key, list_of(layout(), objects_of(1, 3, kObjectBytes)))), yes_);
  EXPECT_TRUE(has_landed_);
  EXPECT_TRUE(stored(key) == objects_of(1, 3, kObjectBytes));
}

TEST_F(LandingTest, AStoreIsTheSameWhetherItLandsOrIsCopiedWhateverIsInIt) {
  int accepted = 0;
  for (int round = 0; round < 300; ++round) {
    const auto prompt = static_cast<std::uint32_t>(round + 1);
    const std::size_t chunks = 1 + below(4);
    const protocol::Key key = key_of("r", prompt, chunks);
    Objects objects = objects_of(prompt, chunks, kObjectBytes);
    objects.resize(chunks + below(2) - (chunks > 1 ? below(2) : 0), objects.front());
    std::vector<std::byte> pickle = list_of(layout(), objects);
    if (below(2) == 0) {
      // In a head, where it matters.
      const std::size_t head = pickle.size() / objects.size() * below(objects.size());
      pickle[std::min(head + below(600), pickle.size() - 1)] = static_cast<std::byte>(random_());
    }
    if (below(8) == 0) {
      pickle.resize(pickle.size() - below(pickle.size()));
    }
    const Objects frames = frames_of(key, pickle);
    const std::vector<std::byte> answer = send(frames);
    const Objects landed = stored(key);
    server_.index.clear();
    ASSERT_EQ(server_.pool->usage().used_bytes, 0U) << "round " << round;
    const std::vector<std::byte> plain_answer = send_plainly(frames);
    ASSERT_EQ(answer, plain_answer) << "round " << round;
    ASSERT_TRUE(stored(key) == landed) << "round " << round;
    accepted += answer == yes_ ? 1 : 0;
    server_.index.clear();
  }
  EXPECT_GT(accepted, 50);
}

}  // namespace
}  // namespace larder::handlers
