// resource_usage.h - what the operating system says about this server: memory, CPU time, open
// files.
//
// Private to this room. Reads /proc/self at each call; a value that cannot be read is left out. Any
// thread may call.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace larder::metrics {

// The numbers of one /proc/PID/stat line that are shown.
struct ProcStat {
  double cpu_ticks = 0;
  double start_ticks = 0;  // since boot
  double virtual_bytes = 0;
  double resident_pages = 0;
};

// Empty when the line is not of that form. The program's name in it may hold spaces and brackets.
std::optional<ProcStat> parse_proc_stat(std::string_view line);

// The moment of boot, in seconds since 1970, from the text of /proc/stat.
std::optional<double> parse_boot_seconds(std::string_view text);

// Seconds since 1970. Ask once: the kernel recomputes the moment of boot whenever its clock is
// corrected, and a start time that moves looks like a restart.
std::optional<double> start_seconds();

// The process_* families, as Prometheus clients name them.
void append_resource_usage(std::string& page, std::optional<double> start_seconds);

}  // namespace larder::metrics
