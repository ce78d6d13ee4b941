#include "app/maintenance.h"

#include "base/log.h"

namespace larder::app {
namespace {

// Objects evicted under one hold of the index's mutex.
constexpr std::size_t kObjectsPerSlice = 256;

// 1/128 of the pool: at 1 s a tick and 16 GiB that takes up stores of 128 MiB/s without an eviction
// in their way.
constexpr std::size_t kReserveShare = 128;

// What is not reserved yet is free memory too.
bool is_growing(const pool::Pool& pool) {
  const pool::PoolUsage usage = pool.usage();
  return usage.configured_bytes - usage.capacity_bytes >= pool.align_bytes() &&
         !pool.growth_failed();
}

}  // namespace

std::size_t used_bytes_to_keep(std::size_t capacity_bytes,
                               std::size_t used_bytes,
                               std::size_t objects) {
  if (objects == 0 || used_bytes < objects) {
    return capacity_bytes;
  }
  const std::size_t object_bytes = used_bytes / objects;
  const std::size_t reserve_objects = capacity_bytes / kReserveShare / object_bytes;
  return capacity_bytes - reserve_objects * object_bytes;
}

Maintenance::Maintenance(const MaintenancePlan& plan,
                         const Maintained& maintained,
                         const Clock& clock,
                         metrics::Registry& metrics)
    : plan_(plan),
      maintained_(maintained),
      clock_(clock),
      ticks_(metrics.counter("lmcache_mp_l1_eviction_loop_ticks_total",
                             "Passes of the maintenance thread")),
      triggered_(metrics.counter("lmcache_mp_l1_eviction_loop_triggered_total",
                                 "Passes that found usage above what is to be kept")),
      last_pass_(clock.now().time_since_epoch().count()) {}

Maintenance::~Maintenance() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  stopping_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void Maintenance::start() {
  thread_ = std::thread([this] { run(); });
}

void Maintenance::pass() {
  maintained_.instances.sweep();
  maintained_.sessions.sweep();
  maintained_.quarantine.sweep();
  maintained_.prompts.sweep(plan_.prompt_idle);
  evict_ahead();
  watch_pool();
  ticks_.add();
  last_pass_.store(clock_.now().time_since_epoch().count());
}

void Maintenance::run() {
  while (true) {
    {
      const MutexLock lock(mutex_);
      if (!stop_) {
        stopping_.wait_for(mutex_, plan_.tick);
      }
      if (stop_) {
        return;
      }
    }
    pass();
  }
}

void Maintenance::evict_ahead() {
  const pool::PoolUsage usage = maintained_.pool.usage();
  const auto capacity = static_cast<double>(usage.capacity_bytes);
  const auto used = static_cast<double>(usage.used_bytes);
  std::size_t target = usage.capacity_bytes;
  if (plan_.eviction_watermark.has_value()) {
    if (used >= *plan_.eviction_watermark * capacity) {
      target = static_cast<std::size_t>(used * (1.0 - plan_.eviction_ratio));
    }
  } else if (!is_growing(maintained_.pool)) {
    target = used_bytes_to_keep(
        usage.capacity_bytes, usage.used_bytes, maintained_.index.stats().resident_objects);
  }
  bool evicted = false;
  while (maintained_.index.evict_down_to(target, kObjectsPerSlice) == kObjectsPerSlice) {
    evicted = true;
  }
  if (evicted || usage.used_bytes > target) {
    triggered_.add();
  }
}

void Maintenance::watch_pool() {
  if (!offered_pool_ && !is_growing(maintained_.pool)) {
    offered_pool_ = true;
    maintained_.devices.register_pool(
        {maintained_.pool.base(), maintained_.pool.usage().capacity_bytes});
  }
  if (!reported_lost_name_ && !maintained_.pool.name_intact()) {
    reported_lost_name_ = true;
    log::error(
        "somebody removed the pool's segment {}: engines that have it mapped go on, new ones fall "
        "back to copy mode until the server is restarted",
        maintained_.pool.shm_name());
  }
}

}  // namespace larder::app
