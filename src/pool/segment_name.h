// segment_name.h - how the pool's segment is called. Pure functions; any thread.
//
// Clients tell a pool by kSegmentPrefix. A name that we make ourselves goes on with a mark of our
// own, because a Python server's segment carries the prefix too and only marked segments may be
// swept. The pid in it is for people: it says nothing across pid namespaces, and nothing here
// relies on it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/result.h"

namespace larder::pool {

inline constexpr std::string_view kSegmentPrefix = "lmcache_l1_pool_";
inline constexpr std::string_view kMarkedPrefix = "lmcache_l1_pool_larder_";

// shm_open of glibc refuses longer names (NAME_MAX counts the slash and the end mark there), so a
// client could not map such a segment.
inline constexpr std::size_t kSegmentNameBytesMax = 253;

// The file name for what the operator gave: without leading '/', with the prefix. kInvalid with a
// message for the operator when it cannot be one.
Result<std::string> segment_name_from(std::string_view given);

// A marked name that nobody has used: lmcache_l1_pool_larder_<pid>_<random hex>.
std::string fresh_segment_name();

}  // namespace larder::pool
