#include "transport/listener.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "base/log.h"
#include "transport/port_owner.h"

namespace larder::transport {
namespace {

// For hosts that vanished. The kernel answers the probes, so a process that is only stopped keeps
// its connection: the end of a connection means the end of its process, which is what lets the
// server reuse memory the process had mapped.
constexpr int kKeepaliveIdleSeconds = 60;
constexpr int kKeepaliveIntervalSeconds = 15;
constexpr int kKeepaliveProbes = 4;

constexpr int kLoopbackTries = 16;
constexpr const char* kLoopback4 = "127.0.0.1";
constexpr const char* kLoopback6 = "::1";

struct Address {
  sockaddr_storage bytes{};
  socklen_t size = 0;

  const sockaddr* pointer() const { return reinterpret_cast<const sockaddr*>(&bytes); }

  sockaddr* pointer() { return reinterpret_cast<sockaddr*>(&bytes); }
};

// The address without its port.
std::string host_text(const Address& address) {
  std::array<char, NI_MAXHOST> text{};
  if (getnameinfo(
          address.pointer(), address.size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) !=
      0) {
    return "?";
  }
  return text.data();
}

std::uint16_t port_of(const Address& address) {
  if (address.bytes.ss_family == AF_INET) {
    sockaddr_in narrow{};
    std::memcpy(&narrow, &address.bytes, sizeof narrow);
    return ntohs(narrow.sin_port);
  }
  sockaddr_in6 wide{};
  std::memcpy(&wide, &address.bytes, sizeof wide);
  return ntohs(wide.sin6_port);
}

std::string tcp_peer_text(const Address& address) {
  const std::string host = host_text(address);
  const bool has_colons = host.find(':') != std::string::npos;
  return fmt::format(
      "{}{}{}:{}", has_colons ? "[" : "", host, has_colons ? "]" : "", port_of(address));
}

// The first IPv4 address of a name or number, else the first of any kind.
Result<Address> resolve(const std::string& host, std::uint16_t port) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found);
  if (failed != 0) {
    return Error{Code::kInvalid, fmt::format("cannot use {}: {}", host, gai_strerror(failed))};
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> list(found, &freeaddrinfo);
  const addrinfo* best = found;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    if (entry->ai_family == AF_INET) {
      best = entry;
      break;
    }
  }
  Address address;
  std::memcpy(&address.bytes, best->ai_addr, best->ai_addrlen);
  address.size = best->ai_addrlen;
  return address;
}

