// key_space.h - what the objects of one request have in common: whose they are and what their bytes
// mean.
//
// The layout is part of the name: two engines that call their model the same but differ in dtype or
// shape never see each other's objects.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "tensors/layout.h"

namespace larder::cache {

struct KeySpace {
  std::string model_name;
  std::string cache_salt;
  tensors::Layout layout;

  bool operator==(const KeySpace&) const = default;
};

struct KeySpaceHash {
  std::size_t operator()(const KeySpace& space) const {
    std::size_t hash = std::hash<std::string>()(space.model_name);
    const auto mix = [&hash](std::size_t value) { hash = (hash ^ value) * 0x9e3779b97f4a7c15ULL; };
    mix(std::hash<std::string>()(space.cache_salt));
    mix(static_cast<std::size_t>(space.layout.dtype));
    for (const std::int64_t dimension : space.layout.shape) {
      mix(static_cast<std::size_t>(dimension));
    }
    return hash;
  }
};

}  // namespace larder::cache
