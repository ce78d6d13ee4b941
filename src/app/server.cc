#include "app/server.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>

#include "app/ledger.h"
#include "app/status.h"
#include "base/log.h"
#include "cache/eviction_policy.h"
#include "config/limits.h"
#include "config/version.h"
#include "handlers/handlers.h"
#include "protocol/release.h"

namespace larder::app {
namespace {

constexpr int kExitFailure = 1;
constexpr int kExitPortBusy = 3;

// At the end, for copies between engines on GPUs and objects.
constexpr std::chrono::seconds kCopiesPatience(5);

// In /status; a fleet's worth, and still a page that can be read.
constexpr std::size_t kPeersShown = 1000;

Duration seconds(double value) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(value));
}

std::chrono::milliseconds milliseconds(double value) {
  return std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(value));
}

std::size_t processors() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) {
    return 1;
  }
  return static_cast<std::size_t>(std::max(1, CPU_COUNT(&allowed)));
}

pool::PoolConfig pool_config(const config::Config& config) {
  pool::PoolConfig pool;
  pool.bytes = config.pool_bytes;
  pool.align_bytes = config.pool_align_bytes;
  pool.initial_bytes = config.pool_initial_bytes;
  pool.shm_name_given = config.shm_name.has_value();
  pool.shm_name = config.shm_name.value_or("");
  pool.private_memory = config.shm_name.has_value() && config.shm_name->empty();
  return pool;
}

sessions::InstanceLimits instance_limits(const config::Config& config) {
  return {
      .reap_timeout = seconds(config.reap_timeout_seconds),
      .registration_grace = seconds(config.registration_grace_seconds),
      .write_ttl = std::chrono::seconds(config.write_ttl_seconds),
      .reconnect_grace = config::kReconnectGrace,
      .quarantine_done = config::kQuarantineAfterUnregister,
      .quarantine_restart = config::kQuarantineAfterRestart,
      .quarantine_silence = config::kQuarantineAfterSilence,
      .instances_max = config::kInstancesMax,
      .told_max = config::kToldInstancesMax,
  };
}

sessions::SessionLimits session_limits(const config::Config& config) {
  return {
      std::chrono::seconds(config.read_ttl_seconds), config::kReconnectGrace, config::kSessionsMax};
}

// Often enough to reap on time, seldom enough to cost nothing.
Duration maintenance_tick(const config::Config& config) {
  constexpr Duration kShortest = std::chrono::milliseconds(250);
  constexpr Duration kLongest = std::chrono::seconds(1);
  const Duration quarter = seconds(config.reap_timeout_seconds / 4);
  return quarter == Duration::zero() ? kLongest : std::clamp(quarter, kShortest, kLongest);
}

cache::Verification verification(const config::Config& config) {
  switch (config.l1_verify) {
    case config::Verify::kAlways:
      return cache::Verification::kAlways;
    case config::Verify::kSample:
      return cache::Verification::kSample;
    case config::Verify::kOff:
      break;
  }
  return cache::Verification::kOff;
}

MaintenancePlan maintenance_plan(const config::Config& config) {
  return {maintenance_tick(config),
          config.eviction_watermark,
          config.eviction_ratio,
          config::kPromptHashIdle};
}

std::size_t workers_of(const std::optional<std::uint32_t>& given, std::size_t own_choice) {
  return given.has_value() ? *given : own_choice;
}

std::size_t transfer_workers(const config::Config& config) {
  return workers_of(config.transfer_workers, std::clamp<std::size_t>(processors() / 2, 2, 16));
}

transport::ServerConfig transport_config(const config::Config& config) {
  const std::size_t half_the_cores = processors() / 2;
  transport::ServerConfig transport;
  transport.host = config.host;
  transport.port = config.port;
  transport.lookup_workers =
      workers_of(config.lookup_workers, std::clamp<std::size_t>(half_the_cores, 2, 8));
  transport.transfer_workers = transfer_workers(config);
  transport.connections_max = config.connections_max;
  transport.buffered_bytes_max = config.buffered_bytes_max;
  transport.message_bytes_max = config.message_bytes_max;
  transport.frames_max = config.message_frames_max;
  transport.requests_in_flight_max = config.requests_per_peer_max;
  transport.request_bytes_in_flight_max = config.buffered_bytes_per_peer_max;
  transport.unsent_bytes_max = config.unread_bytes_per_peer_max;
  transport.unsent_heap_bytes_max = config::kUnreadHeapBytesMax;
  transport.handshake_time = milliseconds(config.handshake_timeout_seconds);
  transport.message_time = milliseconds(config.message_timeout_seconds);
  transport.unread_time = milliseconds(config.unread_timeout_seconds);
  return transport;
}

