// Which eviction policy keeps the chunks that are asked for again: plays made-up traces (traces.h)
// to the real index with the real policies, and prints the share of tokens that lookups found, as a
// table of Markdown.
//
//   eviction_sim [--policies LRU,Learned+selective] [--traces chat,scan] [--seeds 3]
//
// A policy with "+selective" plays with selective admission. A request is what the server sees of
// one: a lookup pins what it finds, a moment later the pins go, and at the end the whole text is
// stored and counts as used. The pool is a share of the trace's working set; the last column is a
// pool without end. The first tenth of a trace only warms the cache.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <queue>
#include <string>
#include <vector>

#include "cache/cache_index.h"
#include "cache/eviction_policy.h"
#include "metrics/metrics.h"
#include "pool/pool.h"
#include "traces.h"

namespace larder::bench {
namespace {

constexpr std::size_t kObjectBytes = 64;  // only room counts, so chunks may be small
constexpr double kWarmup = 0.1;
constexpr double kPinSeconds = 0.3;  // from a lookup to the end of its retrieve
constexpr std::array<double, 3> kPoolShares = {0.10, 0.25, 0.50};

struct Setup {
  std::string policy;
  cache::Admission admission = cache::Admission::kAll;
};

Setup setup_of(const std::string& name) {
  const std::size_t plus = name.find('+');
  return {name.substr(0, plus),
          plus == std::string::npos ? cache::Admission::kAll : cache::Admission::kSelective};
}

std::unique_ptr<pool::Pool> make_pool(std::size_t chunks) {
  pool::PoolConfig config;
  config.bytes = chunks * kObjectBytes;
  config.align_bytes = kObjectBytes;
  config.private_memory = true;
  return pool::Pool::create(config).value();
}

// One trace with one policy and one size of pool.
class Run {
 public:
  Run(const Trace& trace, const Setup& setup, std::size_t chunks)
      : trace_(trace),
        pool_(make_pool(chunks)),
        index_(*pool_, cache::make_eviction_policy(setup.policy), metrics_, setup.admission) {}

  // Of the tokens asked for, those found.
  double percent() {
    const auto requests = static_cast<double>(trace_.requests.size());
    const auto warm = static_cast<std::size_t>(kWarmup * requests);
    for (std::size_t i = 0; i < trace_.requests.size(); ++i) {
      finish_until(trace_.requests[i].arrival_s);
      look_up(trace_.requests[i], i >= warm);
      open_.push({trace_.requests[i].finish_s, i});
    }
    pins_.clear();
    return 100 * static_cast<double>(found_) / static_cast<double>(asked_);
  }

 private:
  struct Open {
    double finish_s;
    std::size_t request;

    bool operator>(const Open& other) const { return finish_s > other.finish_s; }
  };

  struct Pin {
    double until_s;
    cache::ReadLease lease;
  };

  std::vector<keys::ChunkHash> hashes(std::uint32_t node) const {
    std::vector<keys::ChunkHash> hashes;
    for (const std::uint32_t chunk : trace_.path(node)) {
      const std::uint64_t mixed = (chunk + 1) * 0x9e3779b97f4a7c15ULL;
      keys::ChunkHash hash;
      std::memcpy(hash.bytes.data(), &mixed, sizeof(mixed));
      hashes.push_back(hash);
    }
    return hashes;
  }

  void look_up(const Request& request, bool counts) {
    const std::vector<keys::ChunkHash> prompt = hashes(request.asked);
    cache::PrefixLookup found = index_.acquire_prefix({&needed_, 1}, prompt, {&rank_, 1});
    if (counts) {
      asked_ += prompt.size();
      found_ += found.chunks;
    }
    pins_.push_back({request.arrival_s + kPinSeconds, std::move(found.lease)});
  }

  void finish_until(double now_s) {
    while (!open_.empty() && open_.top().finish_s <= now_s) {
      const Open done = open_.top();
      open_.pop();
      drop_pins(done.finish_s);
      const std::vector<keys::ChunkHash> text = hashes(trace_.requests[done.request].generated);
      auto lease =
          index_.reserve(needed_.space, {text, 0, rank_}, [](const auto&) { return false; });
      if (lease) {
        static_cast<void>(lease->commit());
      }
      index_.touch({&needed_, 1}, text, {&rank_, 1});
    }
    drop_pins(now_s);
  }

