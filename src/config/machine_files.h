// machine_files.h - the memory limit of the cgroup this process is in, from /proc and /sys. Private
// to the room; apart from machine.cc so that tests give it a tree of their own.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace larder::config {

// Files below the root that may hold a limit, from the text of /proc/self/cgroup: of the process's
// own group and of every group above it, versions 1 and 2. A container often sees only the last,
// its own group mounted as the top; so files that are absent mean nothing.
std::vector<std::filesystem::path> memory_limit_files(std::string_view self_cgroup);

// nullopt: "max", version 1's huge number for no limit, or not a number.
std::optional<std::size_t> parse_memory_limit(std::string_view text);

// The least limit found below `root` ("/" but in tests).
std::optional<std::size_t> cgroup_memory_limit(const std::filesystem::path& root);

}  // namespace larder::config
