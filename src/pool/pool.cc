#include "pool/pool.h"

#include <fmt/core.h>
#include <signal.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <optional>
#include <stop_token>
#include <system_error>
#include <thread>

#include "base/check.h"
#include "pool/growing_space.h"
#include "pool/segment.h"
#include "pool/segment_name.h"

namespace larder::pool {
namespace {

// Populating this much takes a few milliseconds: what the destructor may have to wait for.
constexpr std::size_t kPopulateBytes = 16U << 20;

Result<void> require_sane(const PoolConfig& config) {
  if (!std::has_single_bit(config.align_bytes)) {
    return Error{Code::kInvalid,
                 fmt::format("the pool's alignment {} is not a power of two", config.align_bytes)};
  }
  if (config.bytes < config.align_bytes) {
    return Error{Code::kInvalid,
                 fmt::format("a pool of {} bytes cannot hold one slot of alignment {}",
                             config.bytes,
                             config.align_bytes)};
  }
  if (config.bytes > static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max())) {
    return Error{Code::kInvalid,
                 fmt::format("a pool of {} bytes cannot be addressed", config.bytes)};
  }
  if (config.step_bytes == 0) {
    return Error{Code::kInvalid, "the pool must grow by at least one byte a step"};
  }
  return {};
}

Result<Segment> make_segment(const PoolConfig& config) {
  if (config.private_memory) {
    return Segment::create_private(config.bytes);
  }
  std::optional<std::string> given_name;
  if (config.shm_name_given) {
    auto name = segment_name_from(config.shm_name);
    if (!name) {
      return name.error();
    }
    given_name = std::move(*name);
  }
  return Segment::create_shared(config.directory, given_name, config.bytes);
}

}  // namespace

struct Pool::State {
  State(const PoolConfig& config, Segment made)
      : align_bytes(config.align_bytes),
        segment(std::move(made)),
        space({config.bytes, config.align_bytes, std::min(config.step_bytes, config.bytes)},
              [this](std::size_t offset, std::size_t bytes) {
                return segment.reserve(offset, bytes);
              }) {}

  Result<void> start_growing() {
    try {
      grower = std::jthread([this](const std::stop_token& stop) { grow_until(stop); });
    } catch (const std::system_error& refused) {
      return Error{Code::kSystem,
                   fmt::format("cannot start the thread that grows the pool: {}", refused.what())};
    }
    return {};
  }

  void grow_until(const std::stop_token& stop) {
    // Signals are for the main thread, and one here would make fallocate start over.
    sigset_t every_signal;
    ::sigfillset(&every_signal);
    ::pthread_sigmask(SIG_SETMASK, &every_signal, nullptr);
    std::size_t populated = 0;
    bool populating = true;
    for (bool growing = true; growing && !stop.stop_requested();) {
      growing = space.grow();
      const std::size_t reserved = space.reserved_bytes();
      while (populating && populated < reserved && !stop.stop_requested()) {
        const std::size_t piece = std::min(reserved - populated, kPopulateBytes);
        populating = segment.populate(populated, piece);
        populated += piece;
      }
    }
  }

  const std::size_t align_bytes;
  const Segment segment;
  GrowingSpace space;
  std::jthread grower;  // last: joined before the rest goes
};

Slot& Slot::operator=(Slot&& other) noexcept {
  if (this != &other) {
    const Slot given_up(std::move(*this));
    pool_ = std::exchange(other.pool_, nullptr);
    offset_ = other.offset_;
    bytes_ = other.bytes_;
  }
  return *this;
}

Slot::~Slot() {
  if (pool_ != nullptr) {
    pool_->give_back(offset_, bytes_);
  }
}

std::span<std::byte> Slot::bytes() const {
  LARDER_CHECK(valid());
  return {pool_->base() + offset_, bytes_};
}

Pool::Pool(std::unique_ptr<State> state) : state_(std::move(state)) {}

Pool::~Pool() {
  LARDER_CHECK(state_->space.used_bytes() == 0);
}

Result<std::unique_ptr<Pool>> Pool::create(const PoolConfig& config) {
  if (auto sane = require_sane(config); !sane) {
    return sane.error();
  }
  auto segment = make_segment(config);
  if (!segment) {
    return segment.error();
  }
  auto state = std::make_unique<State>(config, std::move(*segment));
  const std::size_t first = config.private_memory ? config.bytes : config.initial_bytes;
  if (auto reserved = state->space.reserve_first(first); !reserved) {
    return Error{reserved.error().code,
                 fmt::format("the pool wants {} bytes, of which {} at once: {}. Lower --l1-size-gb "
                             "or give {} more room (in a container --shm-size, Docker's default is "
                             "64 MB)",
                             config.bytes,
                             first,
                             reserved.error().detail,
                             config.directory)};
  }
  if (!config.private_memory) {
    if (auto started = state->start_growing(); !started) {
      return started.error();
    }
  }
  return std::make_unique<Pool>(std::move(state));
}

Result<Slot> Pool::take(std::size_t bytes) {
  LARDER_CHECK(bytes > 0);
  const auto offset = state_->space.take(bytes);
  if (!offset) {
    return offset.error();
  }
  return Slot(this, *offset, bytes);
}

Slot Pool::take_now(std::size_t bytes) {
  const std::optional<std::size_t> offset = state_->space.take_now(bytes);
  return offset.has_value() ? Slot(this, *offset, bytes) : Slot();
}

Result<Slot> Pool::exchange(std::vector<Slot> slots, std::size_t bytes) {
  LARDER_CHECK(bytes > 0);
  std::vector<Range> ranges;
  ranges.reserve(slots.size());
  for (Slot& slot : slots) {
    LARDER_CHECK(slot.pool_ == this);
    slot.pool_ = nullptr;
    ranges.push_back({slot.offset_, slot.bytes_});
  }
  const auto offset = state_->space.exchange(ranges, bytes);
  if (!offset) {
    return offset.error();
  }
  return Slot(this, *offset, bytes);
}

PoolRange Pool::room_around(const Slot& slot) const {
  LARDER_CHECK(slot.pool_ == this);
  const Range room = state_->space.with_free_sides({slot.offset_, slot.bytes_});
  return {room.offset, room.bytes};
}

void Pool::give_back(std::size_t offset, std::size_t bytes) {
  state_->space.give_back(offset, bytes);
}

std::size_t Pool::rounded(std::size_t bytes) const {
  return state_->space.rounded(bytes);
}

PoolUsage Pool::usage() const {
  return {state_->segment.bytes(), state_->space.capacity_bytes(), state_->space.used_bytes()};
}

bool Pool::growth_failed() const {
  return state_->space.growth_failed();
}

const std::string& Pool::shm_name() const {
  return state_->segment.name();
}

std::size_t Pool::align_bytes() const {
  return state_->align_bytes;
}

std::byte* Pool::base() const {
  return state_->segment.base();
}

bool Pool::name_intact() const {
  return state_->segment.name_intact();
}

}  // namespace larder::pool
