#include "app/ledger.h"

#include <algorithm>

#include "base/log.h"

namespace larder::app {
namespace {

constexpr std::size_t kSessionsShownMax = 1000;

// What is overdue goes with the next pass of the maintenance thread.
double seconds(Duration time) {
  return std::max(0.0, std::chrono::duration<double>(time).count());
}

template <typename Id>
std::uint64_t number(Id id) {
  return static_cast<std::uint64_t>(id);
}

std::string line_of(const sessions::SessionStatus& session) {
  return fmt::format(
      "request {} of connection {}{} (model {}): hit of {} chunks{}, {} lock units on {} objects, "
      "ends in {:.0f} s",
      session.request_id,
      number(session.connection),
      session.is_orphaned ? " (gone)" : "",
      session.model_name,
      session.hit_chunks,
      session.is_answered ? "" : " not asked for yet",
      session.units_owed,
      session.pinned_objects,
      seconds(session.time_left));
}

std::string line_of(const sessions::InstanceStatus& instance) {
  return fmt::format(
      "instance {} of connection {} (model {}), silent for {:.0f} s: {} stores with {} reserved "
      "objects, {} retrieves with {} pins",
      number(instance.id),
      number(instance.connection),
      instance.registration.model_name,
      seconds(instance.silent_for),
      instance.open.stores,
      instance.open.reserved_objects,
      instance.open.retrieves,
      instance.open.pinned_objects);
}

std::string line_of(const sessions::QuarantineStatus& resting) {
  return fmt::format("{} slots rest for instance {} of connection {}, for {:.0f} s at most",
                     resting.slots,
                     number(resting.instance),
                     number(resting.connection),
                     seconds(resting.time_left));
}

template <typename Status>
void add_lines(const std::vector<Status>& all, std::vector<std::string>& lines) {
  for (const Status& status : all) {
    lines.push_back(line_of(status));
  }
}

}  // namespace

std::vector<std::string> render_ledger(const LedgerSources& sources) {
  const cache::CacheStats stats = sources.index.stats();
  std::vector<std::string> lines{
      fmt::format("{} objects, {} of them pinned, {} more reserved; {} sessions, {} instances, {} "
                  "slots at rest, {} bytes in slots of stores that are arriving",
                  stats.resident_objects,
                  stats.pinned_objects,
                  stats.reserved_objects,
                  sources.sessions.count(),
                  sources.instances.count(),
                  sources.quarantine.slot_count(),
                  sources.landings.byte_count())};
  add_lines(sources.sessions.status(kSessionsShownMax), lines);
  add_lines(sources.instances.status(), lines);
  add_lines(sources.quarantine.status(), lines);
  return lines;
}

}  // namespace larder::app
