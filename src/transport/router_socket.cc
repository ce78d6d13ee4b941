#include "transport/router_socket.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <sys/resource.h>
#include <zmq.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"
#include "transport/port_owner.h"

namespace larder::transport {
namespace {

constexpr const char* kMonitorAddress = "inproc://larder.router.monitor";

// Requests that libzmq may hold for the wire thread, per connection: its own default, as the
// clients' is. The kernel's window and then the client's queue fill behind it.
constexpr int kReceivedMessagesMax = 1000;

// A node's worth of workers connects at once after a restart; the library's 100 would make some
// wait for SYN retries.
constexpr int kBacklog = 1024;

// A mute connection (port scanner) is closed after this.
constexpr int kHandshakeMs = 10'000;

// For hosts that vanished. The kernel answers the probes, so a process that is only stopped keeps
// its connection: the end of a connection means the end of its process, which is what lets the
// server reuse memory the process had mapped. ZeroMQ's own heartbeats would end it while it can
// still write.
constexpr int kKeepaliveIdleSeconds = 60;
constexpr int kKeepaliveIntervalSeconds = 15;
constexpr int kKeepaliveProbes = 4;

constexpr int kLoopbackTries = 16;
constexpr const char* kLoopback4 = "127.0.0.1";
constexpr const char* kLoopback6 = "::1";

int as_int(std::size_t value) {
  return static_cast<int>(
      std::min<std::size_t>(value, static_cast<std::size_t>(std::numeric_limits<int>::max())));
}

// A connection takes a descriptor, and 1024 is the soft limit of many systems. libzmq's listener
// spins without accepting when they run out. ZMQ_MAX_SOCKETS is no matter: it counts sockets of
// ours, not connections.
void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) {
    return;
  }
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    log::warning("could not raise the limit of open files: {}", std::strerror(errno));
  }
}

Error system_error(const char* what) {
  return Error{Code::kSystem, fmt::format("{}: {}", what, zmq_strerror(errno))};
}

Error taken_error(const std::string& address, std::uint16_t port) {
  std::string text = fmt::format("port {} on {} is in use", port, address);
  const std::string owner = find_port_owner(address, port);
  if (!owner.empty()) {
    text += fmt::format(" ({})", owner);
  }
  return Error{Code::kBusy, std::move(text)};
}

// libzmq 4.3.4 binds addresses and interface names, no host names.
std::string resolve(const std::string& host) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &wanted, &found) != 0) {
    return "";
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> list(found, &freeaddrinfo);
  std::string address;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    std::array<char, NI_MAXHOST> text{};
    if (getnameinfo(entry->ai_addr,
                    entry->ai_addrlen,
                    text.data(),
                    text.size(),
                    nullptr,
                    0,
                    NI_NUMERICHOST) == 0 &&
        (address.empty() || entry->ai_family == AF_INET)) {
      address = text.data();
      if (entry->ai_family == AF_INET) {
        break;
      }
    }
  }
  return address;
}

bool is_ipv6(const std::string& address) {
  return address.find(':') != std::string::npos;
}

}  // namespace

Result<std::unique_ptr<RouterSocket>> RouterSocket::open(const RouterLimits& limits) {
  raise_descriptor_limit();
  auto socket = std::make_unique<RouterSocket>();
  socket->context_ = zmq_ctx_new();
  if (socket->context_ == nullptr) {
    return system_error("zmq_ctx_new");
  }
  socket->router_ = zmq_socket(socket->context_, ZMQ_ROUTER);
  if (socket->router_ == nullptr) {
    return system_error("zmq_socket");
  }
  if (Result<void> done = socket->configure(limits); !done) {
    return done.error();
  }
  if (Result<void> done = socket->start_monitor(); !done) {
    return done.error();
  }
  return socket;
}

RouterSocket::~RouterSocket() {
  // The monitor goes last: libzmq writes the events of closing to it.
  if (router_ != nullptr) {
    zmq_close(router_);
  }
  if (monitor_ != nullptr) {
    zmq_close(monitor_);
  }
  while (context_ != nullptr && zmq_ctx_term(context_) != 0 && errno == EINTR) {
  }
}

Result<void> RouterSocket::configure(const RouterLimits& limits) {
  const std::vector<std::pair<int, int>> options = {
      {ZMQ_ROUTER_MANDATORY,
       1},  // tells of a full pipe and a gone peer instead of dropping silently
      {ZMQ_ROUTER_HANDOVER,
       1},  // a client with a fixed identity is served again after its host came back
      {ZMQ_SNDHWM, as_int(limits.replies_unsent_max)},
      {ZMQ_RCVHWM, kReceivedMessagesMax},
      {ZMQ_LINGER, static_cast<int>(kLinger.count())},
      {ZMQ_BACKLOG, kBacklog},
      {ZMQ_HANDSHAKE_IVL, kHandshakeMs},
      {ZMQ_TCP_KEEPALIVE, 1},
      {ZMQ_TCP_KEEPALIVE_IDLE, kKeepaliveIdleSeconds},
      {ZMQ_TCP_KEEPALIVE_INTVL, kKeepaliveIntervalSeconds},
      {ZMQ_TCP_KEEPALIVE_CNT, kKeepaliveProbes},
  };
  for (const auto& [option, value] : options) {
    if (zmq_setsockopt(router_, option, &value, sizeof value) != 0) {
      return system_error("zmq_setsockopt");
    }
  }
  const auto bytes_max = static_cast<std::int64_t>(limits.frame_bytes_max);
  if (zmq_setsockopt(router_, ZMQ_MAXMSGSIZE, &bytes_max, sizeof bytes_max) != 0) {
    return system_error("ZMQ_MAXMSGSIZE");
  }
  return {};
}

