// poller.h - which of the loop's descriptors are ready: epoll, level-triggered.
//
// Level-triggered because every turn of a connection is bounded: one that has more to read is
// simply reported again, after the others had their turn. One thread.
#pragma once

#include <sys/epoll.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "base/clock.h"
#include "base/result.h"
#include "transport/descriptor.h"

namespace larder::transport {

// What a descriptor belongs to. The poller's events lead back to it.
struct Watched {
  enum class Kind : std::uint8_t { kOutbox, kListener, kConnection };

  explicit Watched(Kind of) : kind(of) {}

  Kind kind;
};

class Poller {
 public:
  static Result<Poller> create();

  explicit Poller(Descriptor epoll) : epoll_(std::move(epoll)) {}

  // False when the system refuses (no memory, too many watches).
  bool add(int descriptor, std::uint32_t events, Watched& watched);
  void change(int descriptor, std::uint32_t events, Watched& watched);
  void remove(int descriptor);

  // Waits until something is ready or the time has come; nullopt: no time limit. The events are
  // valid until the next call.
  std::span<const epoll_event> wait(std::optional<Duration> limit);

 private:
  static constexpr std::size_t kEventsPerWait = 128;

  Descriptor epoll_;
  std::array<epoll_event, kEventsPerWait> events_{};
};

}  // namespace larder::transport
