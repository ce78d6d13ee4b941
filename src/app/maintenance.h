// maintenance.h - the thread that does what is due without anybody asking: expiry, reaping,
// eviction ahead of need.
//
// One pass a tick; each pass works in slices, so that no lock is held for long. Health reads when
// the last pass ended.
#pragma once

#include <atomic>
#include <cstddef>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "base/mutex.h"
#include "cache/cache_index.h"
#include "devices/devices.h"
#include "metrics/metrics.h"
#include "pool/pool.h"
#include "sessions/instances.h"
#include "sessions/prompt_hashes.h"
#include "sessions/quarantine.h"
#include "sessions/sessions.h"

namespace larder::app {

struct MaintenancePlan {
  Duration tick;
  std::optional<double>
      eviction_watermark;       // of the capacity; nullopt: only a small reserve is kept free
  double eviction_ratio = 0.2;  // of the used bytes, evicted when the watermark is reached
  Duration prompt_idle;
};

struct Maintained {
  pool::Pool& pool;
  cache::CacheIndex& index;
  devices::Devices& devices;
  sessions::Quarantine& quarantine;
  sessions::Instances& instances;
  sessions::Sessions& sessions;
  sessions::PromptHashes& prompts;
};

class Maintenance {
 public:
  Maintenance(const MaintenancePlan& plan,
              const Maintained& maintained,
              const Clock& clock,
              metrics::Registry& metrics);
  Maintenance(const Maintenance&) = delete;
  Maintenance& operator=(const Maintenance&) = delete;
  ~Maintenance();  // stops

  void start();

  // One pass, on the caller's thread. For the thread itself and for tests.
  void pass();

  TimePoint last_pass() const { return TimePoint(Duration(last_pass_.load())); }

 private:
  void run();
  void evict_ahead();
  void watch_pool();

  const MaintenancePlan plan_;
  const Maintained maintained_;
  const Clock& clock_;
  metrics::Counter& ticks_;
  metrics::Counter& triggered_;
  std::atomic<Duration::rep> last_pass_;
  bool reported_lost_name_ = false;
  bool offered_pool_ = false;  // to devices

  Mutex mutex_;
  ConditionVariable stopping_;
  bool stop_ LARDER_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// The most bytes that may stay in use without a watermark: all but a small reserve, in whole
// objects, so that stores rarely wait for an eviction and a small pool is used to its last object.
// All of the capacity when the average object is unknown.
std::size_t used_bytes_to_keep(std::size_t capacity_bytes,
                               std::size_t used_bytes,
                               std::size_t objects);

}  // namespace larder::app
