#include <algorithm>

#include "devices/device.h"

namespace larder::devices {

void append_object_runs(const geometry::CachePlan& plan,
                        std::span<const std::uint64_t> bases,
                        const CopyJob& job,
                        const ObjectCopy& object,
                        std::vector<geometry::CopyRun>& runs) {
  for (const std::uint32_t index : plan.object_groups[object.object_group].kernel_groups) {
    const geometry::KernelGroup& group = plan.kernel_groups[index];
    const std::span<const std::int64_t> ids =
        geometry::ids_of(group, job.block_ids[index], object.chunk);
    std::size_t skipped = 0;
    if (!job.skipped_ids.empty()) {
      const std::size_t before = object.chunk * group.blocks_per_object;
      skipped = std::clamp(job.skipped_ids[index], before, before + ids.size()) - before;
    }
    geometry::append_runs(
        group, bases, {ids, skipped, reinterpret_cast<std::uint64_t>(object.bytes.data())}, runs);
  }
}

}  // namespace larder::devices
