// config.h - everything an operator can set, parsed once at start and never changed after.
//
// The flags are those of `lmcache server` (0.5.2, and 0.5.6's additions) with the same names, types
// and defaults, plus a few of ours; the table is in config/flags.cc. Every field has a safe
// default, so `larder serve` alone works. Pure data; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"

namespace larder::config {

enum class TransferMode { kAuto, kEngineDriven, kLmcacheDriven };

enum class Verify { kOff, kSample, kAlways };

struct Config {
  // Request port.
  std::string host = "localhost";
  std::uint16_t port = 5555;  // 0: any free one, printed at start

  // Limits of the request port. Those in bytes are never 0 after parsing.
  std::uint32_t connections_max = 8192;
  std::uint32_t message_frames_max = 256;
  std::uint32_t requests_per_peer_max = 16384;
  std::size_t message_bytes_max = 0;
  std::size_t buffered_bytes_max = 0;
  std::size_t buffered_bytes_per_peer_max = 0;
  std::size_t unread_bytes_per_peer_max = 0;
  double handshake_timeout_seconds = 10.0;
  double message_timeout_seconds = 300.0;
  double unread_timeout_seconds = 300.0;

  std::uint32_t chunk_tokens = 256;
  TransferMode transfer_mode = TransferMode::kAuto;
  std::string cuda_driver_path;          // LARDER_CUDA_DRIVER; "" for the system's
  std::string default_release = "auto";  // or a version; the rooms above know which exist

  // Memory.
  std::size_t pool_bytes =
      0;  // never 0 after parsing: from --l1-size-gb or from the machine's memory
  bool pool_bytes_given = false;
  bool separate_object_groups = true;  // a hybrid model's chunk is an object for each window size
  std::size_t pool_align_bytes = 4096;
  std::size_t pool_initial_bytes = 64U << 20;
  std::optional<std::string>
      shm_name;  // nullopt: a name of our own; "": private memory, copy mode only
  Verify l1_verify = Verify::kOff;

  // Eviction and lifetimes.
  std::string eviction_policy = "Learned";
  bool selective_admission = false;
  std::map<std::string, std::uint64_t> salt_quotas;  // bytes by cache salt; "" is the empty salt
  std::optional<double> eviction_watermark;          // set only when the flag was given
  double eviction_ratio = 0.2;
  std::uint32_t write_ttl_seconds = 600;
  std::uint32_t read_ttl_seconds = 300;
  double reap_timeout_seconds = 120.0;  // 0: never
  double registration_grace_seconds = 3600.0;

  // Threads; nullopt: our own choice.
  std::optional<std::uint32_t> transfer_workers;  // --max-gpu-workers, else --max-workers
  std::optional<std::uint32_t> lookup_workers;    // --max-cpu-workers, else --max-workers

  // Admin HTTP.
  std::string http_host = "127.0.0.1";
  std::uint16_t http_port = 8080;  // 0: any free one
  std::optional<std::uint16_t> prometheus_port;

  std::string hash_algorithm = "blake3";
  log::Level log_level = log::Level::kInfo;
  std::string instance_id;  // --instance-id; empty: none given
};

// What main() does with the command line.
struct Outcome {
  enum class Action { kServe, kExit } action = Action::kExit;
  Config config;      // for kServe
  int exit_code = 0;  // for kExit: 0 help or version, 2 usage, 1 validation
  std::string text;   // for kExit: what to print; to stdout when exit_code is 0, else to stderr
  std::vector<std::string> notices;  // for kServe: lines worth logging (a default that was
                                     // computed, an environment variable ignored)
};

// What the machine has; separate so that tests give their own.
struct Machine {
  std::size_t memory_bytes;    // of the machine or of the cgroup, whichever is less
  std::size_t shm_free_bytes;  // of /dev/shm
  static Machine read();
};

using Environment = const char* (*)(const char* name);  // std::getenv in main(), a table in tests

// arguments: argv without the program's name.
Outcome parse_command_line(const std::vector<std::string>& arguments,
                           const Machine& machine,
                           Environment environment);

}  // namespace larder::config
