#include "admin/request_stream.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

namespace larder::admin {

RequestStream::RequestStream(int fd, const StreamLimits& limits, const Clock& clock)
    : fd_(fd), limits_(limits), clock_(clock), deadline_(clock.now() + limits.silence) {}

bool RequestStream::await_request() {
  const bool begun = await(POLLIN);
  deadline_ = clock_.now() + limits_.whole;
  return begun;
}

void RequestStream::finish() {
  shutdown(fd_, SHUT_WR);
  deadline_ = clock_.now() + limits_.linger;
  while (clock_.now() < deadline_ && await(POLLIN) &&
         recv(fd_, buffer_.data(), buffer_.size(), 0) > 0) {
  }
}

bool RequestStream::await(short events) const {
  pollfd entry{fd_, events, 0};
  int ready = -1;
  do {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - clock_.now());
    ready = poll(&entry, 1, static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
  } while (ready < 0 && errno == EINTR);
  return ready > 0;
}

bool RequestStream::is_readable() const {
  return next_ < end_ || await(POLLIN);
}

bool RequestStream::is_writable() const {
  return await(POLLOUT);
}

ssize_t RequestStream::read(char* bytes, std::size_t size) {
  if (next_ == end_) {
    if (clock_.now() >= deadline_ || bytes_read_ >= limits_.bytes_max || !await(POLLIN)) {
      return -1;
    }
    const ssize_t got = recv(fd_, buffer_.data(), buffer_.size(), 0);
    if (got <= 0) {
      return got;
    }
    next_ = 0;
    end_ = static_cast<std::size_t>(got);
    bytes_read_ += end_;
  }
  const std::size_t taken = std::min(size, end_ - next_);
  std::copy_n(buffer_.begin() + static_cast<std::ptrdiff_t>(next_), taken, bytes);
  next_ += taken;
  return static_cast<ssize_t>(taken);
}

ssize_t RequestStream::write(const char* bytes, std::size_t size) {
  return await(POLLOUT) ? send(fd_, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT) : -1;
}

}  // namespace larder::admin