// A copy of a large request is a few megabytes for each; beyond a handful the memory is the limit.
std::size_t copy_helpers() {
  return std::clamp<std::size_t>(processors() / 2, 1, 4);
}

// One transfer worker at least is left to others while engines' last copies are waited for or a
// driver holds workers up, if there are two.
devices::DevicesConfig devices_config(const config::Config& config) {
  devices::DevicesConfig devices;
  devices.copy_helpers = copy_helpers();
  devices.looks_for_cuda = config.transfer_mode != config::TransferMode::kEngineDriven;
  devices.cuda_driver_path = config.cuda_driver_path;
  devices.blocked_max = std::max<std::size_t>(transfer_workers(config), 2) - 1;
  devices.retire_patience = config::kRetirePatience;
  return devices;
}

int exit_code_of(const Error& error) {
  return error.code == Code::kBusy ? kExitPortBusy : kExitFailure;
}

}  // namespace

std::unique_ptr<Server> Server::start(const config::Config& config, StartFailure& failure) {
  Result<std::unique_ptr<pool::Pool>> pool = pool::Pool::create(pool_config(config));
  if (!pool) {
    failure = {kExitFailure, pool.error().detail};
    return nullptr;
  }
  std::unique_ptr<Server> server(
      new Server(config, std::move(*pool)));  // NOLINT: the constructor is private
  if (!server->open_ports(failure)) {
    return nullptr;
  }
  server->register_gauges();
  server->maintenance_.start();
  server->transport_->start();
  server->report_start();
  return server;
}

Server::Server(const config::Config& config, std::unique_ptr<pool::Pool> pool)
    : config_(config),
      settings_{config.chunk_tokens,
                config.transfer_mode != config::TransferMode::kLmcacheDriven,
                config.transfer_mode != config::TransferMode::kEngineDriven,
                config.separate_object_groups,
                protocol::release_of_version(config.default_release)},
      pool_(std::move(pool)),
      index_(*pool_,
             cache::make_eviction_policy(config.eviction_policy),
             metrics_,
             config.selective_admission ? cache::Admission::kSelective : cache::Admission::kAll,
             verification(config)),
      devices_(devices_config(config), clock_),
      quarantine_(clock_),
      instances_(instance_limits(config), quarantine_, clock_),
      sessions_(index_, session_limits(config), clock_),
      prompts_(config.chunk_tokens, config::kPromptHashTokensMax, clock_),
      request_metrics_(metrics_, clock_),
      services_{settings_,
                clock_,
                *pool_,
                devices_,
                index_,
                instances_,
                sessions_,
                prompts_,
                request_metrics_},
      dialects_(settings_.default_release, metrics_, clock_),
      dispatch_(services_, dialects_),
      maintenance_(maintenance_plan(config),
                   {*pool_, index_, devices_, quarantine_, instances_, sessions_, prompts_},
                   clock_,
                   metrics_) {
  for (const auto& [salt, bytes] : config_.salt_quotas) {
    index_.set_quota(salt, bytes);
  }
}

Server::~Server() {
  http_.reset();
  if (transport_ != nullptr) {
    transport_->stop();
  }
  if (!devices_.drain(kCopiesPatience)) {
    // An engine's event does not come; taking its memory away under the device would be worse than
    // leaving everything to the system. The next start sweeps the segment.
    log::error("copies of an engine on a GPU do not end; ending without them");
    std::_Exit(kExitFailure);
  }
}

void Server::log_ledger() const {
  const LedgerSources sources{index_, instances_, sessions_, quarantine_, dispatch_.landings()};
  for (const std::string& line : render_ledger(sources)) {
    log::info("ledger: {}", line);
  }
}

bool Server::open_ports(StartFailure& failure) {
  Result<std::unique_ptr<transport::Server>> transport =
      transport::Server::create(transport_config(config_), dispatch_, metrics_);
  if (!transport) {
    failure = {exit_code_of(transport.error()), transport.error().detail};
    return false;
  }
  transport_ = std::move(*transport);
  admin::AdminActions actions;
  actions.health = [this] { return health(); };
  actions.status_json = [this] { return status_json(); };
  actions.clear_l1 = [this] { handlers::clear_cache(services_); };
  actions.quotas = quota_actions();
  Result<std::unique_ptr<admin::HttpServer>> http =
      admin::HttpServer::start({config_.http_host, config_.http_port, config_.prometheus_port},
                               std::move(actions),
                               metrics_);
  if (!http) {
    failure = {exit_code_of(http.error()), http.error().detail};
    return false;
  }
  http_ = std::move(*http);
  return true;
}

