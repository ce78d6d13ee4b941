#include "config/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <limits>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "config/limits.h"
#include "config/numbers.h"

namespace larder::config {
namespace {

constexpr std::size_t kMebibyte = 1U << 20;
constexpr std::size_t kGibibyte = 1U << 30;
constexpr std::size_t kPoolBytesMin = 4 * kMebibyte;
constexpr double kPoolGibibytesMax = 1 << 20;            // a pebibyte: beyond any machine
constexpr std::size_t kPoolDefaultStep = 2 * kMebibyte;  // a huge page, should the system use them
constexpr std::int64_t kChunkTokensMax = 65536;
constexpr std::int64_t kAlignBytesMin = 64;
constexpr std::int64_t kAlignBytesMax = 1 << 30;
constexpr std::int64_t kWorkersMax = 1024;
constexpr std::int64_t kPortMax = 65535;
constexpr std::int64_t kConnectionsMax = 1'000'000;
constexpr std::int64_t kFramesMin = 12;  // the longest request of any release has eleven
constexpr std::int64_t kFramesMax = 65536;
constexpr std::int64_t kRequestsMax = 1'000'000'000;
constexpr std::int64_t kMebibytesMax = std::int64_t{1} << 30;
constexpr double kTimeoutMin = 0.001;
constexpr double kTimeoutMax = 86400;
constexpr std::int64_t kSecondsMax = 1'000'000'000;  // 30 years, and still in range as nanoseconds

class Settler {
 public:
  Settler(const Arguments& arguments, const Machine& machine, Environment environment)
      : arguments_(arguments), machine_(machine), environment_(environment) {}

  Settings settle() {
    refuse_and_notice();
    settle_ports();
    settle_memory();
    settle_port_limits();
    settle_eviction();
    settle_liveness();
    settle_workers();
    settle_names();
    settle_log_level();
    warn_of_environment();
    return std::move(settings_);
  }

 private:
  const Given* given(std::string_view name) const {
    const auto found = arguments_.find(name);
    return found == arguments_.end() ? nullptr : &found->second;
  }

