// checksum.h - XXH3-64 of an object's bytes: tells that they changed since they were stored.
//
// Against faulty memory and stray writes, not against somebody who means it. Costs what reading the
// bytes from memory costs. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace larder::cache {

std::uint64_t checksum_of(std::span<const std::byte> bytes);

}  // namespace larder::cache
