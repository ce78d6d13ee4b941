// detection.h - which format the tensors of a registration are in. Private to this room.
//
// Engines say neither format nor sizes: both follow from the engine's type, its hints and the
// tensors' shapes, by the rules of the release the client speaks. Where these rules are ambiguous
// (a K/V axis and two blocks look alike), they are so for the clients' own server too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/result.h"
#include "geometry/engine_cache.h"
#include "geometry/kv_format.h"

namespace larder::geometry {

inline constexpr std::size_t kLayersMax = 4096;
inline constexpr std::size_t kTensorsMax = 2 * kLayersMax;  // K and V lists

// The sizes of one layer's tensors; each is at least 1 and all of them multiply to 62 bits.
struct Layer {
  KvFormat format{};
  tensors::Dtype dtype{};
  std::uint64_t blocks = 0;
  std::uint32_t block_slots = 0;
  std::uint32_t heads = 0;
  std::uint32_t head_size = 0;
  std::uint64_t block_step = 0;        // elements; 0: the format has no say in it
  std::vector<std::uint32_t> tensors;  // one, or K and V
};

// One entry a layer; empty where it is in none of the engine's groups, as nothing is asked of such
// tensors. Errors as plan_of() says.
Result<std::vector<std::optional<Layer>>> detect_layers(const EngineDescription& engine);

}  // namespace larder::geometry
