// status.h - the body of GET /status: LMCache's keys, from counters and copies.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cache/cache_index.h"
#include "config/config.h"
#include "handlers/dialects.h"
#include "pool/pool.h"
#include "sessions/instances.h"
#include "transport/peer_list.h"

namespace larder::app {

struct StatusFacts {
  bool maintenance_alive = true;
  pool::PoolUsage usage{};
  bool growth_failed = false;
  cache::CacheStats cache{};
  std::size_t quarantined = 0;
  std::string cuda;  // the driver that was found, or why there is none
  std::size_t sessions = 0;
  std::size_t unanswered = 0;
  std::vector<sessions::InstanceStatus> instances;
  std::vector<sessions::InstanceId> refused;
  std::uint64_t connections = 0;
  std::vector<handlers::ConnectionStatus> clients;  // connections that said something
  std::vector<transport::ConnectedPeer> peers;      // of these; the longest connected first
};

std::string render_status(const config::Config& config, const StatusFacts& facts);

}  // namespace larder::app