  void drop_pins(double now_s) {
    while (!pins_.empty() && pins_.front().until_s <= now_s) {
      pins_.pop_front();
    }
  }

  const Trace& trace_;
  const cache::NeededSpace needed_{
      {"model", "", tensors::Layout{tensors::Dtype::kUint8, {std::int64_t{kObjectBytes}}}},
      std::nullopt,
      0};
  const std::uint32_t rank_ = keys::pack_kv_rank(1, 0);
  std::unique_ptr<pool::Pool> pool_;
  metrics::Registry metrics_;
  cache::CacheIndex index_;
  std::priority_queue<Open, std::vector<Open>, std::greater<>> open_;
  std::deque<Pin> pins_;
  std::uint64_t asked_ = 0;
  std::uint64_t found_ = 0;
};

std::vector<std::string> words(const std::string& list) {
  std::vector<std::string> words;
  for (std::size_t from = 0; from <= list.size();) {
    const std::size_t end = std::min(list.find(',', from), list.size());
    words.push_back(list.substr(from, end - from));
    from = end + 1;
  }
  return words;
}

// The mean over all seeds. share: of the working set; 0 for a pool without end.
double mean_percent(const std::vector<Trace>& traces, const std::string& policy, double share) {
  double sum = 0;
  for (const Trace& trace : traces) {
    const double chunks =
        share == 0 ? trace.chunks() + 1.0 : share * static_cast<double>(trace.working_set());
    sum += Run(trace, setup_of(policy), static_cast<std::size_t>(chunks)).percent();
  }
  return sum / static_cast<double>(traces.size());
}

void print_rows(const std::string& name,
                const std::vector<Trace>& traces,
                const std::vector<std::string>& policies) {
  const double endless = mean_percent(traces, "LRU", 0);
  for (const double share : kPoolShares) {
    fmt::print("| {} | {:.0f} % |", name, 100 * share);
    for (const std::string& policy : policies) {
      fmt::print(" {:.1f} |", mean_percent(traces, policy, share));
    }
    fmt::print(" {:.1f} |\n", endless);
    std::fflush(stdout);
  }
}

int play(std::map<std::string, std::string> given) {
  const std::vector<std::string> policies = words(given["--policies"]);
  const std::vector<std::string> names = words(given["--traces"]);
  for (const std::string& policy : policies) {
    if (cache::make_eviction_policy(setup_of(policy).policy) == nullptr) {
      fmt::print(stderr, "there is no policy '{}'\n", policy);
      return 2;
    }
  }
  for (const std::string& name : names) {
    if (std::find(kTraceNames.begin(), kTraceNames.end(), name) == kTraceNames.end()) {
      fmt::print(stderr, "there is no trace '{}'\n", name);
      return 2;
    }
  }
  fmt::print("| trace | pool | {} | endless |\n", fmt::join(policies, " | "));
  fmt::print("|---|---|");
  for (std::size_t column = 0; column <= policies.size(); ++column) {
    fmt::print("---|");
  }
  fmt::print("\n");
  const auto seeds = std::strtoull(given["--seeds"].c_str(), nullptr, 10);
  for (const std::string& name : names) {
    std::vector<Trace> traces;
    for (std::uint64_t seed = 1; seed <= std::max<std::uint64_t>(seeds, 1); ++seed) {
      traces.push_back(make_trace(name, seed));
    }
    print_rows(name, traces, policies);
  }
  return 0;
}

}  // namespace
}  // namespace larder::bench

int main(int argc, char** argv) {
  std::map<std::string, std::string> given = {
      {"--policies", "noop,LRU,IsolatedLRU,ARC,Learned,Learned+selective"},
      {"--traces", "chat,rag,agent,scan,mix"},
      {"--seeds", "3"}};
  for (int i = 1; i + 1 < argc; i += 2) {
    if (given.find(argv[i]) == given.end()) {
      fmt::print(stderr, "there is no flag '{}'\n", argv[i]);
      return 2;
    }
    given[argv[i]] = argv[i + 1];
  }
  return larder::bench::play(std::move(given));
}
