// Goal: a retrieve in copy mode sends the objects from where they lie in the pool, in a pickle that
// reads back to the same bytes, under pins that last until the last byte has left or the connection
// is gone.
// Method: the real dispatcher behind the request port, and a bare socket with a small window that
// reads as slowly as the test wants; the index is asked to evict everything meanwhile.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "handlers/handlers.h"
#include "handlers/test_copy_mode.h"
#include "handlers/test_services.h"
#include "transport/server.h"
#include "transport/test_peer.h"

namespace larder::handlers {
namespace {

using transport::eventually;

constexpr std::int64_t kPrepareRetrieve = 15;
constexpr std::int64_t kGetChunkSize = 18;
constexpr std::uint64_t kInstance = 7;
constexpr std::int64_t kHidden = 65536;
constexpr std::size_t kChunks = 16;  // of a mebibyte: more than the kernel takes at once
constexpr std::size_t kPoolBytes = 24U << 20;

class CopyModeRetrieve : public testing::Test {
 protected:
  CopyModeRetrieve() {
    transport::ServerConfig config;
    config.host = "127.0.0.1";
    Result<std::unique_ptr<transport::Server>> created =
        transport::Server::create(config, services_.dispatch, services_.registry);
    EXPECT_TRUE(created.has_value());
    server_ = std::move(*created);
    server_->start();
    store();
    connect();
  }

  void connect() {
    peer_ = std::make_unique<transport::RawPeer>();
    const int window_bytes = 64 << 10;
    setsockopt(peer_->descriptor(), SOL_SOCKET, SO_RCVBUF, &window_bytes, sizeof window_bytes);
    peer_->connect_to(server_->port());
    peer_->send(transport::zmtp_hello());
    send({packed_int(0), packed_int(kGetChunkSize)});
    // The server's greeting and READY of 107 bytes, and a reply of three short frames.
    EXPECT_EQ(peer_->receive(107 + 3 * 3).size(), 107U + 3 * 3);
  }

  // From elsewhere, which makes the instance one of copy mode.
  void store() {
    const Caller engine{sessions::ConnectionId{1000}};
    ASSERT_TRUE(
        on_register_engine_driven(services_.services, engine, registration_of(kInstance, kHidden))
            .has_value());
    const tensors::Layout layout =
        services_.instances.find(sessions::InstanceId{kInstance}, engine.connection)
            ->registration.groups.front()
            .layout;
    const std::vector<std::byte> pickle = list_of(layout, objects_);
    const Result<bool> stored =
        on_commit_store(services_.services, engine, {key_, kInstance, pickle});
    ASSERT_TRUE(stored.has_value() && *stored);
  }

  void send(const std::vector<std::vector<std::byte>>& frames) {
    std::string bytes;
    for (std::size_t i = 0; i < frames.size(); ++i) {
      const bool is_last = i + 1 == frames.size();
      bytes += is_last ? '\x02' : '\x03';
      for (int shift = 56; shift >= 0; shift -= 8) {
        bytes += static_cast<char>(frames[i].size() >> shift);
      }
      bytes += transport::text_of(frames[i]);
    }
    peer_->send(bytes);
  }

  void ask() {
    send({packed_int(1), packed_int(kPrepareRetrieve), packed(key_), packed_int(kInstance)});
  }

  std::uint64_t pinned() { return services_.index.stats().pinned_objects; }

  // As many as have no pin. Also what gives pins back that the wire thread has left.
  std::size_t evict_all() { return services_.index.evict_down_to(0, 1000); }

  const Objects objects_ = objects_of(1, kChunks, object_bytes_of(kHidden));
  const protocol::Key key_ = key_of("r", 1, kChunks);
  TestServices services_{false, cache::Verification::kOff, kPoolBytes};
  std::unique_ptr<transport::Server> server_;
  std::unique_ptr<transport::RawPeer> peer_;
};

TEST_F(CopyModeRetrieve, SendsFromThePoolUnderPinsUntilTheLastByteHasLeft) {
  ask();
  // Two short frames and the head of a long one; what it holds besides the objects is short.
  std::string reply = peer_->receive(6 + 9);
  ASSERT_EQ(reply.size(), 6U + 9U);
  EXPECT_TRUE(eventually([&] { return pinned() == kChunks; }));
  EXPECT_EQ(evict_all(), 0U);
  EXPECT_EQ(services_.index.stats().resident_objects, kChunks);
  std::size_t bytes = 0;
  for (std::size_t i = 7; i < 15; ++i) {
    bytes = bytes << 8U | static_cast<unsigned char>(reply[i]);
  }
  const std::string value = peer_->receive(bytes);
  ASSERT_EQ(value.size(), bytes);
  EXPECT_TRUE(eventually([&] { return evict_all() == kChunks; }));
  EXPECT_EQ(pinned(), 0U);
  codec::MsgpackReader reader(std::as_bytes(std::span(value)));
  ASSERT_EQ(*reader.read_map_header(), 3U);
  ASSERT_EQ(*reader.read_string(), "success");
  EXPECT_TRUE(*reader.read_bool());
  ASSERT_EQ(*reader.read_string(), "data");
  const auto tensors = tensors::read_tensor_list(
      *reader.read_binary(), {.tensors_max = kChunks, .storage_bytes_max = kPoolBytes});
  ASSERT_TRUE(tensors.has_value());
  ASSERT_EQ(tensors->size(), kChunks);
  for (std::size_t i = 0; i < kChunks; ++i) {
    const tensors::TensorView& tensor = (*tensors)[i];
    std::vector<std::byte> object(object_bytes_of(kHidden));
    ASSERT_TRUE(tensors::copy_to_object(tensor, {tensor.dtype, tensor.shape}, object).has_value());
    EXPECT_TRUE(object == objects_[i]) << i;
  }
  EXPECT_EQ(*reader.read_string(), "context");
  EXPECT_EQ(*reader.read_map_header(), 0U);
  EXPECT_TRUE(reader.at_end());
}

TEST_F(CopyModeRetrieve, GivesThePinsBackWhenTheConnectionEndsHalfWay) {
  for (const bool is_reset : {false, true}) {
    SCOPED_TRACE(is_reset);
    ask();
    EXPECT_EQ(peer_->receive(100'000).size(), 100'000U);
    EXPECT_EQ(evict_all(), 0U);
    EXPECT_EQ(pinned(), kChunks);
    if (is_reset) {
      peer_->reset_when_closed();
    }
    peer_.reset();
    EXPECT_TRUE(eventually([&] {
      services_.index.evict_down_to(kPoolBytes, 1);  // gives back what was left
      return pinned() == 0;
    }));
    connect();
  }
  EXPECT_EQ(services_.index.stats().resident_objects, kChunks);
}

}  // namespace
}  // namespace larder::handlers
