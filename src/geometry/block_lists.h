// block_lists.h - the block ids of one STORE or RETRIEVE: are they what the plan needs, and which
// of them belong to an object.
//
// A request of n chunks has for each kernel group n * blocks_per_chunk ids, in order; more are
// allowed and ignored. An object takes the last blocks_per_object ids of its chunk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "geometry/engine_cache.h"

namespace larder::geometry {

using BlockIds = std::vector<std::vector<std::int64_t>>;  // one list a kernel group

// kInvalid: another number of lists than kernel groups, a list that is short, not in whole chunks,
// or has an id that the tensors do not have (among those that the objects of `chunks` chunks take).
Result<void> check_block_lists(const CachePlan& plan, const BlockIds& lists, std::size_t chunks);

// The ids behind one object's part; `chunk` counts from the request's first. REQUIRES: checked
// lists.
std::span<const std::int64_t> ids_of(const KernelGroup& group,
                                     std::span<const std::int64_t> list,
                                     std::size_t chunk);

// Whether an object of this chunk would hold block `id` of any of its kernel groups. vLLM says
// block 0 where it keeps no KV, before a sliding window or between recurrent states: stored, it
// would pass for the prompt's. REQUIRES: checked lists.
bool uses_block(const CachePlan& plan,
                const ObjectGroup& object,
                const BlockIds& lists,
                std::size_t chunk,
                std::int64_t id);

// How many of the ids that a request's objects take are not written because their tokens are to be
// skipped: `skip_tokens` counted from the request's start, rounded down to whole blocks. Counted
// over the objects of the request, in order: with 4 ids an object, 6 means the first object and two
// blocks of the second.
std::size_t ids_to_skip(const KernelGroup& group, std::uint64_t skip_tokens);

// The same from blocks to ids, for windows shorter than a chunk: an object takes only the last
// blocks of its chunk, so skipping those before them skips nothing.
std::size_t ids_of_blocks(std::size_t blocks_per_chunk,
                          std::size_t blocks_per_object,
                          std::size_t blocks);

}  // namespace larder::geometry
