// key_space.h - what the objects of one request have in common: whose they are and what their bytes
// mean.
//
// The layout is part of the name: two engines that call their model the same but differ in dtype or
// shape never see each other's objects.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "tensors/layout.h"

namespace larder::cache {

struct KeySpace {
  std::string model_name;
  std::string cache_salt;
  tensors::Layout layout;
  std::uint32_t object_group = 0;  // models of several kinds of layers: which of them

  bool operator==(const KeySpace&) const = default;
};

// One of the spaces that a hit takes. Spaces of one reader are read together.
struct NeededSpace {
  KeySpace space;
  std::optional<std::uint32_t> window_chunks;  // of a hit only the last so many chunks; not 0
  std::size_t reader = 0;                      // which of the engines that may read needs it
};

struct KeySpaceHash {
  std::size_t operator()(const KeySpace& space) const {
    std::size_t hash = std::hash<std::string>()(space.model_name);
    const auto mix = [&hash](std::size_t value) { hash = (hash ^ value) * 0x9e3779b97f4a7c15ULL; };
    mix(std::hash<std::string>()(space.cache_salt));
    mix(space.object_group);
    mix(static_cast<std::size_t>(space.layout.dtype));
    for (const std::int64_t dimension : space.layout.shape) {
      mix(static_cast<std::size_t>(dimension));
    }
    mix(std::hash<std::string>()(space.layout.pieces));
    return hash;
  }
};

}  // namespace larder::cache
