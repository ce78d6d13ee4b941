// Goal: `larder serve` understands the command lines that the reference's server understands, and
// says clearly what is wrong with the others.
// Method: whole command lines in, Config or exit code and text out; the lists of the reference's
// flags are data here, apart from the table under test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "config/flag_text.h"
#include "config/flags.h"
#include "config/version.h"

namespace larder::config {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

constexpr std::size_t kGibibyte = std::size_t{1} << 30;
constexpr Machine kMachine{.memory_bytes = 16 * kGibibyte, .shm_free_bytes = 16 * kGibibyte};

const char* nothing(const char*) {
  return nullptr;
}

Outcome serve(std::vector<std::string> words,
              Environment environment = nothing,
              const Machine& machine = kMachine) {
  words.insert(words.begin(), "serve");
  return parse_command_line(words, machine, environment);
}

Config config_of(std::vector<std::string> words) {
  const Outcome outcome = serve(std::move(words));
  EXPECT_EQ(outcome.action, Outcome::Action::kServe) << outcome.text;
  return outcome.config;
}

void expect_exit(const Outcome& outcome, int exit_code, const std::string& text) {
  EXPECT_EQ(outcome.action, Outcome::Action::kExit);
  EXPECT_EQ(outcome.exit_code, exit_code) << outcome.text;
  EXPECT_THAT(outcome.text, HasSubstr(text));
}

// name, kind, default: as the reference's own parsers list them.
struct Known {
  std::string_view name;
  Kind kind;
  std::string_view default_value;
};

using enum Kind;

// clang-format off
constexpr auto kReference052 = std::to_array<Known>({
    {"instance-id", kText, ""}, {"host", kText, "localhost"}, {"port", kInteger, "5555"},
    {"chunk-size", kInteger, "256"}, {"max-workers", kInteger, ""},
    {"max-gpu-workers", kInteger, ""},
    {"max-cpu-workers", kInteger, ""}, {"hash-algorithm", kText, "blake3"},
    {"engine-type", kText, "default"}, {"supported-transfer-mode", kText, "auto"},
    {"runtime-plugin-locations", kWords, ""}, {"runtime-plugin-config", kText, "{}"},
    {"shm-name", kText, ""}, {"script-allowed-imports", kWords, ""},
    {"separate-object-groups", kPair, "true"}, {"worker-reap-timeout-seconds", kNumber, "120.0"},
    {"worker-registration-grace-seconds", kNumber, "3600.0"},
    {"enable-segmented-prefix", kSwitch, ""},
    {"p2p-advertise-url", kText, ""}, {"p2p-listen-url", kText, ""},
    {"p2p-lookup-timeout", kNumber, "30.0"}, {"p2p-load-timeout", kNumber, "30.0"},
    {"p2p-transfer-engine", kText, "nixl"}, {"l1-size-gb", kNumber, ""},
    {"l1-use-lazy", kPair, "true"},
    {"l1-init-size-gb", kInteger, "20"}, {"l1-align-bytes", kInteger, "4096"},
    {"l1-devdax-path", kText, ""}, {"gds-l1-path", kText, ""},
    {"gds-l1-use-direct-io", kPair, "true"},
    {"l1-write-ttl-seconds", kInteger, "600"}, {"l1-read-ttl-seconds", kInteger, "300"},
    {"eviction-policy", kText, "Learned"}, {"eviction-trigger-watermark", kNumber, ""},
    {"eviction-ratio", kNumber, "0.2"}, {"l2-store-policy", kText, "default"},
    {"l2-prefetch-policy", kText, "default"}, {"l2-prefetch-max-in-flight", kInteger, "8"},
    {"periodic-notifier-interval-ms", kInteger, "5"}, {"l2-adapter", kRepeated, ""},
    {"http-host", kText, "127.0.0.1"}, {"http-port", kInteger, "8080"},
    {"disable-observability", kSwitch, ""}, {"disable-metrics", kSwitch, ""},
    {"disable-logging", kSwitch, ""}, {"enable-tracing", kSwitch, ""}, {"otlp-endpoint", kText, ""},
    {"event-bus-queue-size", kInteger, "10000"}, {"prometheus-port", kInteger, ""},
    {"metrics-sample-rate", kNumber, "0.01"}, {"lookup-hash-log-dir", kText, ""},
    {"lookup-hash-log-rotation-interval", kInteger, "21600"},
    {"lookup-hash-log-rotation-max-size", kInteger, "104857600"},
    {"lookup-hash-log-max-files", kInteger, "100"}, {"enable-extra-logging", kSwitch, ""},
    {"extra-logging-interval", kNumber, "10.0"}, {"trace-level", kText, ""},
    {"trace-output", kText, ""},
    {"coordinator-url", kText, ""}, {"coordinator-advertise-ip", kText, ""},
    {"coordinator-heartbeat-interval", kNumber, ""},
    {"coordinator-l2-event-reporting", kSwitch, ""},
    {"coordinator-l2-event-flush-interval", kNumber, ""},
    {"format", kText, ""}, {"output", kText, ""}, {"quiet", kSwitch, ""}, {"help", kSwitch, ""},
});

constexpr auto kReference056 = std::to_array<Known>({
    {"l1-manager", kRepeated, ""}, {"transport", kText, "zmq"}, {"null-block-id", kInteger, "0"},
    {"grpc-server-workers", kInteger, "32"}, {"isolated-ipc", kPair, "false"},
    {"run-script-api-enabled", kPair, "false"}, {"session-ttl-seconds", kNumber, "600.0"},
    {"enable-dedup-content", kSwitch, ""}, {"enable-blend-reorder", kSwitch, ""},
    {"enable", kWords, ""},
    {"kv-event-log-size", kInteger, "32768"}, {"server-module", kRepeated, ""},
    {"l1-use-hugepages", kPair, "false"}, {"gds-l1-backend", kText, "auto"},
    {"disable-grpc-metrics", kSwitch, ""}, {"enable-gc-monitor", kSwitch, ""},
    {"gc-monitor-min-pause-ms", kNumber, "1.0"}, {"gc-monitor-top-objects", kInteger, "0"},
    {"coordinator-event-reporting", kSwitch, ""}, {"coordinator-event-flush-interval", kNumber, ""},
    {"coordinator-event-transport", kText, "http"},
    {"coordinator-kafka-bootstrap-servers", kText, ""},
    {"coordinator-kafka-topic", kText, "lmcache-cache-events"},
    {"coordinator-kafka-delivery-timeout", kNumber, "300.0"},
    {"coordinator-blend-timeout", kNumber, "1.0"},
    {"coordinator-blend-match-concurrency", kInteger, "8"},
});

// clang-format on

// A value other than the default, one that the flag's type and choices allow.
std::vector<std::string> another_use(const Flag& flag) {
  const std::string name = "--" + std::string(flag.name);
  switch (flag.kind) {
    case kSwitch:
      return {name};
    case kPair:
      return {flag.default_value == "true" ? "--no-" + std::string(flag.name) : name};
    case kInteger:
    case kNumber:
      return {name, "13"};
    case kText:
    case kWords:
    case kRepeated:
      break;
  }
  const std::size_t last = flag.choices.rfind('|');
  return {name, flag.choices.empty() ? "other" : std::string(flag.choices.substr(last + 1))};
}

// --log-level, --version, --disable-prometheus, and the limits of the request port.
constexpr std::size_t kOwnFlags = 7 + 10;

TEST(Flags, EveryFlagOfTheReferenceIsKnownWithItsTypeAndDefault) {
  const auto check = [](const auto& reference, Since since) {
    for (const Known& known : reference) {
      const Flag* flag = find_flag(known.name);
      ASSERT_NE(flag, nullptr) << known.name;
      EXPECT_EQ(flag->kind, known.kind) << known.name;
      EXPECT_EQ(flag->default_value, known.default_value) << known.name;
      EXPECT_EQ(flag->since, since) << known.name;
    }
  };
  check(kReference052, Since::k052);
  check(kReference056, Since::k056);
  EXPECT_EQ(flags().size(), kReference052.size() + kReference056.size() + kOwnFlags);
}

TEST(Flags, NoneIsIgnoredInSilence) {
  for (const Flag& flag : flags()) {
    const Outcome outcome = serve(another_use(flag));
    const std::string name(flag.name);
    if (flag.status == Status::kRefused) {
      expect_exit(outcome, 1, name + " is not supported: " + std::string(flag.text));
    } else if (flag.status == Status::kNoEffect) {
      EXPECT_EQ(outcome.action, Outcome::Action::kServe) << name;
      EXPECT_THAT(outcome.notices, Contains(HasSubstr(name + " has no effect: ")));
    }
  }
}

TEST(Flags, TheDefaultOfTheReferenceIsAlwaysAccepted) {
  for (const Flag& flag : flags()) {
    const bool valued = flag.kind == kText || flag.kind == kInteger || flag.kind == kNumber;
    if (!valued || flag.default_value.empty()) {
      continue;
    }
    const Outcome outcome = serve({"--" + std::string(flag.name), std::string(flag.default_value)});
    EXPECT_EQ(outcome.action, Outcome::Action::kServe) << flag.name << ": " << outcome.text;
    EXPECT_THAT(outcome.notices, Not(Contains(HasSubstr("no effect")))) << flag.name;
  }
}

TEST(Flags, WhatAsksForNothingIsAccepted) {
  const Outcome outcome = serve({"--p2p-advertise-url",
                                 "",
                                 "--coordinator-url=",
                                 "--otlp-endpoint",
                                 "",
                                 "--no-isolated-ipc",
                                 "--no-l1-use-hugepages",
                                 "--l1-use-lazy",
                                 "--script-allowed-imports",
                                 "--runtime-plugin-locations",
                                 "--enable",
                                 "--null-block-id",
                                 "0",
                                 "--gds-l1-path",
                                 ""});
  EXPECT_EQ(outcome.action, Outcome::Action::kServe) << outcome.text;
  EXPECT_EQ(outcome.notices.size(), 1U) << "only the pool's size";
}

TEST(CommandLine, ServeAloneHasTheDefaultsOfTheReference) {
  const Config config = config_of({});
  EXPECT_EQ(config.host, "localhost");
  EXPECT_EQ(config.port, 5555);
  EXPECT_EQ(config.chunk_tokens, 256U);
  EXPECT_EQ(config.transfer_mode, TransferMode::kAuto);
  EXPECT_EQ(config.pool_bytes, 4 * kGibibyte);
  EXPECT_FALSE(config.pool_bytes_given);
  EXPECT_EQ(config.pool_align_bytes, 4096U);
  EXPECT_EQ(config.pool_initial_bytes, std::size_t{64} << 20);
  EXPECT_EQ(config.shm_name, std::nullopt);
  EXPECT_EQ(config.l1_verify, Verify::kOff);
  EXPECT_EQ(config.eviction_policy, "Learned");
  EXPECT_FALSE(config.selective_admission);
  EXPECT_TRUE(config.salt_quotas.empty());
  EXPECT_EQ(config.eviction_watermark, std::nullopt);
  EXPECT_EQ(config.eviction_ratio, 0.2);
  EXPECT_EQ(config.write_ttl_seconds, 600U);
  EXPECT_EQ(config.read_ttl_seconds, 300U);
  EXPECT_EQ(config.reap_timeout_seconds, 120.0);
  EXPECT_EQ(config.registration_grace_seconds, 3600.0);
  EXPECT_EQ(config.transfer_workers, std::nullopt);
  EXPECT_EQ(config.lookup_workers, std::nullopt);
  EXPECT_EQ(config.http_host, "127.0.0.1");
  EXPECT_EQ(config.http_port, 8080);
  EXPECT_EQ(config.prometheus_port, std::nullopt);
  EXPECT_EQ(config.hash_algorithm, "blake3");
  EXPECT_EQ(config.log_level, log::Level::kInfo);
  EXPECT_EQ(config.instance_id, "");
}

TEST(CommandLine, EverySupportedFlagReachesTheConfig) {
  const Config config = config_of({"--host",
                                   "::",
                                   "--port",
                                   "0",
                                   "--chunk-size",
                                   "16",
                                   "--hash-algorithm",
                                   "blake3",
                                   "--supported-transfer-mode",
                                   "engine_driven",
                                   "--l1-size-gb",
                                   "0.5",
                                   "--shm-name",
                                   "pool",
                                   "--l1-align-bytes",
                                   "64",
                                   "--eviction-policy",
                                   "noop",
                                   "--eviction-trigger-watermark",
                                   "1",
                                   "--eviction-ratio",
                                   "0",
                                   "--l1-write-ttl-seconds",
                                   "6",
                                   "--l1-read-ttl-seconds",
                                   "3",
                                   "--worker-reap-timeout-seconds",
                                   "1",
                                   "--worker-registration-grace-seconds",
                                   "1.5",
                                   "--max-workers",
                                   "3",
                                   "--max-gpu-workers",
                                   "5",
                                   "--http-host",
                                   "0.0.0.0",
                                   "--http-port",
                                   "0",
                                   "--prometheus-port",
                                   "9090",
                                   "--instance-id",
                                   "one",
                                   "--log-level",
                                   "WARNING"});
  EXPECT_EQ(config.host, "::");
  EXPECT_EQ(config.port, 0);
  EXPECT_EQ(config.chunk_tokens, 16U);
  EXPECT_EQ(config.transfer_mode, TransferMode::kEngineDriven);
  EXPECT_EQ(config.pool_bytes, kGibibyte / 2);
  EXPECT_TRUE(config.pool_bytes_given);
  EXPECT_EQ(config.shm_name, "pool");
  EXPECT_EQ(config.pool_align_bytes, 64U);
  EXPECT_EQ(config.eviction_policy, "noop");
  EXPECT_EQ(config.eviction_watermark, 1.0);
  EXPECT_EQ(config.eviction_ratio, 0.0);
  EXPECT_EQ(config.write_ttl_seconds, 6U);
  EXPECT_EQ(config.read_ttl_seconds, 3U);
  EXPECT_EQ(config.reap_timeout_seconds, 1.0);
  EXPECT_EQ(config.registration_grace_seconds, 1.5);
  EXPECT_EQ(config.transfer_workers, 5U);
  EXPECT_EQ(config.lookup_workers, 3U);
  EXPECT_EQ(config.http_host, "0.0.0.0");
  EXPECT_EQ(config.http_port, 0);
  EXPECT_EQ(config.prometheus_port, 9090);
  EXPECT_EQ(config.instance_id, "one");
  EXPECT_EQ(config.log_level, log::Level::kWarning);
}

TEST(CommandLine, TheOperatorsCommandLineStarts) {
  const Outcome outcome = parse_command_line({"server",  "--host",
                                              "0.0.0.0", "--port",
                                              "5555",    "--l1-size-gb",
                                              "60.0",    "--chunk-size",
                                              "256",     "--max-workers",
                                              "1",       "--hash-algorithm",
                                              "blake3",  "--eviction-policy",
                                              "LRU",     "--eviction-trigger-watermark",
                                              "0.80",    "--eviction-ratio",
                                              "0.20",    "--disable-prometheus"},
                                             kMachine,
                                             nothing);
  ASSERT_EQ(outcome.action, Outcome::Action::kServe) << outcome.text;
  EXPECT_EQ(outcome.config.pool_bytes, 60 * kGibibyte);
  EXPECT_THAT(outcome.notices, Contains(StartsWith("--disable-prometheus has no effect")));
}

TEST(CommandLine, EveryPolicyOfTheReferenceAndOurOwnAreAccepted) {
  for (const char* const policy : {"Learned", "LRU", "ARC", "IsolatedLRU", "noop"}) {
    EXPECT_EQ(config_of({"--eviction-policy", policy}).eviction_policy, policy);
  }
  EXPECT_TRUE(config_of({"--admission", "selective"}).selective_admission);
  EXPECT_FALSE(config_of({"--admission", "all", "--eviction-policy", "LRU"}).selective_admission);
}

TEST(CommandLine, VerificationHasThreeDegrees) {
  EXPECT_EQ(config_of({"--l1-verify", "off"}).l1_verify, Verify::kOff);
  EXPECT_EQ(config_of({"--l1-verify", "sample"}).l1_verify, Verify::kSample);
  EXPECT_EQ(config_of({"--l1-verify=always"}).l1_verify, Verify::kAlways);
  EXPECT_EQ(serve({"--l1-verify", "sometimes"}).action, Outcome::Action::kExit);
}

TEST(CommandLine, QuotasAddUpAndNameTheEmptySaltAsTheReferenceDoes) {
  const Outcome outcome = serve({"--eviction-policy",
                                 "IsolatedLRU",
                                 "--salt-quota-gb",
                                 "tenant=a=0.5",
                                 "--salt-quota-gb=_default=2",
                                 "--salt-quota-gb",
                                 "none=0"});
  ASSERT_EQ(outcome.action, Outcome::Action::kServe) << outcome.text;
  const std::map<std::string, std::uint64_t> expected = {
      {"tenant=a", kGibibyte / 2}, {"", 2 * kGibibyte}, {"none", 0}};
  EXPECT_EQ(outcome.config.salt_quotas, expected);
  EXPECT_THAT(outcome.notices, Not(Contains(HasSubstr("salt-quota-gb"))));
  EXPECT_THAT(serve({"--salt-quota-gb", "tenant=1"}).notices,
              Contains(HasSubstr("has no effect without --eviction-policy IsolatedLRU")));
}

TEST(Arguments, AnUnambiguousPrefixIsTheFlag) {
  EXPECT_EQ(config_of({"--l1-size", "1"}).pool_bytes, kGibibyte);
  EXPECT_EQ(config_of({"--po=1"}).port, 1);
  EXPECT_EQ(config_of({"--http-p", "1"}).http_port, 1);
  EXPECT_THAT(serve({"--no-l1-use"}).notices, Contains(StartsWith("--no-l1-use-lazy ")));
}

TEST(Arguments, APrefixThatNamedOneFlagIn052StillDoes) {
  // 0.5.6 added --l1-use-hugepages and --session-ttl-seconds.
  EXPECT_EQ(serve({"--l1-use"}).action, Outcome::Action::kServe);
  EXPECT_FALSE(config_of({"--no-se"}).separate_object_groups);
  EXPECT_EQ(serve({"--session", "600"}).action, Outcome::Action::kServe);
}

TEST(Arguments, AnAmbiguousPrefixIsAnErrorThatNamesTheCandidates) {
  const Outcome outcome = serve({"--max", "3"});
  expect_exit(outcome, 2, "--max is ambiguous");
  EXPECT_THAT(outcome.text,
              AllOf(HasSubstr("--max-workers"),
                    HasSubstr("--max-gpu-workers"),
                    HasSubstr("--max-cpu-workers")));
}

TEST(Arguments, AWholeNameIsNeverAPrefix) {
  // --enable is a flag of its own and the beginning of four others.
  EXPECT_EQ(serve({"--enable"}).action, Outcome::Action::kServe);
}

TEST(Arguments, TheLastOfRepeatedFlagsWins) {
  EXPECT_EQ(config_of({"--port", "1", "--port=2", "--po", "3"}).port, 3);
  EXPECT_THAT(serve({"--no-l1-use-lazy", "--l1-use-lazy"}).notices,
              Not(Contains(HasSubstr("l1-use-lazy"))));
  EXPECT_EQ(serve({"--runtime-plugin-locations", "a", "b", "--runtime-plugin-locations"}).action,
            Outcome::Action::kServe);
}

TEST(Arguments, AnErrorInAnOverriddenUseIsStillAnError) {
  expect_exit(serve({"--port", "x", "--port", "2"}), 2, "--port: 'x' is not a whole number");
}

TEST(Arguments, AValueMayBeEmptyOrHoldAnEqualsSign) {
  EXPECT_EQ(config_of({"--shm-name", ""}).shm_name, "");
  EXPECT_EQ(config_of({"--shm-name="}).shm_name, "");
  EXPECT_EQ(config_of({"--instance-id=a=b"}).instance_id, "a=b");
}

TEST(Arguments, AValueMayBeginWithADashWhenItIsANumberOrHasASpace) {
  expect_exit(serve({"--port", "-1"}), 1, "--port must be from 0 to 65535, not -1");
  expect_exit(
      serve({"--eviction-ratio", "-.5"}), 1, "--eviction-ratio must be from 0 to 1, not -.5");
  EXPECT_EQ(config_of({"--instance-id", "-a b"}).instance_id, "-a b");
  EXPECT_EQ(config_of({"--instance-id", "-"}).instance_id, "-");
  EXPECT_EQ(config_of({"--instance-id=--port"}).instance_id, "--port");
}

TEST(Arguments, NumbersAreWrittenAsInPython) {
  EXPECT_EQ(config_of({"--eviction-ratio", "1e-3"}).eviction_ratio, 0.001);
  EXPECT_EQ(config_of({"--chunk-size", "1_024"}).chunk_tokens, 1024U);
  EXPECT_EQ(config_of({"--l1-size-gb", "0.00390625"}).pool_bytes, std::size_t{4} << 20);
  expect_exit(serve({"--chunk-size", "256.0"}), 2, "'256.0' is not a whole number");
  expect_exit(serve({"--l1-size-gb", "4GB"}), 2, "--l1-size-gb: '4GB' is not a number");
}

TEST(Arguments, WrongUsageIsExitCode2) {
  expect_exit(serve({"--port"}), 2, "--port needs a value");
  expect_exit(serve({"--host", "--port", "1"}), 2, "--host needs a value");
  expect_exit(serve({"--quiet=1"}), 2, "--quiet takes no value");
  expect_exit(serve({"--l1-use-lazy=true"}), 2, "--l1-use-lazy takes no value");
  expect_exit(serve({"5555"}), 2, "'5555' is neither a flag nor the value of one");
  expect_exit(serve({"--eviction-policy", "FIFO"}),
              2,
              "'FIFO' is not one of Learned, LRU, ARC, IsolatedLRU, noop");
  expect_exit(serve({"--eviction-policy", "lru"}), 2, "is not one of");
  expect_exit(serve({"--log-level", "loud"}), 2, "is not one of debug, info");
  expect_exit(serve({"--l2-prefetch-max-in-flight", "many"}), 2, "is not a whole number");
  expect_exit(serve({"--", "x"}), 2, "there is no flag --");
  EXPECT_THAT(serve({"--prot", "1"}).text, StartsWith("larder: "));
}

TEST(Arguments, AnUnknownFlagSuggestsTheNearest) {
  expect_exit(serve({"--prot", "1"}), 2, "there is no flag --prot; did you mean --port?");
  expect_exit(serve({"--l1-size-mb=4"}), 2, "did you mean --l1-size-gb?");
  expect_exit(serve({"--no-l1-use-lasy"}), 2, "did you mean --no-l1-use-lazy?");
  expect_exit(serve({"-port", "1"}), 2, "did you mean --port?");
  expect_exit(serve({"--workers", "1"}), 2, "did you mean --max-workers?");
  expect_exit(serve({"--zzzzzzzz"}), 2, "there is no flag --zzzzzzzz\n");
}

TEST(Validation, EachBadValueIsExitCode1AndOneSentence) {
  struct Case {
    std::vector<std::string> words;
    std::string text;
  };

  const std::vector<Case> cases{
      {{"--port", "65536"}, "--port must be from 0 to 65535, not 65536"},
      {{"--http-port", "-1"}, "--http-port must be from 0 to 65535, not -1"},
      {{"--prometheus-port", "70000"}, "--prometheus-port must be"},
      {{"--port", "99999999999999999999"}, "not 99999999999999999999"},
      {{"--host", ""}, "--host is empty"},
      {{"--http-host", ""}, "--http-host is empty"},
      {{"--chunk-size", "0"}, "--chunk-size must be from 1 to 65536, not 0"},
      {{"--chunk-size", "65537"}, "--chunk-size must be"},
      {{"--hash-algorithm", "sha256_cbor"}, "--hash-algorithm 'sha256_cbor' is not supported"},
      {{"--l1-size-gb", "0"}, "--l1-size-gb must be from 0.00390625 (4 MiB)"},
      {{"--l1-size-gb", "0.0039"}, "--l1-size-gb must be"},
      {{"--l1-size-gb", "-1"}, "--l1-size-gb must be"},
      {{"--l1-size-gb", "nan"}, "--l1-size-gb must be"},
      {{"--l1-size-gb", "inf"}, "--l1-size-gb must be"},
      {{"--l1-size-gb", "1e300"}, "--l1-size-gb must be"},
      {{"--l1-align-bytes", "32"}, "--l1-align-bytes must be a power of two from 64 to 1073741824"},
      {{"--l1-align-bytes", "4095"}, "--l1-align-bytes must be a power of two"},
      {{"--l1-align-bytes", "-64"}, "--l1-align-bytes must be a power of two"},
      {{"--l1-align-bytes", "2147483648"}, "--l1-align-bytes must be a power of two"},
      {{"--l1-size-gb", "0.0625", "--l1-align-bytes", "1073741824"},
       "is smaller than --l1-align-bytes"},
      {{"--eviction-policy", "LRU", "--admission", "selective"},
       "--admission selective needs --eviction-policy Learned"},
      {{"--salt-quota-gb", "tenant"}, "--salt-quota-gb wants SALT=GIB"},
      {{"--salt-quota-gb", "tenant=much"}, "--salt-quota-gb wants SALT=GIB"},
      {{"--salt-quota-gb", "tenant=-1"}, "--salt-quota-gb wants SALT=GIB"},
      {{"--salt-quota-gb", "tenant=nan"}, "--salt-quota-gb wants SALT=GIB"},
      {{"--salt-quota-gb", "good=1", "--salt-quota-gb", "bad="}, "not 'bad='"},
      {{"--eviction-trigger-watermark", "0"}, "--eviction-trigger-watermark must be above 0"},
      {{"--eviction-trigger-watermark", "1.01"}, "--eviction-trigger-watermark must be"},
      {{"--eviction-trigger-watermark", "nan"}, "--eviction-trigger-watermark must be"},
      {{"--eviction-ratio", "1.5"}, "--eviction-ratio must be from 0 to 1, not 1.5"},
      {{"--l1-write-ttl-seconds", "0"}, "--l1-write-ttl-seconds must be from 1"},
      {{"--l1-read-ttl-seconds", "-3"}, "--l1-read-ttl-seconds must be from 1"},
      {{"--worker-reap-timeout-seconds", "0.5"},
       "--worker-reap-timeout-seconds must be 0 (never) or"},
      {{"--worker-reap-timeout-seconds", "-1"}, "--worker-reap-timeout-seconds must be"},
      {{"--worker-reap-timeout-seconds", "inf"}, "--worker-reap-timeout-seconds must be"},
      {{"--worker-registration-grace-seconds", "nan"},
       "--worker-registration-grace-seconds must be"},
      {{"--worker-registration-grace-seconds", "100"}, "(100) must be at least"},
      {{"--worker-reap-timeout-seconds", "4000"}, "(3600) must be at least"},
      {{"--max-workers", "0"}, "--max-workers must be from 1 to 1024, not 0"},
      {{"--max-gpu-workers", "1025"}, "--max-gpu-workers must be"},
      {{"--max-cpu-workers", "-1"}, "--max-cpu-workers must be"},
  };
  for (const Case& one : cases) {
    const Outcome outcome = serve(one.words);
    expect_exit(outcome, 1, one.text);
    EXPECT_THAT(outcome.text, StartsWith("larder: "));
    EXPECT_EQ(std::count(outcome.text.begin(), outcome.text.end(), '\n'), 1) << outcome.text;
  }
}

TEST(Validation, AllBadValuesAreToldAtOnce) {
  const Outcome outcome = serve({"--port", "-1", "--l2-adapter", "{}", "--max-workers", "0"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.text,
              AllOf(HasSubstr("--port"), HasSubstr("--l2-adapter"), HasSubstr("--max-workers")));
}

TEST(Validation, ReapingMayBeOff) {
  EXPECT_EQ(config_of({"--worker-reap-timeout-seconds", "0"}).reap_timeout_seconds, 0.0);
}

TEST(DefaultPool, IsAQuarterOfTheMemoryWhereSharedMemoryAllows) {
  const Machine machine{.memory_bytes = 25'276'514'304, .shm_free_bytes = 25'276'514'304};
  const Outcome outcome = serve({}, nothing, machine);
  EXPECT_EQ(outcome.config.pool_bytes % (2U << 20), 0U);
  EXPECT_LE(outcome.config.pool_bytes, machine.memory_bytes / 4);
  EXPECT_GT(outcome.config.pool_bytes + (2U << 20), machine.memory_bytes / 4);
  EXPECT_THAT(
      outcome.notices,
      Contains("pool size 5.9 GiB: a quarter of 23.5 GiB memory; set it with --l1-size-gb"));
}

TEST(DefaultPool, IsHalfOfTheFreeSharedMemoryWhereThatIsLess) {
  const Machine machine{.memory_bytes = 16 * kGibibyte, .shm_free_bytes = 64U << 20};
  const Outcome outcome = serve({}, nothing, machine);
  EXPECT_EQ(outcome.config.pool_bytes, 32U << 20);
  EXPECT_THAT(outcome.notices,
              Contains(AllOf(StartsWith("pool size 32 MiB: half of the 64 MiB free in /dev/shm"),
                             HasSubstr("--shm-size"))));
}

TEST(DefaultPool, PrivateMemoryDoesNotCareAboutSharedMemory) {
  const Machine machine{.memory_bytes = 16 * kGibibyte, .shm_free_bytes = 0};
  EXPECT_EQ(serve({"--shm-name", ""}, nothing, machine).config.pool_bytes, 4 * kGibibyte);
}

TEST(DefaultPool, TooLittleMemoryIsAnErrorThatSaysWhatToDo) {
  const Machine machine{.memory_bytes = 16 * kGibibyte, .shm_free_bytes = 7U << 20};
  const Outcome outcome = serve({}, nothing, machine);
  expect_exit(outcome, 1, "--l1-size-gb");
  EXPECT_THAT(outcome.text, HasSubstr("--shm-size"));
  EXPECT_EQ(serve({"--l1-size-gb", "1"}, nothing, machine).config.pool_bytes, kGibibyte);
}

TEST(DefaultPool, AGivenSizeIsNotNews) {
  EXPECT_THAT(serve({"--l1-size-gb", "1"}).notices, IsEmpty());
}

TEST(Environment, TheLogLevelIsReadInAnyCaseAndTheFlagWins) {
  const Environment debug = [](const char* name) -> const char* {
    return std::string_view(name) == "LMCACHE_LOG_LEVEL" ? "DEBUG" : nullptr;
  };
  EXPECT_EQ(serve({}, debug).config.log_level, log::Level::kDebug);
  EXPECT_EQ(serve({"--log-level", "Error"}, debug).config.log_level, log::Level::kError);
  EXPECT_EQ(serve({"--log-level", "critical"}, debug).config.log_level, log::Level::kError);
  EXPECT_EQ(serve({"--log-level", "info"}, debug).config.log_level, log::Level::kInfo);
}

TEST(Environment, AnUnknownLogLevelMeansInfoAndIsTold) {
  const Outcome outcome = serve({}, [](const char* name) -> const char* {
    return std::string_view(name) == "LMCACHE_LOG_LEVEL" ? "loud" : nullptr;
  });
  EXPECT_EQ(outcome.config.log_level, log::Level::kInfo);
  EXPECT_THAT(outcome.notices, Contains(HasSubstr("LMCACHE_LOG_LEVEL")));
}

TEST(Environment, ACoordinatorThereIsTold) {
  const Environment environment = [](const char* name) -> const char* {
    return std::string_view(name) == "LMCACHE_COORDINATOR_URL" ? "http://coordinator:9300" : "1";
  };
  EXPECT_THAT(serve({}, environment).notices,
              Contains(HasSubstr("LMCACHE_COORDINATOR_URL is ignored")));
  EXPECT_THAT(serve({"--coordinator-url", ""}, environment).notices,
              Not(Contains(HasSubstr("COORDINATOR"))));
}

TEST(Commands, HelpAndVersionExitWith0) {
  for (const char* word : {"--help", "-h", "help"}) {
    expect_exit(parse_command_line({word}, kMachine, nothing), 0, "usage: larder serve");
  }
  for (const char* word : {"--help", "-h", "--hel"}) {
    expect_exit(serve({word}), 0, "--l1-size-gb NUMBER");
  }
  expect_exit(serve({"--bogus", "--help"}), 0, "usage: larder serve");
  const std::string version = "larder " + std::string(kVersion);
  expect_exit(parse_command_line({"--version"}, kMachine, nothing), 0, version);
  expect_exit(serve({"--version"}), 0, version);
}

TEST(Commands, WithoutACommandTheHintIsToServe) {
  expect_exit(parse_command_line({}, kMachine, nothing), 2, "larder serve");
  expect_exit(parse_command_line({"--port", "1"}, kMachine, nothing),
              2,
              "did you mean: larder serve --port 1");
  expect_exit(parse_command_line({"sevre"}, kMachine, nothing), 2, "did you mean 'serve'?");
  expect_exit(parse_command_line({"coordinator"}, kMachine, nothing),
              2,
              "there is no command 'coordinator'\n");
}

TEST(Help, NamesEveryFlagAndFitsTheTerminal) {
  const std::string help = render_flags_help();
  for (const Flag& flag : flags()) {
    EXPECT_THAT(help, HasSubstr("--" + std::string(flag.name)));
  }
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 80U) << line;
  }
}

