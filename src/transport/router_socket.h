// router_socket.h - the ROUTER socket with its options, its monitor and its addresses. Private to
// this room.
//
// Opened and bound by one thread, then used by the wire thread only, then destroyed by one thread.
// Destroying waits up to kLinger for replies that are on their way.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"

namespace larder::transport {

struct RouterLimits {
  std::size_t frame_bytes_max;
  std::size_t replies_unsent_max;  // messages of one connection
};

class RouterSocket {
 public:
  static constexpr std::chrono::milliseconds kLinger{1000};

  static Result<std::unique_ptr<RouterSocket>> open(const RouterLimits& limits);

  RouterSocket() = default;  // of no use by itself: open() makes one
  RouterSocket(const RouterSocket&) = delete;
  RouterSocket& operator=(const RouterSocket&) = delete;
  ~RouterSocket();

  // Returns the port. kBusy when it is taken, kInvalid when the host is no address of this machine.
  Result<std::uint16_t> bind(const std::string& host, std::uint16_t port);

  void* router() const { return router_; }

  void* monitor() const { return monitor_; }

 private:
  Result<void> configure(const RouterLimits& limits);
  Result<void> start_monitor();
  int try_bind(const std::string& address, std::uint16_t port);
  Result<std::uint16_t> bound_port() const;
  Result<std::uint16_t> bind_address(const std::string& address, std::uint16_t port);
  Result<std::uint16_t> bind_loopback(std::uint16_t port);

  void* context_ = nullptr;
  void* router_ = nullptr;
  void* monitor_ = nullptr;
};

}  // namespace larder::transport
