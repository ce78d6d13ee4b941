// server.h - the wiring diagram: owns every part of the server and the order in which they live.
//
// Members are built in the order of their rooms and destroyed in reverse: the ports close first,
// the pool goes last.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "admin/http_server.h"
#include "app/maintenance.h"
#include "base/clock.h"
#include "base/result.h"
#include "cache/cache_index.h"
#include "config/config.h"
#include "devices/devices.h"
#include "handlers/dialects.h"
#include "handlers/dispatch.h"
#include "handlers/request_metrics.h"
#include "handlers/services.h"
#include "metrics/metrics.h"
#include "pool/pool.h"
#include "sessions/instances.h"
#include "sessions/prompt_hashes.h"
#include "sessions/quarantine.h"
#include "sessions/sessions.h"
#include "transport/server.h"

namespace larder::app {

// Why the server could not start, and main()'s exit code for it.
struct StartFailure {
  int exit_code;  // 1: configuration or memory; 3: a port is busy
  std::string message;
};

class Server {
 public:
  // Takes the memory, binds both ports and starts serving.
  static std::unique_ptr<Server> start(const config::Config& config, StartFailure& failure);

  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server();  // answers what is waiting, then stops

  void log_ledger() const;  // ledger.h

 private:
  Server(const config::Config& config, std::unique_ptr<pool::Pool> pool);

  bool open_ports(StartFailure& failure);
  void register_gauges();
  void report_start() const;
  admin::Health health();
  admin::QuotaActions quota_actions();
  std::string status_json() const;

  const config::Config config_;
  const handlers::Settings settings_;
  SteadyClock clock_;
  std::unique_ptr<pool::Pool> pool_;
  metrics::Registry metrics_;
  cache::CacheIndex index_;
  devices::Devices devices_;  // its copies under way hold leases of the index
  sessions::Quarantine quarantine_;
  sessions::Instances instances_;
  sessions::Sessions sessions_;
  sessions::PromptHashes prompts_;
  handlers::RequestMetrics request_metrics_;
  handlers::Services services_;
  handlers::Dialects dialects_;
  handlers::Dispatch dispatch_;
  Maintenance maintenance_;
  std::unique_ptr<transport::Server> transport_;
  std::unique_ptr<admin::HttpServer> http_;
};

}  // namespace larder::app
