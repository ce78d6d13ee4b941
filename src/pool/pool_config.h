// pool_config.h - what a Pool is made of. Filled by config/, checked there and by Pool::create.
#pragma once

#include <cstddef>
#include <string>

namespace larder::pool {

struct PoolConfig {
  std::size_t bytes = 0;           // the segment's size, exactly
  std::size_t align_bytes = 4096;  // power of two
  std::string shm_name;            // as given by --shm-name; ignored when private_memory
  bool shm_name_given = false;  // false: make a marked name of our own (lmcache_l1_pool_larder_...)
  bool private_memory = false;  // --shm-name "": no shared memory, copy mode for everybody
  std::size_t initial_bytes = 64U << 20;  // reserved before create() returns
  std::size_t step_bytes = 64U << 20;     // of the background growth
  std::string directory = "/dev/shm";     // where shm_open's names live; tests point it elsewhere
};

}  // namespace larder::pool
