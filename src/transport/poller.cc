#include "transport/poller.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <limits>

#include "base/check.h"

namespace larder::transport {
namespace {

epoll_event event_of(std::uint32_t events, Watched& watched) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = &watched;
  return event;
}

int milliseconds_of(std::optional<Duration> limit) {
  if (!limit) {
    return -1;
  }
  // Rounded up, so that the time has come when the wait ends.
  const auto whole = std::chrono::ceil<std::chrono::milliseconds>(*limit).count();
  return static_cast<int>(std::clamp<std::int64_t>(whole, 0, std::numeric_limits<int>::max()));
}

}  // namespace

Result<Poller> Poller::create() {
  Descriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.is_open()) {
    return Error{Code::kSystem, std::string("epoll_create1: ") + std::strerror(errno)};
  }
  return Poller(std::move(epoll));
}

bool Poller::add(int descriptor, std::uint32_t events, Watched& watched) {
  epoll_event event = event_of(events, watched);
  return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &event) == 0;
}

void Poller::change(int descriptor, std::uint32_t events, Watched& watched) {
  epoll_event event = event_of(events, watched);
  LARDER_CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, descriptor, &event) == 0);
}

void Poller::remove(int descriptor) {
  LARDER_CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, descriptor, nullptr) == 0);
}

std::span<const epoll_event> Poller::wait(std::optional<Duration> limit) {
  const int count = epoll_wait(
      epoll_.get(), events_.data(), static_cast<int>(events_.size()), milliseconds_of(limit));
  // A signal ends the wait early; the round that follows finds out what there is to do.
  LARDER_CHECK(count >= 0 || errno == EINTR);
  return std::span(events_).first(static_cast<std::size_t>(std::max(count, 0)));
}

}  // namespace larder::transport