  template <typename... Args>
  void error(fmt::format_string<Args...> format, Args&&... args) {
    settings_.errors.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  template <typename... Args>
  void notice(fmt::format_string<Args...> format, Args&&... args) {
    settings_.notices.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  // Leaves `target` alone when the flag was not given.
  template <typename Target>
  void take_integer(std::string_view name, std::int64_t min, std::int64_t max, Target& target) {
    const Given* flag = given(name);
    if (flag == nullptr) {
      return;
    }
    if (flag->integer < min || flag->integer > max) {
      error("--{} must be from {} to {}, not {}", name, min, max, flag->words.front());
      return;
    }
    target = static_cast<std::uint32_t>(flag->integer);
  }

  void take_port(std::string_view name, auto& target) {
    std::uint32_t port = 0;
    take_integer(name, 0, kPortMax, port);
    if (given(name) != nullptr) {
      target = static_cast<std::uint16_t>(port);
    }
  }

  void take_text(std::string_view name, auto& target) {
    if (const Given* flag = given(name)) {
      target = flag->words.front();
    }
  }

  // What the reference does without the flag asks for nothing, so manifests may spell it out.
  static bool is_default(const Given& flag) {
    const std::string_view default_value = flag.flag->default_value;
    switch (flag.flag->kind) {
      case Kind::kText:
        return flag.words.front() == default_value;
      case Kind::kInteger:
        return parse_default(default_value) == static_cast<double>(flag.integer);
      case Kind::kNumber:
        return parse_default(default_value) == flag.number;
      case Kind::kSwitch:
      case Kind::kRepeated:
        return false;
      case Kind::kPair:
        return flag.on == (default_value == "true");
      case Kind::kWords:
        return std::all_of(
            flag.words.begin(), flag.words.end(), [](const auto& word) { return word.empty(); });
    }
    LARDER_UNREACHABLE();
  }

  // NaN, equal to nothing, when there is no default.
  static double parse_default(std::string_view text) {
    return parse_number(text).value_or(std::numeric_limits<double>::quiet_NaN());
  }

  void refuse_and_notice() {
    for (const auto& [name, flag] : arguments_) {
      if (flag.flag->status == Status::kSupported || is_default(flag)) {
        continue;
      }
      const std::string spelled = fmt::format("--{}{}", flag.on ? "" : "no-", name);
      if (flag.flag->status == Status::kRefused) {
        error("{} is not supported: {}", spelled, flag.flag->text);
      } else {
        notice("{} has no effect: {}", spelled, flag.flag->text);
      }
    }
  }

  void settle_ports() {
    Config& config = settings_.config;
    take_text("host", config.host);
    take_text("http-host", config.http_host);
    for (const auto& [name, host] :
         {std::pair("host", &config.host), std::pair("http-host", &config.http_host)}) {
      if (host->empty()) {
        error("--{} is empty; use localhost, or 0.0.0.0 for all addresses", name);
      }
    }
    take_port("port", config.port);
    take_port("http-port", config.http_port);
    take_port("prometheus-port", config.prometheus_port);
    take_integer("chunk-size", 1, kChunkTokensMax, config.chunk_tokens);
  }

  void settle_memory() {
    Config& config = settings_.config;
    take_text("shm-name", config.shm_name);
    if (const Given* verify = given("l1-verify")) {
      const std::string& word = verify->words.front();
      config.l1_verify = word == "always"   ? Verify::kAlways
                         : word == "sample" ? Verify::kSample
                                            : Verify::kOff;
    }
    if (const Given* align = given("l1-align-bytes")) {
      const std::int64_t bytes = align->integer;
      if (bytes < kAlignBytesMin || bytes > kAlignBytesMax ||
          !std::has_single_bit(static_cast<std::uint64_t>(bytes))) {
        error("--l1-align-bytes must be a power of two from {} to {}, not {}",
              kAlignBytesMin,
              kAlignBytesMax,
              align->words.front());
        return;
      }
      config.pool_align_bytes = static_cast<std::size_t>(bytes);
    }
    if (const Given* size = given("l1-size-gb")) {
      take_pool_size(*size);
    } else {
      choose_pool_size();
    }
    if (config.pool_bytes != 0 && config.pool_bytes < config.pool_align_bytes) {
      error("the pool ({}) is smaller than --l1-align-bytes ({}); raise --l1-size-gb",
            readable_size(config.pool_bytes),
            config.pool_align_bytes);
    }
  }

  void take_pool_size(const Given& size) {
    const double bytes = size.number * static_cast<double>(kGibibyte);
    if (!(bytes >= static_cast<double>(kPoolBytesMin)) || size.number > kPoolGibibytesMax) {
      error("--l1-size-gb must be from 0.00390625 (4 MiB) to {}, not {}",
            kPoolGibibytesMax,
            size.words.front());
      return;
    }
    settings_.config.pool_bytes = static_cast<std::size_t>(bytes);
    settings_.config.pool_bytes_given = true;
  }

  void choose_pool_size() {
    const bool shared = settings_.config.shm_name != "";
    const std::size_t quarter = machine_.memory_bytes / 4;
    const std::size_t half = machine_.shm_free_bytes / 2;
    const bool shm_limits = shared && half < quarter;
    const std::size_t bytes = (shm_limits ? half : quarter) / kPoolDefaultStep * kPoolDefaultStep;
    if (bytes < kPoolBytesMin) {
      error(
          "there is too little memory to choose a pool size ({} memory, {} free in /dev/shm); set "
          "it with --l1-size-gb, and give a container more with --shm-size",
          readable_size(machine_.memory_bytes),
          readable_size(machine_.shm_free_bytes));
      return;
    }
    settings_.config.pool_bytes = bytes;
    if (shm_limits) {
      notice(
          "pool size {}: half of the {} free in /dev/shm; set it with --l1-size-gb (a container "
          "gets a larger /dev/shm with --shm-size)",
          readable_size(bytes),
          readable_size(machine_.shm_free_bytes));
    } else {
      notice("pool size {}: a quarter of {} memory; set it with --l1-size-gb",
             readable_size(bytes),
             readable_size(machine_.memory_bytes));
    }
  }

  void settle_port_limits() {
    Config& config = settings_.config;
    take_integer("max-connections", 1, kConnectionsMax, config.connections_max);
    take_integer("max-message-frames", kFramesMin, kFramesMax, config.message_frames_max);
    take_integer("max-requests-per-peer", 1, kRequestsMax, config.requests_per_peer_max);
    // What comes with the pickle's headers around a payload as large as the pool.
    const std::size_t pool_and_slack = config.pool_bytes + config.pool_bytes / 8;
    take_mebibytes(
        "max-message-mb", std::max(kMessageBytesMin, pool_and_slack), config.message_bytes_max);
    const std::size_t message = config.message_bytes_max;
    take_mebibytes(
        "max-buffered-mb", std::max(kBufferedBytesMin, message), config.buffered_bytes_max);
    take_mebibytes("max-buffered-mb-per-peer",
                   std::max(kBufferedBytesPerPeerMin, message),
                   config.buffered_bytes_per_peer_max);
    take_mebibytes("max-unread-mb-per-peer",
                   std::max(kUnreadBytesPerPeerMin, message),
                   config.unread_bytes_per_peer_max);
    if (config.buffered_bytes_max < message) {
      error("--max-buffered-mb ({}) must be at least --max-message-mb ({})",
            readable_size(config.buffered_bytes_max),
            readable_size(message));
    }
    take_timeout("handshake-timeout-seconds", config.handshake_timeout_seconds);
    take_timeout("message-timeout-seconds", config.message_timeout_seconds);
    take_timeout("unread-timeout-seconds", config.unread_timeout_seconds);
  }

  void take_mebibytes(std::string_view name, std::size_t own_choice, std::size_t& target) {
    std::uint32_t mebibytes = 0;
    take_integer(name, 1, kMebibytesMax, mebibytes);
    target = given(name) == nullptr ? own_choice : mebibytes * kMebibyte;
  }

  void take_timeout(std::string_view name, double& target) {
    const Given* timeout = given(name);
    if (timeout == nullptr) {
      return;
    }
    if (!(timeout->number >= kTimeoutMin && timeout->number <= kTimeoutMax)) {
      error("--{} must be from {} to {}, not {}",
            name,
            kTimeoutMin,
            kTimeoutMax,
            timeout->words.front());
      return;
    }
    target = timeout->number;
  }

  void settle_eviction() {
    Config& config = settings_.config;
    take_text("eviction-policy", config.eviction_policy);
    settle_quotas();
    if (const Given* admission = given("admission")) {
      config.selective_admission = admission->words.front() == "selective";
      if (config.selective_admission && config.eviction_policy != "Learned") {
        error(
            "--admission selective needs --eviction-policy Learned: {} cannot tell what a new "
            "chunk is worth",
            config.eviction_policy);
      }
    }
    if (const Given* watermark = given("eviction-trigger-watermark")) {
      if (!(watermark->number > 0 && watermark->number <= 1)) {
        error("--eviction-trigger-watermark must be above 0 and at most 1, not {}",
              watermark->words.front());
      }
      config.eviction_watermark = watermark->number;
    }
    if (const Given* ratio = given("eviction-ratio")) {
      if (!(ratio->number >= 0 && ratio->number <= 1)) {
        error("--eviction-ratio must be from 0 to 1, not {}", ratio->words.front());
      }
      config.eviction_ratio = ratio->number;
    }
    take_integer("l1-write-ttl-seconds", 1, kSecondsMax, config.write_ttl_seconds);
    take_integer("l1-read-ttl-seconds", 1, kSecondsMax, config.read_ttl_seconds);
  }

  void settle_quotas() {
    const Given* const quotas = given("salt-quota-gb");
    if (quotas == nullptr) {
      return;
    }
    for (const std::string& word : quotas->words) {
      const std::size_t equals = word.rfind('=');  // a salt may hold one too
      const std::optional<double> gibibytes =
          equals == std::string::npos ? std::nullopt : parse_number(word.substr(equals + 1));
      if (!gibibytes.has_value() || !(*gibibytes >= 0 && *gibibytes <= kPoolGibibytesMax)) {
        error("--salt-quota-gb wants SALT=GIB, such as tenant-a=2.5 or _default=1, not '{}'", word);
        continue;
      }
      const std::string salt = word.substr(0, equals);
      settings_.config.salt_quotas[salt == "_default" ? "" : salt] =
          static_cast<std::uint64_t>(*gibibytes * static_cast<double>(kGibibyte));
    }
    if (settings_.config.eviction_policy != "IsolatedLRU") {
      notice("--salt-quota-gb has no effect without --eviction-policy IsolatedLRU");
    }
  }

  void settle_liveness() {
    constexpr auto kMax = static_cast<double>(kSecondsMax);
    Config& config = settings_.config;
    if (const Given* timeout = given("worker-reap-timeout-seconds")) {
      config.reap_timeout_seconds = timeout->number;
      if (timeout->number != 0 && !(timeout->number >= 1 && timeout->number <= kMax)) {
        error("--worker-reap-timeout-seconds must be 0 (never) or from 1 to {}, not {}",
              kSecondsMax,
              timeout->words.front());
        return;
      }
    }
    if (const Given* grace = given("worker-registration-grace-seconds")) {
      config.registration_grace_seconds = grace->number;
      if (!(grace->number >= 0 && grace->number <= kMax)) {
        error("--worker-registration-grace-seconds must be from 0 to {}, not {}",
              kSecondsMax,
              grace->words.front());
        return;
      }
    }
    if (config.registration_grace_seconds < config.reap_timeout_seconds) {
      error(
          "--worker-registration-grace-seconds ({}) must be at least "
          "--worker-reap-timeout-seconds ({})",
          config.registration_grace_seconds,
          config.reap_timeout_seconds);
    }
  }

  void settle_workers() {
    Config& config = settings_.config;
    take_integer("max-workers", 1, kWorkersMax, config.transfer_workers);
    config.lookup_workers = config.transfer_workers;
    take_integer("max-gpu-workers", 1, kWorkersMax, config.transfer_workers);
    take_integer("max-cpu-workers", 1, kWorkersMax, config.lookup_workers);
  }

  void settle_names() {
    Config& config = settings_.config;
    take_text("instance-id", config.instance_id);
    take_text("hash-algorithm", config.hash_algorithm);
    if (config.hash_algorithm != "blake3") {
      error(
          "--hash-algorithm '{}' is not supported: its hashes depend on the reference's Python "
          "process; use blake3, the default (clients never see the hashes)",
          config.hash_algorithm);
    }
    if (const Given* mode = given("supported-transfer-mode")) {
      const std::string& name = mode->words.front();
      config.transfer_mode = name == "engine_driven"    ? TransferMode::kEngineDriven
                             : name == "lmcache_driven" ? TransferMode::kLmcacheDriven
                                                        : TransferMode::kAuto;
    }
    config.cuda_driver_path = environment_value("LARDER_CUDA_DRIVER");
    if (const Given* separate = given("separate-object-groups")) {
      config.separate_object_groups = separate->on;
    }
    if (const Given* release = given("default-release")) {
      config.default_release = release->words.front();
    }
  }

  void settle_log_level() {
    const std::string_view variable = environment_value("LMCACHE_LOG_LEVEL");
    if (const Given* level = given("log-level")) {
      settings_.config.log_level = log::level_from_name(level->words.front());
    } else if (!variable.empty()) {
      settings_.config.log_level = log::level_from_name(variable);
      std::string lower(variable);
      std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) {
        return static_cast<char>(std::tolower(c));
      });
      if (settings_.config.log_level == log::Level::kInfo && lower != "info") {
        notice(
            "LMCACHE_LOG_LEVEL is not one of debug, info, warning, error, critical; logging at "
            "info");
      }
    }
  }

  void warn_of_environment() {
    // A flag wins over its variable, and the flag has been judged above.
    if (!environment_value("LMCACHE_COORDINATOR_URL").empty() &&
        given("coordinator-url") == nullptr) {
      notice("LMCACHE_COORDINATOR_URL is ignored: larder does not talk to a coordinator yet");
    }
  }

  std::string_view environment_value(const char* name) const {
    const char* value = environment_(name);
    return value == nullptr ? std::string_view() : std::string_view(value);
  }

  const Arguments& arguments_;
  const Machine& machine_;
  const Environment environment_;
  Settings settings_;
};

}  // namespace

Settings settle(const Arguments& arguments, const Machine& machine, Environment environment) {
  return Settler(arguments, machine, environment).settle();
}

std::string readable_size(std::size_t bytes) {
  const auto mebibytes = static_cast<double>(bytes) / static_cast<double>(kMebibyte);
  constexpr double kMebibytesPerGibibyte = 1024;
  if (mebibytes < kMebibytesPerGibibyte) {
    return fmt::format("{:.0f} MiB", mebibytes);
  }
  return fmt::format("{:.1f} GiB", mebibytes / kMebibytesPerGibibyte);
}

}  // namespace larder::config
