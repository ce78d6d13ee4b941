// request_stream.h - one connection of the admin port as cpp-httplib reads it, with an end.
//
// Private to this room; used by one thread. The library's own stream waits anew for every byte and
// takes any number of them, so a client that sends a byte now and then would hold a thread, and the
// stop of the server, for as long as it likes. Here all waiting together ends at a deadline, and
// what is read is bounded. Does not own the socket.
#pragma once

#include <httplib.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <string>

#include "base/clock.h"

namespace larder::admin {

struct StreamLimits {
  std::chrono::milliseconds silence{1000};  // until the first byte
  std::chrono::milliseconds whole{5000};    // from then to the end of the reply
  std::chrono::milliseconds linger{1000};   // for the client to read the reply before the close
  std::size_t bytes_max = 2U << 20;         // a head and the largest body
};

class RequestStream final : public httplib::Stream {
 public:
  // `clock` outlives this.
  RequestStream(int fd, const StreamLimits& limits, const Clock& clock);

  // False when the client sent nothing. To be called before the first read.
  bool await_request();

  // Ends the reply. What the client still sends is dropped until it closes: a close with bytes
  // unread would reset the connection, and take the reply from a client that is still sending.
  void finish();

  bool is_readable() const override;
  bool is_writable() const override;
  ssize_t read(char* bytes, std::size_t size) override;
  ssize_t write(const char* bytes, std::size_t size) override;

  // Addresses are not asked for by any route, and not logged.
  void get_remote_ip_and_port(std::string& /*ip*/, int& /*port*/) const override {}

  void get_local_ip_and_port(std::string& /*ip*/, int& /*port*/) const override {}

  socket_t socket() const override { return fd_; }

 private:
  bool await(short events) const;

  const int fd_;
  const StreamLimits limits_;
  const Clock& clock_;
  TimePoint deadline_;
  std::size_t bytes_read_ = 0;
  std::array<char, 4096> buffer_;
  std::size_t next_ = 0;
  std::size_t end_ = 0;
};

}  // namespace larder::admin
