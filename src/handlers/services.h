// services.h - what handlers work with. Owned by app/, built before the transport and destroyed
// after it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/log.h"
#include "cache/cache_index.h"
#include "devices/devices.h"
#include "handlers/request_metrics.h"
#include "pool/pool.h"
#include "protocol/release.h"
#include "sessions/ids.h"
#include "sessions/instances.h"
#include "sessions/prompt_hashes.h"
#include "sessions/sessions.h"

namespace larder::handlers {

// What an operator set that handlers need to know.
struct Settings {
  std::uint32_t chunk_tokens = 256;
  bool serves_engine_driven = true;  // --supported-transfer-mode
  bool serves_lmcache_driven = true;
  bool separate_object_groups = true;
  std::optional<protocol::Release> default_release;  // --default-release; nullopt: auto
};

struct Services {
  const Settings& settings;
  const Clock& clock;
  pool::Pool& pool;
  devices::Devices& devices;
  cache::CacheIndex& index;
  sessions::Instances& instances;
  sessions::Sessions& sessions;
  sessions::PromptHashes& prompts;
  RequestMetrics& metrics;
};

class Landing;

// Who sent the request.
struct Caller {
  sessions::ConnectionId connection{};
  bool is_reconnect = false;   // its client has spoken to a server before, perhaps not to this one
  Landing* landing = nullptr;  // where objects of its payload were received, if they were
};

}  // namespace larder::handlers
