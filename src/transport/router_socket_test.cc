// Goal: the addresses that operators write are bound as they expect, and a taken port says who has
// it. Method: free loopback ports and plain listening sockets beside them.
#include "transport/router_socket.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstring>

#include "transport/port_owner.h"
#include "transport/test_peer.h"

namespace larder::transport {
namespace {

using testing::Test;

// Listens on one address; -1 when the machine does not have it.
class Listener {
 public:
  Listener(const char* address, std::uint16_t port) {
    sockaddr_in v4{};
    sockaddr_in6 v6{};
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    const bool is_v4 = inet_pton(AF_INET, address, &v4.sin_addr) == 1;
    inet_pton(AF_INET6, address, &v6.sin6_addr);
    socket_ = socket(is_v4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const void* where = is_v4 ? static_cast<const void*>(&v4) : &v6;
    is_listening_ =
        bind(socket_, static_cast<const sockaddr*>(where), is_v4 ? sizeof v4 : sizeof v6) == 0 &&
        listen(socket_, 1) == 0;
  }

  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  ~Listener() { close(socket_); }

  bool is_listening() const { return is_listening_; }

  std::uint16_t port() const {
    sockaddr_in6 address{};
    socklen_t size = sizeof address;
    getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size);
    return ntohs(address.sin6_port);  // at the same place in both families
  }

 private:
  int socket_ = -1;
  bool is_listening_ = false;
};

std::unique_ptr<RouterSocket> open_socket() {
  Result<std::unique_ptr<RouterSocket>> socket = RouterSocket::open({1U << 20, 1000});
  return socket.has_value() ? std::move(*socket) : nullptr;
}

bool has_ipv6() {
  return Listener("::1", 0).is_listening();
}

bool is_taken(const char* address, std::uint16_t port) {
  return !Listener(address, port).is_listening();
}

TEST(RouterSocket, LocalhostIsBothLoopbacksOnOnePort) {
  const std::unique_ptr<RouterSocket> socket = open_socket();
  const Result<std::uint16_t> port = socket->bind("localhost", 0);
  ASSERT_TRUE(port.has_value());
  EXPECT_TRUE(is_taken("127.0.0.1", *port));
  EXPECT_TRUE(!has_ipv6() || is_taken("::1", *port));
  EXPECT_FALSE(is_taken("127.0.0.2", *port));
}

TEST(RouterSocket, AddressesAreTakenLiterally) {
  for (const char* host : {"127.0.0.1", "127.0.0.2", "0.0.0.0", "*", "::1", "[::1]", "::", "lo"}) {
    if (std::strchr(host, ':') != nullptr && !has_ipv6()) {
      continue;
    }
    const std::unique_ptr<RouterSocket> socket = open_socket();
    const Result<std::uint16_t> port = socket->bind(host, 0);
    ASSERT_TRUE(port.has_value()) << host << ": " << port.error().detail;
    EXPECT_GT(*port, 0) << host;
  }
}

TEST(RouterSocket, AllAddressesOfIpv6IncludeIpv4) {
  if (!has_ipv6()) {
    GTEST_SKIP() << "no IPv6 here";
  }
  const std::unique_ptr<RouterSocket> socket = open_socket();
  const Result<std::uint16_t> port = socket->bind("::", 0);
  ASSERT_TRUE(port.has_value());
  EXPECT_TRUE(RawPeer(*port).is_connected());
}

TEST(RouterSocket, ATakenPortNamesItsOwner) {
  const Listener other("127.0.0.1", 0);
  ASSERT_TRUE(other.is_listening());
  for (const char* host : {"127.0.0.1", "localhost", "0.0.0.0"}) {
    const std::unique_ptr<RouterSocket> socket = open_socket();
    const Result<std::uint16_t> port = socket->bind(host, other.port());
    ASSERT_FALSE(port.has_value()) << host;
    EXPECT_EQ(port.error().code, Code::kBusy);
    const std::string address = std::strcmp(host, "localhost") == 0 ? "127.0.0.1" : host;
    EXPECT_EQ(port.error().detail,
              "port " + std::to_string(other.port()) + " on " + address + " is in use (pid " +
                  std::to_string(getpid()) + ", transport_test)");
  }
}

TEST(RouterSocket, APortTakenOnIpv6OnlyStillServesLocalhost) {
  const Listener other("::1", 0);
  if (!other.is_listening()) {
    GTEST_SKIP() << "no IPv6 here";
  }
  const std::unique_ptr<RouterSocket> socket = open_socket();
  const Result<std::uint16_t> port = socket->bind("localhost", other.port());
  ASSERT_TRUE(port.has_value());
  EXPECT_EQ(*port, other.port());
  EXPECT_TRUE(RawPeer(*port).is_connected());
}

TEST(RouterSocket, AHostThatIsNotOursIsInvalid) {
  for (const char* host : {"192.0.2.1", "no-such-host.invalid", "", "a b"}) {
    const std::unique_ptr<RouterSocket> socket = open_socket();
    const Result<std::uint16_t> port = socket->bind(host, 0);
    ASSERT_FALSE(port.has_value()) << host;
    EXPECT_EQ(port.error().code, Code::kInvalid) << host;
  }
}

TEST(RouterSocket, RaisesTheLimitOfOpenFiles) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = std::min<rlim_t>(before.rlim_max, 256);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  const std::unique_ptr<RouterSocket> socket = open_socket();
  rlimit after{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &after), 0);
  EXPECT_EQ(after.rlim_cur, before.rlim_max);
}

TEST(PortOwner, KnowsNobodyOnAFreePortOrAnotherAddress) {
  const Listener other("127.0.0.1", 0);
  const std::uint16_t port = other.port();
  EXPECT_NE(find_port_owner("127.0.0.1", port), "");
  EXPECT_NE(find_port_owner("*", port), "");
  EXPECT_EQ(find_port_owner("127.0.0.2", port), "");
  EXPECT_EQ(find_port_owner("::1", port), "");
  EXPECT_EQ(find_port_owner("127.0.0.1", 1), "");
}

}  // namespace
}  // namespace larder::transport
