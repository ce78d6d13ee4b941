#include "geometry/block_lists.h"

#include <algorithm>
#include <string>

#include "base/check.h"

namespace larder::geometry {
namespace {

Result<void> check_list(const KernelGroup& group,
                        std::span<const std::int64_t> list,
                        std::size_t chunks) {
  if (list.size() % group.blocks_per_chunk != 0 || list.size() / group.blocks_per_chunk < chunks) {
    return Error{Code::kInvalid,
                 std::to_string(list.size()) + " block ids for " + std::to_string(chunks) +
                     " chunks of " + std::to_string(group.blocks_per_chunk)};
  }
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    for (const std::int64_t id : ids_of(group, list, chunk)) {
      if (id < 0 || static_cast<std::uint64_t>(id) >= group.blocks) {
        return Error{Code::kInvalid,
                     "block " + std::to_string(id) + " of " + std::to_string(group.blocks)};
      }
    }
  }
  return {};
}

}  // namespace

Result<void> check_block_lists(const CachePlan& plan, const BlockIds& lists, std::size_t chunks) {
  if (lists.size() != plan.kernel_groups.size()) {
    return Error{Code::kInvalid,
                 std::to_string(lists.size()) + " block lists for " +
                     std::to_string(plan.kernel_groups.size()) + " groups"};
  }
  for (std::size_t i = 0; i < lists.size(); ++i) {
    if (Result<void> checked = check_list(plan.kernel_groups[i], lists[i], chunks); !checked) {
      return Error{checked.error().code,
                   "group " + std::to_string(i) + ": " + checked.error().detail};
    }
  }
  return {};
}

std::span<const std::int64_t> ids_of(const KernelGroup& group,
                                     std::span<const std::int64_t> list,
                                     std::size_t chunk) {
  const std::size_t end = (chunk + 1) * group.blocks_per_chunk;
  LARDER_CHECK(end <= list.size());
  return list.subspan(end - group.blocks_per_object, group.blocks_per_object);
}

bool uses_block(const CachePlan& plan,
                const ObjectGroup& object,
                const BlockIds& lists,
                std::size_t chunk,
                std::int64_t id) {
  return std::any_of(
      object.kernel_groups.begin(), object.kernel_groups.end(), [&](std::uint32_t index) {
        const std::span<const std::int64_t> ids =
            ids_of(plan.kernel_groups[index], lists[index], chunk);
        return std::find(ids.begin(), ids.end(), id) != ids.end();
      });
}

std::size_t ids_to_skip(const KernelGroup& group, std::uint64_t skip_tokens) {
  return ids_of_blocks(
      group.blocks_per_chunk, group.blocks_per_object, skip_tokens / group.tokens_per_block);
}

std::size_t ids_of_blocks(std::size_t blocks_per_chunk,
                          std::size_t blocks_per_object,
                          std::size_t blocks) {
  const std::size_t dropped = blocks_per_chunk - blocks_per_object;
  const std::size_t in_last = blocks % blocks_per_chunk;
  return blocks / blocks_per_chunk * blocks_per_object +
         (in_last > dropped ? in_last - dropped : 0);
}

}  // namespace larder::geometry
