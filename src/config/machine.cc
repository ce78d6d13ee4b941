#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>
#include <system_error>

#include "config/config.h"
#include "config/machine_files.h"

namespace larder::config {
namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& file) {
  std::ifstream stream(file);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

bool lists_memory(std::string_view controllers) {
  while (!controllers.empty()) {
    const std::string_view one = controllers.substr(0, controllers.find(','));
    if (one == "memory") {
      return true;
    }
    controllers.remove_prefix(std::min(one.size() + 1, controllers.size()));
  }
  return false;
}

// `group` and every group above it.
void add_files(std::string_view group,
               const fs::path& mount,
               const char* file,
               std::vector<fs::path>& files) {
  // Seen from a namespace of its own, a group outside it begins with "/..".
  fs::path below;
  for (const fs::path& part : fs::path(group).relative_path()) {
    if (part != ".." && part != "." && !part.empty()) {
      below /= part;
    }
  }
  for (; !below.empty(); below = below.parent_path()) {
    files.push_back(mount / below / file);
  }
  files.push_back(mount / file);
}

}  // namespace

std::vector<fs::path> memory_limit_files(std::string_view self_cgroup) {
  std::vector<fs::path> files;
  while (!self_cgroup.empty()) {
    const std::string_view line = self_cgroup.substr(0, self_cgroup.find('\n'));
    self_cgroup.remove_prefix(std::min(line.size() + 1, self_cgroup.size()));
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) {
      continue;
    }
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const std::string_view group = line.substr(second + 1);
    if (controllers.empty()) {
      add_files(group, "sys/fs/cgroup", "memory.max", files);
    } else if (lists_memory(controllers)) {
      add_files(group, "sys/fs/cgroup/memory", "memory.limit_in_bytes", files);
    }
  }
  return files;
}

std::optional<std::size_t> parse_memory_limit(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) {
    text.remove_suffix(1);
  }
  std::size_t bytes = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), bytes);
  constexpr std::size_t kNoLimit = std::size_t{1} << 60;
  if (error != std::errc() || stop != text.data() + text.size() || bytes >= kNoLimit) {
    return std::nullopt;
  }
  return bytes;
}

std::optional<std::size_t> cgroup_memory_limit(const fs::path& root) {
  std::optional<std::size_t> least;
  for (const fs::path& file : memory_limit_files(text_of(root / "proc/self/cgroup"))) {
    const std::optional<std::size_t> limit = parse_memory_limit(text_of(root / file));
    if (limit && (!least || *limit < *least)) {
      least = limit;
    }
  }
  return least;
}

Machine Machine::read() {
  Machine machine{.memory_bytes = 0, .shm_free_bytes = 0};
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page_bytes = sysconf(_SC_PAGESIZE);
  if (pages > 0 && page_bytes > 0) {
    machine.memory_bytes = static_cast<std::size_t>(pages) * static_cast<std::size_t>(page_bytes);
  }
  if (const auto limit = cgroup_memory_limit("/")) {
    machine.memory_bytes = std::min(machine.memory_bytes, *limit);
  }
  struct statvfs shm = {};
  if (statvfs("/dev/shm", &shm) == 0) {
    machine.shm_free_bytes = static_cast<std::size_t>(shm.f_bavail) * shm.f_frsize;
  }
  return machine;
}

}  // namespace larder::config
