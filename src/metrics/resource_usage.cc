#include "metrics/resource_usage.h"

#include <sys/resource.h>
#include <unistd.h>

#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <system_error>
#include <vector>

#include "metrics/text_page.h"

namespace larder::metrics {
namespace {

std::string read_text(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::optional<double> parse_whole(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return static_cast<double>(value);
}

std::vector<std::string_view> split_words(std::string_view text) {
  constexpr std::string_view kBlank = " \n";
  std::vector<std::string_view> words;
  std::size_t at = text.find_first_not_of(kBlank);
  while (at != std::string_view::npos) {
    const std::size_t end = text.find_first_of(kBlank, at);
    words.push_back(text.substr(at, end - at));
    at = text.find_first_not_of(kBlank, end);
  }
  return words;
}

double ticks_per_second() {
  return static_cast<double>(sysconf(_SC_CLK_TCK));
}

std::optional<double> open_files() {
  std::error_code error;
  std::filesystem::directory_iterator entry("/proc/self/fd", error);
  double count = 0;
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    ++count;
  }
  if (error) {
    return std::nullopt;
  }
  return count - 1;  // without the one that reads the directory
}

std::optional<double> open_files_max() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return std::nullopt;
  }
  return limit.rlim_cur == RLIM_INFINITY ? std::numeric_limits<double>::infinity()
                                         : static_cast<double>(limit.rlim_cur);
}

void append_family(std::string& page,
                   const FamilyName& family,
                   std::string_view type,
                   std::optional<double> value) {
  if (value) {
    append_header(page, family, type);
    append_sample(page, family.name, {}, *value);
  }
}

}  // namespace

std::optional<ProcStat> parse_proc_stat(std::string_view line) {
  const std::size_t name_end = line.rfind(')');
  if (name_end == std::string_view::npos) {
    return std::nullopt;
  }
  // The word after the name is field 3 of proc(5).
  const std::vector<std::string_view> words = split_words(line.substr(name_end + 1));
  constexpr std::size_t kFirstField = 3;
  constexpr std::size_t kUserTicks = 14 - kFirstField;
  constexpr std::size_t kSystemTicks = 15 - kFirstField;
  constexpr std::size_t kStartTicks = 22 - kFirstField;
  constexpr std::size_t kVirtualBytes = 23 - kFirstField;
  constexpr std::size_t kResidentPages = 24 - kFirstField;
  if (words.size() <= kResidentPages) {
    return std::nullopt;
  }
  const auto user_ticks = parse_whole(words[kUserTicks]);
  const auto system_ticks = parse_whole(words[kSystemTicks]);
  const auto start_ticks = parse_whole(words[kStartTicks]);
  const auto virtual_bytes = parse_whole(words[kVirtualBytes]);
  const auto resident_pages = parse_whole(words[kResidentPages]);
  if (!user_ticks || !system_ticks || !start_ticks || !virtual_bytes || !resident_pages) {
    return std::nullopt;
  }
  return ProcStat{*user_ticks + *system_ticks, *start_ticks, *virtual_bytes, *resident_pages};
}

std::optional<double> parse_boot_seconds(std::string_view text) {
  const std::vector<std::string_view> words = split_words(text);
  for (std::size_t i = 0; i + 1 < words.size(); ++i) {
    if (words[i] == "btime") {
      return parse_whole(words[i + 1]);
    }
  }
  return std::nullopt;
}

std::optional<double> start_seconds() {
  const auto stat = parse_proc_stat(read_text("/proc/self/stat"));
  const auto boot_seconds = parse_boot_seconds(read_text("/proc/stat"));
  if (!stat || !boot_seconds) {
    return std::nullopt;
  }
  return *boot_seconds + stat->start_ticks / ticks_per_second();
}

void append_resource_usage(std::string& page, std::optional<double> start_seconds) {
  std::optional<double> virtual_bytes;
  std::optional<double> resident_bytes;
  std::optional<double> cpu_seconds;
  if (const auto stat = parse_proc_stat(read_text("/proc/self/stat"))) {
    virtual_bytes = stat->virtual_bytes;
    resident_bytes = stat->resident_pages * static_cast<double>(sysconf(_SC_PAGESIZE));
    cpu_seconds = stat->cpu_ticks / ticks_per_second();
  }
  append_family(page,
                {"process_virtual_memory_bytes", "Virtual memory size in bytes."},
                "gauge",
                virtual_bytes);
  append_family(page,
                {"process_resident_memory_bytes", "Resident memory size in bytes."},
                "gauge",
                resident_bytes);
  append_family(page,
                {"process_start_time_seconds", "Start time, in seconds since 1970."},
                "gauge",
                start_seconds);
  append_family(page,
                {"process_cpu_seconds_total", "User and system CPU time in seconds."},
                "counter",
                cpu_seconds);
  append_family(
      page, {"process_open_fds", "Number of open file descriptors."}, "gauge", open_files());
  append_family(
      page, {"process_max_fds", "Limit of open file descriptors."}, "gauge", open_files_max());
}

}  // namespace larder::metrics
