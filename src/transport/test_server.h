// test_server.h - for tests of this room: a whole server on a free loopback port with a scripted
// dispatcher.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "metrics/metrics.h"
#include "transport/server.h"
#include "transport/test_peer.h"

namespace larder::transport {

class ServerTest : public testing::Test {
 protected:
  void start(ServerConfig config = {}) {
    config.host = config.host.empty() ? "127.0.0.1" : config.host;
    config.port = 0;
    Result<std::unique_ptr<Server>> created = Server::create(config, dispatcher_, metrics_);
    ASSERT_TRUE(created.has_value());
    server_ = std::move(*created);
    server_->start();
  }

  std::uint64_t counter(const char* name) { return metrics_.counter(name, "").value(); }

  std::uint64_t closed_for(const char* reason) {
    return metrics_.counter_family("larder_transport_connections_closed_total", "")
        .with({{"reason", reason}})
        .value();
  }

  std::uint64_t pauses(const char* reason) {
    return metrics_.counter_family("larder_transport_reading_paused_total", "")
        .with({{"reason", reason}})
        .value();
  }

  std::uint64_t dropped_messages(const char* reason) {
    return metrics_.counter_family("larder_transport_messages_dropped_total", "")
        .with({{"reason", reason}})
        .value();
  }

  std::uint64_t dropped_replies(const char* reason) {
    return metrics_.counter_family("larder_transport_replies_dropped_total", "")
        .with({{"reason", reason}})
        .value();
  }

  FakeDispatcher dispatcher_;
  metrics::Registry metrics_;
  std::unique_ptr<Server> server_;  // destroyed first
};

}  // namespace larder::transport
