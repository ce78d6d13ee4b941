// test_client.h - a client that sends exactly the bytes it is told to; for the tests of this room
// only.
//
// Each wait ends after kPatience, so that a server that does not answer fails a test and does not
// hang it.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace larder::admin {

class TestClient {
 public:
  static constexpr std::chrono::milliseconds kPatience{10000};

  explicit TestClient(std::uint16_t port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  }

  TestClient(const TestClient&) = delete;
  TestClient& operator=(const TestClient&) = delete;

  ~TestClient() { close(fd_); }

  bool connected() const { return connected_; }

  int fd() const { return fd_; }

  bool send(std::string_view bytes) const {
    return ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }

  void end_sending() const { shutdown(fd_, SHUT_WR); }

  // What arrives until `mark` has been seen `times` times, the server closes, or the patience ends.
  std::string read_until(std::string_view mark, int times = 1) {
    std::string got;
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (count(got, mark) < times) {
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      pollfd entry{fd_, POLLIN, 0};
      if (left.count() <= 0 || poll(&entry, 1, static_cast<int>(left.count())) <= 0) {
        timed_out_ = true;
        break;
      }
      std::array<char, 65536> bytes;
      const ssize_t size = recv(fd_, bytes.data(), bytes.size(), 0);
      if (size <= 0) {
        closed_ = true;
        break;
      }
      got.append(bytes.data(), static_cast<std::size_t>(size));
    }
    return got;
  }

  std::string read_all() { return read_until("\xFF never sent"); }

  bool closed() const { return closed_; }

  bool timed_out() const { return timed_out_; }

 private:
  static int count(std::string_view text, std::string_view mark) {
    int found = 0;
    for (std::size_t at = text.find(mark); at != std::string_view::npos;
         at = text.find(mark, at + mark.size())) {
      ++found;
    }
    return found;
  }

  int fd_;
  bool connected_ = false;
  bool closed_ = false;
  bool timed_out_ = false;
};

}  // namespace larder::admin
