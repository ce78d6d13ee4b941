// ledger.h - who holds what: every lock unit, reservation, pin and resting slot with its owner.
//
// Printed to the log on SIGUSR1. Copies of each part's own account, taken one after the other, so
// they may differ by what happened in between. Any thread.
#pragma once

#include <string>
#include <vector>

#include "cache/cache_index.h"
#include "handlers/landing.h"
#include "sessions/instances.h"
#include "sessions/quarantine.h"
#include "sessions/sessions.h"

namespace larder::app {

struct LedgerSources {
  const cache::CacheIndex& index;
  const sessions::Instances& instances;
  const sessions::Sessions& sessions;
  const sessions::Quarantine& quarantine;
  const handlers::Landings& landings;
};

// One line each; the totals first. Of many sessions, the oldest thousand.
std::vector<std::string> render_ledger(const LedgerSources& sources);

}  // namespace larder::app
