// http_server.h - the admin HTTP port: health, status, metrics, clear, quotas.
//
// Runs on threads of its own, one that accepts and one per connection (elastic_threads.h), and
// reaches the rest of the server only through AdminActions, which read counters and post commands:
// no route holds a lock of the data path for longer than a copy of a counter. Replies and error
// bodies are LMCache's (routes.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "metrics/metrics.h"

namespace larder::admin {

struct Health {
  bool healthy = true;
  std::string reason;  // when not healthy
};

// What one cache salt may hold and holds.
struct SaltQuota {
  std::string cache_salt;
  std::optional<std::uint64_t> limit_bytes;  // nullopt: no quota
  std::uint64_t used_bytes = 0;
};

struct QuotaActions {
  std::function<std::vector<SaltQuota>()> all;  // that have a limit
  std::function<SaltQuota(const std::string& salt)> of;
  // False when there are too many.
  std::function<bool(const std::string& salt, std::uint64_t limit_bytes)> set;
  std::function<bool(const std::string& salt)> remove;  // false when there was none
};

// What the routes may do; filled by app/. Called on HTTP threads, concurrently.
struct AdminActions {
  std::function<Health()> health;
  std::function<std::string()> status_json;  // the whole body of GET /status
  std::function<void()> clear_l1;            // returns when done
  QuotaActions quotas;
};

struct HttpConfig {
  std::string host;
  std::uint16_t port = 0;                        // 0: any free one
  std::optional<std::uint16_t> prometheus_port;  // also serves /metrics there; busy: a warning
};

class HttpServer {
 public:
  // Binds and starts serving. kBusy when the port is taken, kInvalid when the host has no usable
  // address. `metrics` outlives the result.
  static Result<std::unique_ptr<HttpServer>> start(const HttpConfig& config,
                                                   AdminActions actions,
                                                   const metrics::Registry& metrics);

  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  ~HttpServer();  // stops and joins, within a second also when a client holds a connection open

  std::uint16_t port() const;
  std::optional<std::uint16_t> prometheus_port() const;  // empty when there is none or it was busy

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace larder::admin
