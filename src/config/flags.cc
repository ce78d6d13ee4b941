#include "config/flags.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace larder::config {
namespace {

using enum Kind;
using enum Group;
using enum Since;
using enum Status;

// clang-format off
constexpr auto kFlags = std::to_array<Flag>({
    // name, kind, default, choices, group, since, status, text
    {"host", kText, "localhost", "", kRequestPort, k052, kSupported,
     "Address of the request port: a name, an IPv4 or IPv6 address, 0.0.0.0 for all, or "
     "ipc:///PATH for a local socket instead of a TCP port."},
    {"port", kInteger, "5555", "", kRequestPort, k052, kSupported,
     "Request port. 0 picks a free one and prints it."},
    {"chunk-size", kInteger, "256", "", kRequestPort, k052, kSupported,
     "Tokens in one chunk, the unit that is hashed and stored; 1 to 65536. Clients ask for it."},
    {"hash-algorithm", kText, "blake3", "", kRequestPort, k052, kSupported,
     "How token chunks are hashed. Only blake3: the other algorithms of the reference depend on "
     "its Python process."},
    {"supported-transfer-mode", kText, "auto", "lmcache_driven|engine_driven|auto",
     kRequestPort, k052, kSupported,
     "Which way of moving KV blocks is offered to engines."},
    {"default-release", kText, "auto",
     "auto|0.4.5|0.4.6|0.4.7|0.5.0|0.5.1|0.5.2|0.5.3|0.5.4|0.5.5|0.5.6|0.5.7rc3", kRequestPort,
     kLarder, kSupported,
     "The LMCache release to assume where a connection's messages do not tell (docs/protocol.md): "
     "auto or a version, 0.4.5 to 0.5.6 or 0.5.7rc3. Clients of all releases are recognised with any "
     "value; set it where most are 0.4.x."},

    {"max-connections", kInteger, "8192", "", kPortLimits, kLarder, kSupported,
     "Connections open at a time; 1 to 1000000. One too many is closed at once and tries again."},
    {"max-message-mb", kInteger, "", "", kPortLimits, kLarder, kSupported,
     "Largest message in MiB; a peer that announces more is closed. Without it: the pool and an "
     "eighth of it, at least 64."},
    {"max-message-frames", kInteger, "256", "", kPortLimits, kLarder, kSupported,
     "Frames of one message, 12 to 65536; a peer that sends more is closed. A request has at most "
     "eleven."},
    {"max-buffered-mb", kInteger, "", "", kPortLimits, kLarder, kSupported,
     "MiB of requests of all connections that are being received, waiting or running; beyond, the "
     "peer with the largest unfinished message is closed. Without it: 1024, or --max-message-mb "
     "where that is more."},
    {"max-buffered-mb-per-peer", kInteger, "", "", kPortLimits, kLarder, kSupported,
     "MiB of one connection's requests that wait or run; beyond, it is not read until some have "
     "run. Without it: 256, or --max-message-mb where that is more."},
    {"max-requests-per-peer", kInteger, "16384", "", kPortLimits, kLarder, kSupported,
     "Requests of one connection that wait or run; beyond, it is not read until some have run."},
    {"max-unread-mb-per-peer", kInteger, "", "", kPortLimits, kLarder, kSupported,
     "MiB of replies that a peer has not read; beyond, its requests wait. Without it: 256, or "
     "--max-message-mb where that is more."},
    {"handshake-timeout-seconds", kNumber, "10", "", kPortLimits, kLarder, kSupported,
     "How long a new connection may take to say that it is a client; 0.001 to 86400."},
    {"message-timeout-seconds", kNumber, "300", "", kPortLimits, kLarder, kSupported,
     "How long a message may take from its first byte to its last."},
    {"unread-timeout-seconds", kNumber, "300", "", kPortLimits, kLarder, kSupported,
     "How long a peer may leave its replies unread, without taking a byte, before it is closed."},

    {"l1-size-gb", kNumber, "", "", kMemory, k052, kSupported,
     "Size of the pool in GiB; fractions work, 4 MiB (0.00390625) is the least. Without it: a "
     "quarter of the memory "
     "(of the cgroup's limit where there is one) or half of the free /dev/shm, whichever is less."},
    {"shm-name", kText, "", "", kMemory, k052, kSupported,
     "Name of the shared-memory segment; lmcache_l1_pool_ is put in front where it is missing. "
     "Without it: a name of "
     "our own. With \"\": private memory, and engines copy through the request port."},
    {"l1-align-bytes", kInteger, "4096", "", kMemory, k052, kSupported,
     "Alignment of stored objects in the pool: a power of two from 64 to 1073741824."},
    {"l1-verify", kText, "off", "off|sample|always", kMemory, kLarder, kSupported,
     "Whether stored bytes are compared with their checksum before they are retrieved. always: all "
     "of them. sample: one object in sixteen. What has changed, by faulty memory or a stray write, "
     "becomes a miss."},
    {"l1-use-lazy", kPair, "true", "", kMemory, k052, kNoEffect,
     "the pool always grows in the background and the first answer never waits for it; shared "
     "memory is offered "
     "either way"},
    {"l1-init-size-gb", kInteger, "20", "", kMemory, k052, kNoEffect,
     "64 MiB are reserved before the first answer and the rest in the background, whatever the "
     "size of the pool"},

    {"eviction-policy", kText, "Learned", "Learned|LRU|ARC|IsolatedLRU|noop", kEviction, k052,
     kSupported,
     "What goes when room is needed. Learned: what is least likely to be asked for again, as this "
     "server's traffic shows. LRU: what was unused for longest. ARC: the same with a part for what "
     "was found more than once. IsolatedLRU: as LRU, from the cache salt that uses the largest "
     "part of its quota. noop: nothing. docs/eviction.md compares them."},
    {"salt-quota-gb", kRepeated, "", "", kEviction, kLarder, kSupported,
     "SALT=GIB: what one cache salt may hold with --eviction-policy IsolatedLRU; _default stands "
     "for the empty salt. May be repeated. A salt without a quota may use the whole pool."},
    {"admission", kText, "all", "all|selective", kEviction, kLarder, kSupported,
     "selective: a store does not push out what the Learned policy thinks is worth more; the "
     "chunks it declines are not stored. Helps where many long prompts are sent once."},
    {"eviction-trigger-watermark", kNumber, "", "", kEviction, k052, kSupported,
     "How full the pool may get before eviction starts: above 0, at most 1. Without it: the whole "
     "pool is used, and a store that needs room evicts by itself."},
    {"eviction-ratio", kNumber, "0.2", "", kEviction, k052, kSupported,
     "How much of the stored bytes one eviction pass above the watermark frees: 0 to 1."},
    {"l1-write-ttl-seconds", kInteger, "600", "", kEviction, k052, kSupported,
     "How long an unfinished store keeps its place."},
    {"l1-read-ttl-seconds", kInteger, "300", "", kEviction, k052, kSupported,
     "How long what a lookup found is kept for it when nobody retrieves it."},
    {"worker-reap-timeout-seconds", kNumber, "120.0", "", kEviction, k052, kSupported,
     "Silence after which an engine worker that has pinged is forgotten; 0: never, otherwise at "
     "least 1."},
    {"worker-registration-grace-seconds", kNumber, "3600.0", "", kEviction, k052, kSupported,
     "The same for a worker that has not pinged yet; at least the reap timeout."},
    {"session-ttl-seconds", kNumber, "600.0", "", kEviction, k056, kNoEffect,
     "an unused lookup ends with --l1-read-ttl-seconds, and the oldest sessions when there are "
     "too many"},

    {"max-workers", kInteger, "", "", kThreads, k052, kSupported,
     "Size of both thread pools, 1 to 1024. Without it: our own choice, from the number of "
     "processors."},
    {"max-gpu-workers", kInteger, "", "", kThreads, k052, kSupported,
     "Threads for stores and retrieves. Without it: --max-workers."},
    {"max-cpu-workers", kInteger, "", "", kThreads, k052, kSupported,
     "Threads for lookups and everything else. Without it: --max-workers."},

    {"http-host", kText, "127.0.0.1", "", kHttp, k052, kSupported,
     "Address of the HTTP port. 0.0.0.0 makes it reachable from outside, as probes and scrapes "
     "need."},
    {"http-port", kInteger, "8080", "", kHttp, k052, kSupported,
     "HTTP port: health, status, metrics. 0 picks a free one and prints it."},
    {"prometheus-port", kInteger, "", "", kHttp, k052, kSupported,
     "A port of its own for /metrics. Without it: /metrics is on the HTTP port only."},

    {"instance-id", kText, "", "", kGeneral, k052, kSupported,
     "A name for this server in its status."},
    {"log-level", kText, "info", "debug|info|warning|error|critical", kGeneral, kLarder, kSupported,
     "Which log lines are written; wins over LMCACHE_LOG_LEVEL."},
    {"help", kSwitch, "", "", kGeneral, k052, kSupported,
     "Print this text (-h for short)."},
    {"version", kSwitch, "", "", kGeneral, kLarder, kSupported,
     "Print the version."},
    {"format", kText, "", "", kGeneral, k052, kNoEffect,
     "the server prints no report"},
    {"output", kText, "", "", kGeneral, k052, kNoEffect,
     "the server prints no report"},
    {"quiet", kSwitch, "", "", kGeneral, k052, kNoEffect,
     "the server prints no report; --log-level error quiets the log (-q for short)"},

    {"disable-observability", kSwitch, "", "", kMetrics, k052, kNoEffect,
     "metrics cost next to nothing and are always on"},
    {"disable-metrics", kSwitch, "", "", kMetrics, k052, kNoEffect,
     "metrics cost next to nothing and are always on"},
    {"disable-prometheus", kSwitch, "", "", kMetrics, kLarder, kNoEffect,
     "metrics cost next to nothing and are always on (the Kubernetes operator passes this flag)"},
    {"disable-grpc-metrics", kSwitch, "", "", kMetrics, k056, kNoEffect,
     "there are no gRPC metrics"},
    {"disable-logging", kSwitch, "", "", kMetrics, k052, kNoEffect,
     "detail of single requests is logged at --log-level debug only"},
    {"event-bus-queue-size", kInteger, "10000", "", kMetrics, k052, kNoEffect,
     "there is no event queue between a request and its metrics"},
    {"metrics-sample-rate", kNumber, "0.01", "", kMetrics, k052, kNoEffect,
     "metrics are counted in full, never sampled"},
    {"enable-extra-logging", kSwitch, "", "", kMetrics, k052, kNoEffect,
     "there are no periodic log lines; read /metrics or /status instead"},
    {"extra-logging-interval", kNumber, "10.0", "", kMetrics, k052, kNoEffect,
     "there are no periodic log lines; read /metrics or /status instead"},
    {"enable-gc-monitor", kSwitch, "", "", kMetrics, k056, kNoEffect,
     "there is no garbage collector"},
    {"gc-monitor-min-pause-ms", kNumber, "1.0", "", kMetrics, k056, kNoEffect,
     "there is no garbage collector"},
    {"gc-monitor-top-objects", kInteger, "0", "", kMetrics, k056, kNoEffect,
     "there is no garbage collector"},
    {"enable-tracing", kSwitch, "", "", kMetrics, k052, kRefused,
     "larder sends no traces yet; leave it out, and read request times from /metrics"},
    {"otlp-endpoint", kText, "", "", kMetrics, k052, kRefused,
     "larder pushes no metrics yet; leave it out, and let a collector scrape /metrics"},

    {"engine-type", kText, "default", "default|blend|blend_legacy", kEngine, k052, kRefused,
     "larder has no CacheBlend yet; leave it out or use 'default'"},
    {"enable-segmented-prefix", kSwitch, "", "", kEngine, k052, kRefused,
     "larder has no CacheBlend yet; leave it out"},
    {"enable-dedup-content", kSwitch, "", "", kEngine, k056, kRefused,
     "larder has no CacheBlend yet; leave it out"},
    {"enable-blend-reorder", kSwitch, "", "", kEngine, k056, kRefused,
     "larder has no CacheBlend yet; leave it out"},
    {"separate-object-groups", kPair, "true", "", kEngine, k052, kSupported,
     "Layers with different sliding windows are stored as objects of their own, so that a hit takes "
     "only the window of each; off: one object a chunk. Applies to engines whose blocks the server "
     "copies."},
    {"null-block-id", kInteger, "0", "", kEngine, k056, kRefused,
     "larder knows only block 0 as the empty one; leave it out"},
    {"transport", kText, "zmq", "zmq|grpc", kEngine, k056, kRefused,
     "larder speaks ZeroMQ only, no gRPC yet; leave it out or use 'zmq'"},
    {"grpc-server-workers", kInteger, "32", "", kEngine, k056, kNoEffect,
     "larder speaks ZeroMQ only"},
    {"isolated-ipc", kPair, "false", "", kEngine, k056, kRefused,
     "larder does not have it yet; leave it out, and share /dev/shm with the engine or use "
     "--shm-name \"\""},
    {"kv-event-log-size", kInteger, "32768", "", kEngine, k056, kNoEffect,
     "no KV events are kept"},

    {"l2-adapter", kRepeated, "", "", kL2, k052, kRefused,
     "larder has no L2 stores yet; leave it out, objects then live in memory only"},
    {"l2-store-policy", kText, "default", "default|skip_l1", kL2, k052, kRefused,
     "larder has no L2 stores yet; leave it out or use 'default'"},
    {"l2-prefetch-policy", kText, "default", "default|retain", kL2, k052, kRefused,
     "larder has no L2 stores yet; leave it out or use 'default'"},
    {"l2-prefetch-max-in-flight", kInteger, "8", "", kL2, k052, kNoEffect,
     "there are no L2 stores to prefetch from"},
    {"periodic-notifier-interval-ms", kInteger, "5", "", kL2, k052, kNoEffect,
     "larder wakes up when there is work, it does not poll"},

    {"l1-manager", kRepeated, "", "", kOtherL1, k056, kRefused,
     "larder has one memory pool; leave it out and set the pool's size with --l1-size-gb"},
    {"l1-use-hugepages", kPair, "false", "", kOtherL1, k056, kRefused,
     "larder does not use reserved huge pages yet; leave it out"},
    {"l1-devdax-path", kText, "", "", kOtherL1, k052, kRefused,
     "larder's pool is memory, not a device yet; leave it out and set the pool's size with "
     "--l1-size-gb"},
    {"gds-l1-path", kText, "", "", kOtherL1, k052, kRefused,
     "larder has no GPUDirect Storage yet; leave it out and set the pool's size with --l1-size-gb"},
    {"gds-l1-use-direct-io", kPair, "true", "", kOtherL1, k052, kNoEffect,
     "larder has no GPUDirect Storage"},
    {"gds-l1-backend", kText, "auto", "auto|cufile|hipfile|mufile|phx|ugds",
     kOtherL1, k056, kNoEffect,
     "larder has no GPUDirect Storage"},

    {"p2p-advertise-url", kText, "", "", kPeers, k052, kRefused,
     "larder does not share objects between servers yet; leave it out"},
    {"p2p-listen-url", kText, "", "", kPeers, k052, kRefused,
     "larder does not share objects between servers yet; leave it out"},
    {"p2p-lookup-timeout", kNumber, "30.0", "", kPeers, k052, kNoEffect,
     "larder does not share objects between servers"},
    {"p2p-load-timeout", kNumber, "30.0", "", kPeers, k052, kNoEffect,
     "larder does not share objects between servers"},
    {"p2p-transfer-engine", kText, "nixl", "", kPeers, k052, kNoEffect,
     "larder does not share objects between servers"},

    {"coordinator-url", kText, "", "", kCoordinator, k052, kRefused,
     "larder does not talk to a coordinator yet; leave it out"},
    {"coordinator-advertise-ip", kText, "", "", kCoordinator, k052, kNoEffect,
     "larder does not talk to a coordinator"},
    {"coordinator-heartbeat-interval", kNumber, "", "", kCoordinator, k052, kNoEffect,
     "larder does not talk to a coordinator"},
    {"coordinator-l2-event-reporting", kSwitch, "", "", kCoordinator, k052, kRefused,
     "larder does not talk to a coordinator yet; leave it out"},
    {"coordinator-l2-event-flush-interval", kNumber, "", "", kCoordinator, k052, kNoEffect,
     "larder does not talk to a coordinator"},
    {"coordinator-event-reporting", kSwitch, "", "", kCoordinator, k056, kRefused,
     "larder does not talk to a coordinator yet; leave it out"},
    {"coordinator-event-flush-interval", kNumber, "", "", kCoordinator, k056, kNoEffect,
     "larder does not talk to a coordinator"},
    {"coordinator-event-transport", kText, "http", "http|kafka", kCoordinator, k056, kRefused,
     "larder does not talk to a coordinator yet; leave it out"},
    {"coordinator-kafka-bootstrap-servers", kText, "", "", kCoordinator, k056, kRefused,
     "larder does not talk to a coordinator yet; leave it out"},
    {"coordinator-kafka-topic", kText, "lmcache-cache-events", "", kCoordinator, k056, kNoEffect,
     "larder does not talk to a coordinator"},
    {"coordinator-kafka-delivery-timeout", kNumber, "300.0", "", kCoordinator, k056, kNoEffect,
     "larder does not talk to a coordinator"},
    {"coordinator-blend-timeout", kNumber, "1.0", "", kCoordinator, k056, kNoEffect,
     "larder does not talk to a coordinator"},
    {"coordinator-blend-match-concurrency", kInteger, "8", "", kCoordinator, k056, kNoEffect,
     "larder does not talk to a coordinator"},

    {"trace-level", kText, "", "storage|events", kTrace, k052, kRefused,
     "larder records no traces yet; leave it out"},
    {"trace-output", kText, "", "", kTrace, k052, kRefused,
     "larder records no traces yet; leave it out"},
    {"lookup-hash-log-dir", kText, "", "", kTrace, k052, kRefused,
     "larder writes no lookup log yet; leave it out"},
    {"lookup-hash-log-rotation-interval", kInteger, "21600", "", kTrace, k052, kNoEffect,
     "larder writes no lookup log"},
    {"lookup-hash-log-rotation-max-size", kInteger, "104857600", "", kTrace, k052, kNoEffect,
     "larder writes no lookup log"},
    {"lookup-hash-log-max-files", kInteger, "100", "", kTrace, k052, kNoEffect,
     "larder writes no lookup log"},

    {"runtime-plugin-locations", kWords, "", "", kPlugins, k052, kRefused,
     "larder starts no plugins yet; leave it out and run them beside the server"},
    {"runtime-plugin-config", kText, "{}", "", kPlugins, k052, kNoEffect,
     "larder starts no plugins"},
    {"script-allowed-imports", kWords, "", "", kPlugins, k052, kRefused,
     "larder has no Python inside and no /run_script; leave it out"},
    {"run-script-api-enabled", kPair, "false", "", kPlugins, k056, kRefused,
     "larder has no Python inside and no /run_script; leave it out"},
    {"enable", kWords, "", "", kPlugins, k056, kRefused,
     "larder has no experimental modules; leave it out"},
    {"server-module", kRepeated, "", "", kPlugins, k056, kRefused,
     "larder loads no Python modules; leave it out"},
});

// clang-format on

consteval bool names_unique() {
  for (std::size_t i = 0; i < kFlags.size(); ++i) {
    for (std::size_t j = i + 1; j < kFlags.size(); ++j) {
      if (kFlags[i].name == kFlags[j].name) {
        return false;
      }
    }
  }
  return true;
}

static_assert(names_unique());

}  // namespace

std::span<const Flag> flags() {
  return kFlags;
}

const Flag* find_flag(std::string_view name) {
  const auto* found = std::find_if(
      kFlags.begin(), kFlags.end(), [&](const Flag& flag) { return flag.name == name; });
  return found == kFlags.end() ? nullptr : found;
}

std::string_view group_title(Group group) {
  switch (group) {
    case kRequestPort:
      return "Request port";
    case kPortLimits:
      return "Limits of the request port";
    case kMemory:
      return "Memory";
    case kEviction:
      return "Eviction and lifetimes";
    case kThreads:
      return "Threads";
    case kHttp:
      return "HTTP";
    case kGeneral:
      return "General";
    case kMetrics:
      return "Metrics and logs";
    case kEngine:
      return "Engines";
    case kL2:
      return "L2 stores";
    case kOtherL1:
      return "Other kinds of L1";
    case kPeers:
      return "Peers";
    case kCoordinator:
      return "Coordinator";
    case kTrace:
      return "Recordings";
    case kPlugins:
      return "Plugins";
  }
  LARDER_UNREACHABLE();
}

}  // namespace larder::config