Result<void> RouterSocket::start_monitor() {
  if (zmq_socket_monitor(router_, kMonitorAddress, ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED) !=
      0) {
    return system_error("zmq_socket_monitor");
  }
  monitor_ = zmq_socket(context_, ZMQ_PAIR);
  if (monitor_ == nullptr) {
    return system_error("zmq_socket");
  }
  // libzmq's I/O thread waits, and with it every connection, when this queue is full. Each event
  // costs a peer a connection, and the wire thread empties the queue in every round.
  const int unlimited = 0;
  const int no_linger = 0;
  if (zmq_setsockopt(monitor_, ZMQ_RCVHWM, &unlimited, sizeof unlimited) != 0 ||
      zmq_setsockopt(monitor_, ZMQ_LINGER, &no_linger, sizeof no_linger) != 0 ||
      zmq_connect(monitor_, kMonitorAddress) != 0) {
    return system_error("zmq_connect");
  }
  return {};
}

// 0, or errno.
int RouterSocket::try_bind(const std::string& address, std::uint16_t port) {
  // Only where it is asked for: with IPv6 on, "127.0.0.1" would become a mapped IPv6 address and
  // fail where a container has no IPv6.
  const int ipv6 = is_ipv6(address) ? 1 : 0;
  if (zmq_setsockopt(router_, ZMQ_IPV6, &ipv6, sizeof ipv6) != 0) {
    return errno;
  }
  const std::string endpoint = is_ipv6(address) ? fmt::format("tcp://[{}]:{}", address, port)
                                                : fmt::format("tcp://{}:{}", address, port);
  return zmq_bind(router_, endpoint.c_str()) == 0 ? 0 : errno;
}

Result<std::uint16_t> RouterSocket::bound_port() const {
  std::array<char, 256> text{};
  std::size_t size = text.size();
  if (zmq_getsockopt(router_, ZMQ_LAST_ENDPOINT, text.data(), &size) != 0) {
    return system_error("ZMQ_LAST_ENDPOINT");
  }
  const std::string_view endpoint(text.data());
  const std::string_view digits = endpoint.substr(endpoint.rfind(':') + 1);
  std::uint16_t port = 0;
  if (std::from_chars(digits.data(), digits.data() + digits.size(), port).ec != std::errc()) {
    return Error{Code::kSystem, fmt::format("unexpected endpoint {}", endpoint)};
  }
  return port;
}

Result<std::uint16_t> RouterSocket::bind_address(const std::string& address, std::uint16_t port) {
  const int failed = try_bind(address, port);
  if (failed == EADDRINUSE) {
    return taken_error(address, port);
  }
  if (failed != 0) {
    const Code code = failed == EACCES ? Code::kSystem : Code::kInvalid;
    return Error{code,
                 fmt::format("cannot bind {} port {}: {}", address, port, zmq_strerror(failed))};
  }
  return bound_port();
}

Result<std::uint16_t> RouterSocket::bind_loopback(std::uint16_t wanted) {
  for (int left = kLoopbackTries; left > 0; --left) {
    const Result<std::uint16_t> port = bind_address(kLoopback4, wanted);
    if (!port) {
      return port;
    }
    const int failed = try_bind(kLoopback6, *port);
    if (failed == 0) {
      return port;
    }
    if (failed != EADDRINUSE) {
      log::debug("no IPv6 loopback: {}", zmq_strerror(failed));
      return port;
    }
    if (wanted != 0) {
      // Clients use 127.0.0.1 for "localhost"; the IPv6 address is an extra.
      log::warning("{}; serving {} only", taken_error(kLoopback6, *port).detail, kLoopback4);
      return port;
    }
    zmq_unbind(router_, fmt::format("tcp://{}:{}", kLoopback4, *port).c_str());
  }
  return Error{Code::kBusy, "no port is free on both 127.0.0.1 and ::1"};
}

Result<std::uint16_t> RouterSocket::bind(const std::string& host, std::uint16_t port) {
  if (host == "localhost") {
    return bind_loopback(port);
  }
  const bool is_bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  const std::string address = is_bracketed ? host.substr(1, host.size() - 2) : host;
  Result<std::uint16_t> bound = bind_address(address, port);
  if (!bound && bound.error().code == Code::kInvalid && !is_ipv6(address)) {
    const std::string resolved = resolve(address);
    if (!resolved.empty() && resolved != address) {
      return bind_address(resolved, port);
    }
  }
  return bound;
}

}  // namespace larder::transport
