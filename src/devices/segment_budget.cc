#include "devices/segment_budget.h"

#include <fmt/format.h>

#include <fstream>

namespace larder::devices {

Result<SegmentBudget::Lease> SegmentBudget::take(std::size_t segments) {
  const std::size_t before = mapped_.fetch_add(segments);
  Lease lease(*this, segments);
  if (before + segments > segments_max_) {
    return Error{Code::kTooLarge,
                 fmt::format("{} segments, and {} of at most {} are mapped (a quarter of "
                             "vm.max_map_count)",
                             segments,
                             before,
                             segments_max_)};
  }
  return lease;
}

std::size_t segments_max_of_system() {
  constexpr std::size_t kMappingsUsual = 65530;
  constexpr std::size_t kShare = 4;
  std::size_t mappings = 0;
  std::ifstream file("/proc/sys/vm/max_map_count");
  return (file >> mappings ? mappings : kMappingsUsual) / kShare;
}

}  // namespace larder::devices