void Server::register_gauges() {
  metrics_.gauge("lmcache_mp_l1_memory_usage_bytes", "Bytes of the pool in use", [this] {
    return static_cast<double>(pool_->usage().used_bytes);
  });
  metrics_.gauge("lmcache_mp_l1_usage_ratio", "Share of the pool in use, 0 to 1", [this] {
    const pool::PoolUsage usage = pool_->usage();
    return static_cast<double>(usage.used_bytes) / static_cast<double>(usage.configured_bytes);
  });
  metrics_.gauge("lmcache_mp_active_prefetch_jobs",
                 "Lookups whose answer was not asked for yet",
                 [this] { return static_cast<double>(sessions_.unanswered_count()); });
  metrics_.gauge("larder_pool_capacity_bytes",
                 "Bytes of the pool that are backed by memory",
                 [this] { return static_cast<double>(pool_->usage().capacity_bytes); });
  metrics_.gauge("larder_transport_connections",
                 "Open connections of peers that have sent a message",
                 [this] { return static_cast<double>(transport_->counts().connections); });
  metrics_.gauge("larder_transport_buffered_bytes",
                 "Bytes of requests that are being received, waiting or running",
                 [this] { return static_cast<double>(transport_->counts().buffered_bytes); });
  metrics_.gauge("larder_landing_bytes", "Bytes in slots of stores that are arriving", [this] {
    return static_cast<double>(dispatch_.landings().byte_count());
  });
  metrics_.gauge("larder_quarantined_objects",
                 "Slots that rest because their client may still touch them",
                 [this] { return static_cast<double>(quarantine_.slot_count()); });
}

void Server::report_start() const {
  const double gib = static_cast<double>(config_.pool_bytes) / (1024.0 * 1024.0 * 1024.0);
  log::info("larder {}: chunk size {} tokens, eviction policy {}",
            config::kVersion,
            config_.chunk_tokens,
            config_.eviction_policy);
  if (pool_->shm_name().empty()) {
    log::info("pool of {:.2f} GiB in private memory (copy mode only)", gib);
  } else {
    log::info("pool of {:.2f} GiB in shared memory {}", gib, pool_->shm_name());
  }
  log::info("Starting LMCache HTTP server on http://{}:{}", config_.http_host, http_->port());
  log::info("LMCache ZMQ cache server is running on {}", transport_->endpoint());
}

admin::Health Server::health() {
  if (!transport_->probe(config::kProbeTimeout)) {
    return {false, "the request loop does not answer"};
  }
  if (clock_.now() - maintenance_.last_pass() > config::kMaintenanceSilenceMax) {
    return {false, "the maintenance thread does not run"};
  }
  return {};
}

admin::QuotaActions Server::quota_actions() {
  admin::QuotaActions actions;
  actions.all = [this] {
    std::vector<admin::SaltQuota> all;
    for (const cache::Quota& quota : index_.quotas()) {
      all.push_back({quota.cache_salt, quota.limit_bytes, quota.resident_bytes});
    }
    return all;
  };
  actions.of = [this](const std::string& salt) {
    for (const cache::Quota& quota : index_.quotas()) {
      if (quota.cache_salt == salt) {
        return admin::SaltQuota{salt, quota.limit_bytes, quota.resident_bytes};
      }
    }
    return admin::SaltQuota{salt, std::nullopt, index_.resident_bytes(salt)};
  };
  actions.set = [this](const std::string& salt, std::uint64_t limit_bytes) {
    return index_.set_quota(salt, limit_bytes);
  };
  actions.remove = [this](const std::string& salt) { return index_.remove_quota(salt); };
  return actions;
}

std::string Server::status_json() const {
  StatusFacts facts;
  facts.maintenance_alive =
      clock_.now() - maintenance_.last_pass() <= config::kMaintenanceSilenceMax;
  facts.usage = pool_->usage();
  facts.growth_failed = pool_->growth_failed();
  facts.cache = index_.stats();
  facts.quarantined = quarantine_.slot_count();
  facts.sessions = sessions_.count();
  facts.unanswered = sessions_.unanswered_count();
  facts.cuda = devices_.cuda_text();
  facts.instances = instances_.status();
  facts.refused = instances_.refused_ids();
  facts.connections = transport_->counts().connections;
  facts.clients = dialects_.status();
  facts.peers = transport_->peers(kPeersShown);
  return render_status(config_, facts);
}

}  // namespace larder::app