// The IPv4 address of a network interface; "": there is none of that name.
std::string interface_address(const std::string& name) {
  ifaddrs* found = nullptr;
  if (getifaddrs(&found) != 0) {
    return "";
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> list(found, &freeifaddrs);
  for (const ifaddrs* entry = found; entry != nullptr; entry = entry->ifa_next) {
    if (name == entry->ifa_name && entry->ifa_addr != nullptr &&
        entry->ifa_addr->sa_family == AF_INET) {
      Address address;
      std::memcpy(&address.bytes, entry->ifa_addr, sizeof(sockaddr_in));
      address.size = sizeof(sockaddr_in);
      return host_text(address);
    }
  }
  return "";
}

// Everything but SO_REUSEADDR is inherited by the sockets that are accepted. 0, or errno.
int set_options(int socket, bool is_ipv6, bool is_any) {
  struct Option {
    int level;
    int name;
    int value;
  };

  const int only = is_ipv6 && !is_any ? 1 : 0;
  const auto options = std::to_array<Option>({
      {SOL_SOCKET, SO_REUSEADDR, 1},
      {IPPROTO_TCP, TCP_NODELAY, 1},
      {SOL_SOCKET, SO_KEEPALIVE, 1},
      {IPPROTO_TCP, TCP_KEEPIDLE, kKeepaliveIdleSeconds},
      {IPPROTO_TCP, TCP_KEEPINTVL, kKeepaliveIntervalSeconds},
      {IPPROTO_TCP, TCP_KEEPCNT, kKeepaliveProbes},
      {IPPROTO_IPV6, IPV6_V6ONLY, only},
  });
  for (const Option& option : options) {
    if (option.level == IPPROTO_IPV6 && !is_ipv6) {
      continue;
    }
    if (setsockopt(socket, option.level, option.name, &option.value, sizeof option.value) != 0) {
      return errno;
    }
  }
  return 0;
}

// 0, or errno.
int listen_on(const Address& address, Descriptor& to) {
  const bool is_ipv6 = address.bytes.ss_family == AF_INET6;
  Descriptor socket(
      ::socket(address.bytes.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.is_open()) {
    return errno;
  }
  if (const int failed = set_options(socket.get(), is_ipv6, host_text(address) == "::")) {
    return failed;
  }
  if (bind(socket.get(), address.pointer(), address.size) != 0 ||
      listen(socket.get(), kBacklog) != 0) {
    return errno;
  }
  to = std::move(socket);
  return 0;
}

std::uint16_t bound_port(const Descriptor& socket) {
  Address address;
  address.size = sizeof address.bytes;
  getsockname(socket.get(), address.pointer(), &address.size);
  return port_of(address);
}

Error taken_error(const std::string& host, std::uint16_t port) {
  std::string text = fmt::format("port {} on {} is in use", port, host);
  const std::string owner = find_port_owner(host, port);
  if (!owner.empty()) {
    text += fmt::format(" ({})", owner);
  }
  return Error{Code::kBusy, std::move(text)};
}

Result<Descriptor> open_tcp(const std::string& host, std::uint16_t port) {
  const Result<Address> address = resolve(host, port);
  if (!address) {
    return address.error();
  }
  Descriptor socket;
  const int failed = listen_on(*address, socket);
  if (failed == EADDRINUSE) {
    return taken_error(host_text(*address), port);
  }
  if (failed != 0) {
    const bool is_ours = failed == EADDRNOTAVAIL || failed == EAFNOSUPPORT || failed == EINVAL;
    return Error{is_ours ? Code::kInvalid : Code::kSystem,
                 fmt::format("cannot bind {} port {}: {}", host, port, std::strerror(failed))};
  }
  return socket;
}

void add_tcp(Listeners& listeners, Descriptor socket) {
  listeners.port = bound_port(socket);
  listeners.sockets.push_back(std::make_unique<Listener>(std::move(socket)));
}

Result<Listeners> open_loopback(std::uint16_t wanted) {
  for (int left = kLoopbackTries; left > 0; --left) {
    Listeners listeners;
    Result<Descriptor> four = open_tcp(kLoopback4, wanted);
    if (!four) {
      return four.error();
    }
    add_tcp(listeners, std::move(*four));
    Result<Descriptor> six = open_tcp(kLoopback6, listeners.port);
    if (six) {
      add_tcp(listeners, std::move(*six));
      return listeners;
    }
    if (six.error().code != Code::kBusy) {
      log::debug("no IPv6 loopback: {}", six.error().detail);
      return listeners;
    }
    if (wanted != 0) {
      // Clients use 127.0.0.1 for "localhost"; the IPv6 address is an extra.
      log::warning("{}; serving {} only", six.error().detail, kLoopback4);
      return listeners;
    }
  }
  return Error{Code::kBusy, "no port is free on both 127.0.0.1 and ::1"};
}

bool is_transient(int failure) {
  return failure == EMFILE || failure == ENFILE || failure == ENOBUFS || failure == ENOMEM;
}

}  // namespace

Listener::Listener(Descriptor socket)
    : Watched(Kind::kListener), socket_(std::move(socket)), is_local_(false) {}

Accepted Listener::accept() const {
  Address address;
  address.size = sizeof address.bytes;
  Accepted accepted;
  accepted.socket = Descriptor(
      accept4(socket_.get(), address.pointer(), &address.size, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!accepted.socket.is_open()) {
    accepted.outcome = errno == EAGAIN       ? Accepted::Outcome::kNobody
                       : is_transient(errno) ? Accepted::Outcome::kNoMemory
                                             : Accepted::Outcome::kFailed;
    return accepted;
  }
  accepted.outcome = Accepted::Outcome::kPeer;
  accepted.name.text = is_local_ ? local_peer_text(accepted.socket.get()) : tcp_peer_text(address);
  return accepted;
}

Result<Listeners> open_listeners(const std::string& host, std::uint16_t port) {
  Listeners listeners;
  if (host.starts_with(kLocalScheme)) {
    Result<std::unique_ptr<Listener>> local = open_local_listener(host.substr(kLocalScheme.size()));
    if (!local) {
      return local.error();
    }
    listeners.sockets.push_back(std::move(*local));
    return listeners;
  }
  if (host == "localhost") {
    return open_loopback(port);
  }
  const bool is_bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  std::string address = is_bracketed ? host.substr(1, host.size() - 2) : host;
  if (address == "*") {
    address = "0.0.0.0";
  } else if (const std::string of_interface = interface_address(address); !of_interface.empty()) {
    address = of_interface;
  }
  Result<Descriptor> socket = open_tcp(address, port);
  if (!socket) {
    return socket.error();
  }
  add_tcp(listeners, std::move(*socket));
  return listeners;
}

std::string endpoint_text(const std::string& host, std::uint16_t port) {
  return host.starts_with(kLocalScheme) ? host : fmt::format("tcp://{}:{}", host, port);
}

}  // namespace larder::transport