std::string repository_file(const std::string& name) {
  std::ifstream file(std::string(LARDER_FIXTURES) + "/../../" + name);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(CommandLine, TheRequestPortsLimitsFollowTheLargestMessage) {
  const Config small = config_of({"--l1-size-gb", "0.5"});
  EXPECT_EQ(small.message_bytes_max, (kGibibyte / 2) / 8 * 9);
  EXPECT_EQ(small.buffered_bytes_max, kGibibyte);
  EXPECT_EQ(small.buffered_bytes_per_peer_max, small.message_bytes_max);
  const Config large = config_of({"--l1-size-gb", "4"});
  EXPECT_EQ(large.buffered_bytes_max, large.message_bytes_max);
  const Config given = config_of({"--max-message-mb", "100", "--max-unread-mb-per-peer", "3"});
  EXPECT_EQ(given.message_bytes_max, std::size_t{100} << 20);
  EXPECT_EQ(given.unread_bytes_per_peer_max, std::size_t{3} << 20);
}

TEST(CommandLine, LimitsOfTheRequestPortThatMakeNoSenseAreRefused) {
  expect_exit(serve({"--max-message-mb", "100", "--max-buffered-mb", "99"}),
              1,
              "--max-buffered-mb (99 MiB) must be at least --max-message-mb (100 MiB)");
  expect_exit(serve({"--max-message-frames", "11"}), 1, "--max-message-frames must be from 12");
  expect_exit(serve({"--max-connections", "0"}), 1, "--max-connections must be from 1");
  expect_exit(serve({"--handshake-timeout-seconds", "0"}), 1, "must be from 0.001 to 86400");
  EXPECT_EQ(config_of({"--unread-timeout-seconds", "0.5"}).unread_timeout_seconds, 0.5);
}

TEST(Help, TheFlagsPageIsTheTable) {
  EXPECT_EQ(repository_file("docs/flags.md"), render_flags_markdown())
      << "docs/flags.md is stale: larder serve --help-markdown > docs/flags.md";
  EXPECT_EQ(serve({"--help-markdown"}).text, render_flags_markdown());
}

TEST(Help, TheVersionIsTheBuilds) {
  EXPECT_THAT(repository_file("CMakeLists.txt"),
              HasSubstr("project(larder VERSION " + std::string(kVersion) + " "));
}

}  // namespace
}  // namespace larder::config
