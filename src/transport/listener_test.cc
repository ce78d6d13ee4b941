// Goal: the addresses that operators write are listened on as they expect, a taken port or path
// says who has it, and a local socket's path is never taken from somebody who is alive. Method:
// free loopback ports, plain listening sockets beside them, and paths in a folder of the test's
// own.
#include "transport/listener.h"

#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <sys/un.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "transport/port_owner.h"
#include "transport/test_peer.h"

namespace larder::transport {
namespace {

namespace fs = std::filesystem;

// Listens on one address; -1 when the machine does not have it.
class OtherListener {
 public:
  OtherListener(const char* address, std::uint16_t port) {
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

  OtherListener(const OtherListener&) = delete;
  OtherListener& operator=(const OtherListener&) = delete;

  ~OtherListener() { close(socket_); }

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

bool has_ipv6() {
  return OtherListener("::1", 0).is_listening();
}

bool is_taken(const char* address, std::uint16_t port) {
  return !OtherListener(address, port).is_listening();
}

TEST(Listener, LocalhostIsBothLoopbacksOnOnePort) {
  const Result<Listeners> opened = open_listeners("localhost", 0);
  ASSERT_TRUE(opened.has_value());
  EXPECT_TRUE(is_taken("127.0.0.1", opened->port));
  EXPECT_TRUE(!has_ipv6() || is_taken("::1", opened->port));
  EXPECT_FALSE(is_taken("127.0.0.2", opened->port));
}

TEST(Listener, AddressesAreTakenLiterally) {
  for (const char* host : {"127.0.0.1", "127.0.0.2", "0.0.0.0", "*", "::1", "[::1]", "::", "lo"}) {
    if (std::strchr(host, ':') != nullptr && !has_ipv6()) {
      continue;
    }
    const Result<Listeners> opened = open_listeners(host, 0);
    ASSERT_TRUE(opened.has_value()) << host << ": " << opened.error().detail;
    EXPECT_GT(opened->port, 0) << host;
  }
}

TEST(Listener, AllAddressesOfIpv6IncludeIpv4) {
  if (!has_ipv6()) {
    GTEST_SKIP() << "no IPv6 here";
  }
  const Result<Listeners> opened = open_listeners("::", 0);
  ASSERT_TRUE(opened.has_value());
  EXPECT_TRUE(RawPeer(opened->port).is_connected());
}

TEST(Listener, ATakenPortNamesItsOwner) {
  const OtherListener other("127.0.0.1", 0);
  ASSERT_TRUE(other.is_listening());
  for (const char* host : {"127.0.0.1", "localhost", "0.0.0.0"}) {
    const Result<Listeners> opened = open_listeners(host, other.port());
    ASSERT_FALSE(opened.has_value()) << host;
    EXPECT_EQ(opened.error().code, Code::kBusy);
    const std::string address = std::strcmp(host, "localhost") == 0 ? "127.0.0.1" : host;
    EXPECT_EQ(opened.error().detail,
              "port " + std::to_string(other.port()) + " on " + address + " is in use (pid " +
                  std::to_string(getpid()) + ", transport_test)");
  }
}

TEST(Listener, APortTakenOnIpv6OnlyStillServesLocalhost) {
  const OtherListener other("::1", 0);
  if (!other.is_listening()) {
    GTEST_SKIP() << "no IPv6 here";
  }
  const Result<Listeners> opened = open_listeners("localhost", other.port());
  ASSERT_TRUE(opened.has_value());
  EXPECT_EQ(opened->port, other.port());
  EXPECT_TRUE(RawPeer(opened->port).is_connected());
}

TEST(Listener, AHostThatIsNotOursIsInvalid) {
  for (const char* host : {"192.0.2.1", "no-such-host.invalid", "", "a b"}) {
    const Result<Listeners> opened = open_listeners(host, 0);
    ASSERT_FALSE(opened.has_value()) << host;
    EXPECT_EQ(opened.error().code, Code::kInvalid) << host;
  }
}

TEST(Listener, PeersAreNamedByTheirAddress) {
  const Result<Listeners> opened = open_listeners("127.0.0.1", 0);
  ASSERT_TRUE(opened.has_value());
  const RawPeer peer(opened->port);
  const Accepted accepted = opened->sockets[0]->accept();
  ASSERT_EQ(accepted.outcome, Accepted::Outcome::kPeer);
  EXPECT_TRUE(accepted.name.text.starts_with("127.0.0.1:")) << accepted.name.text;
  EXPECT_EQ(opened->sockets[0]->accept().outcome, Accepted::Outcome::kNobody);
}

TEST(Listener, AcceptedSocketsSendAtOnceAndProbeTheirPeers) {
  const Result<Listeners> opened = open_listeners("127.0.0.1", 0);
  ASSERT_TRUE(opened.has_value());
  const RawPeer peer(opened->port);
  const Accepted accepted = opened->sockets[0]->accept();
  for (const auto& [level, option] : {std::pair<int, int>(IPPROTO_TCP, TCP_NODELAY),
                                      std::pair<int, int>(SOL_SOCKET, SO_KEEPALIVE)}) {
    int value = 0;
    socklen_t size = sizeof value;
    ASSERT_EQ(getsockopt(accepted.socket.get(), level, option, &value, &size), 0);
    EXPECT_NE(value, 0);
  }
}

class LocalListener : public testing::Test {
 protected:
  LocalListener() : folder_(fs::temp_directory_path() / ("larder-" + std::to_string(getpid()))) {
    fs::create_directory(folder_);
  }

  ~LocalListener() override { fs::remove_all(folder_); }

  std::string path() const { return folder_ / "socket"; }

  std::string host() const { return "ipc://" + path(); }

  const fs::path folder_;
};

TEST_F(LocalListener, ALivePathIsTakenAndNamesItsOwner) {
  const Result<Listeners> first = open_listeners(host(), 0);
  ASSERT_TRUE(first.has_value()) << first.error().detail;
  const Result<Listeners> second = open_listeners(host(), 0);
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code, Code::kBusy);
  EXPECT_NE(second.error().detail.find("pid " + std::to_string(getpid())), std::string::npos)
      << second.error().detail;
  EXPECT_EQ(first->sockets[0]->accept().outcome, Accepted::Outcome::kPeer);  // the question
}

TEST_F(LocalListener, APathThatADeadServerLeftIsUsedAgain) {
  {
    const Descriptor dead(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path().copy(address.sun_path, sizeof address.sun_path - 1);
    ASSERT_EQ(bind(dead.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  ASSERT_TRUE(fs::exists(path()));
  EXPECT_TRUE(open_listeners(host(), 0).has_value());
}

TEST_F(LocalListener, WhatIsNoSocketIsLeftAlone) {
  std::ofstream(path()) << "precious";
  const Result<Listeners> opened = open_listeners(host(), 0);
  ASSERT_FALSE(opened.has_value());
  EXPECT_EQ(opened.error().code, Code::kInvalid);
  EXPECT_EQ(fs::file_size(path()), 8U);
}

TEST_F(LocalListener, ItsPathGoesWithItUnlessItIsSomebodyElsesByNow) {
  { EXPECT_TRUE(open_listeners(host(), 0).has_value()); }
  EXPECT_FALSE(fs::exists(path()));
  {
    const Result<Listeners> opened = open_listeners(host(), 0);
    fs::remove(path());
    std::ofstream(path()) << "another's";
  }
  EXPECT_TRUE(fs::exists(path()));
}

TEST_F(LocalListener, PathsThatCannotBeAreRefused) {
  EXPECT_EQ(open_listeners("ipc://", 0).error().code, Code::kInvalid);
  EXPECT_EQ(open_listeners("ipc:///" + std::string(107, 'x'), 0).error().code, Code::kInvalid);
  EXPECT_EQ(open_listeners("ipc:///no/such/folder/socket", 0).error().code, Code::kSystem);
}

TEST_F(LocalListener, AnAbstractNameLeavesNothingBehind) {
  const std::string name = "ipc://@larder-test-" + std::to_string(getpid());
  const Result<Listeners> first = open_listeners(name, 0);
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(open_listeners(name, 0).error().code, Code::kBusy);
}

TEST(PortOwner, KnowsNobodyOnAFreePortOrAnotherAddress) {
  const OtherListener other("127.0.0.1", 0);
  const std::uint16_t port = other.port();
  EXPECT_NE(find_port_owner("127.0.0.1", port), "");
  EXPECT_NE(find_port_owner("*", port), "");
  EXPECT_EQ(find_port_owner("127.0.0.2", port), "");
  EXPECT_EQ(find_port_owner("::1", port), "");
  EXPECT_EQ(find_port_owner("127.0.0.1", 1), "");
}

}  // namespace
}  // namespace larder::transport
