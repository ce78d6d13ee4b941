#include "traces.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <utility>

namespace larder::bench {
namespace {

constexpr double kHour = 3600;
constexpr double kTraceSeconds = 3 * kHour;

// Where a text has got to: the last full chunk, and the tokens of the one that is not full yet.
struct Text {
  std::uint32_t node = kRoot;
  std::uint32_t rest = 0;
};

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : random_(seed) {}

  bool chance(double probability) { return uniform() < probability; }

  double uniform() { return std::uniform_real_distribution<double>(0, 1)(random_); }

  double uniform(double from, double to) { return from + (to - from) * uniform(); }

  std::uint32_t whole(std::uint32_t from, std::uint32_t to) {
    return std::uniform_int_distribution<std::uint32_t>(from, to)(random_);
  }

  double lognormal(double median, double sigma) {
    return median * std::exp(sigma * std::normal_distribution<double>()(random_));
  }

  std::uint32_t tokens(double median, double sigma, double most) {
    return static_cast<std::uint32_t>(std::clamp(lognormal(median, sigma), 1.0, most));
  }

  // 1, 2, ... with the given mean.
  std::uint32_t geometric(double mean) {
    return 1 + std::geometric_distribution<std::uint32_t>(1 / mean)(random_);
  }

 private:
  std::mt19937_64 random_;
};

// Which of many: the first often, the last seldom.
class Zipf {
 public:
  Zipf(std::uint32_t count, double exponent) {
    double sum = 0;
    for (std::uint32_t i = 1; i <= count; ++i) {
      sum += std::pow(i, -exponent);
      sums_.push_back(sum);
    }
  }

  std::uint32_t pick(Dice& dice) const {
    const double at = dice.uniform() * sums_.back();
    return static_cast<std::uint32_t>(std::upper_bound(sums_.begin(), sums_.end(), at) -
                                      sums_.begin());
  }

 private:
  std::vector<double> sums_;
};

class Author {
 public:
  explicit Author(std::uint64_t seed) : dice_(seed) { trace_.parents.push_back(kRoot); }

  void chat(std::uint32_t sessions);
  void rag(std::uint32_t questions);
  void agent(std::uint32_t tasks);
  void scan(std::uint32_t requests);

  Trace finish() {
    std::stable_sort(trace_.requests.begin(),
                     trace_.requests.end(),
                     [](const Request& a, const Request& b) { return a.arrival_s < b.arrival_s; });
    return std::move(trace_);
  }

 private:
  Text write(Text text, std::uint32_t tokens) {
    text.rest += tokens;
    for (; text.rest >= kChunkTokens; text.rest -= kChunkTokens) {
      trace_.parents.push_back(text.node);
      text.node = static_cast<std::uint32_t>(trace_.parents.size() - 1);
    }
    return text;
  }

  std::vector<Text> shared_prompts(std::uint32_t count, std::uint32_t least, std::uint32_t most) {
    std::vector<Text> prompts;
    for (std::uint32_t i = 0; i < count; ++i) {
      prompts.push_back(write({}, dice_.whole(least, most)));
    }
    return prompts;
  }

  // Asks with the text as it is, and goes on with an answer. Returns when that was finished.
  double ask(Text& text, double at_s, std::uint32_t answer_tokens) {
    constexpr double kSecondsPerToken = 0.02;
    const Text asked = text;
    text = write(text, answer_tokens);
    const double finish_s = at_s + 0.5 + kSecondsPerToken * answer_tokens;
    trace_.requests.push_back({at_s, finish_s, asked.node, text.node});
    return finish_s;
  }

  Dice dice_;
  Trace trace_;
};

// People in conversations: many leave after one question, some stay for long, some come back after
// a break.
void Author::chat(std::uint32_t sessions) {
  const std::vector<Text> systems = shared_prompts(20, 400, 4000);
  const Zipf popularity(static_cast<std::uint32_t>(systems.size()), 1.0);
  for (std::uint32_t session = 0; session < sessions; ++session) {
    Text text = systems[popularity.pick(dice_)];
    double now_s = dice_.uniform(0, kTraceSeconds);
    const std::uint32_t turns = dice_.chance(0.4) ? 1 : dice_.geometric(7);
    for (std::uint32_t turn = 0; turn < turns && now_s < kTraceSeconds; ++turn) {
      text = write(text, dice_.tokens(120, 1.2, 8000));
      now_s = ask(text, now_s, dice_.tokens(300, 0.8, 2000));
      now_s += dice_.chance(0.06) ? dice_.lognormal(1200, 0.7) : dice_.lognormal(40, 1.1);
    }
  }
}

// Questions about documents: some are wanted often, in any combination; now and then a second
// question about the same ones.
void Author::rag(std::uint32_t questions) {
  const Text instructions = write({}, 700);
  const Zipf popularity(1500, 0.9);
  std::vector<std::uint32_t> tokens;
  for (std::uint32_t document = 0; document < 1500; ++document) {
    tokens.push_back(dice_.tokens(900, 0.6, 4000));
  }
  // A document is the same text only behind the same text, so it has one node behind each.
  std::map<std::pair<std::uint32_t, std::uint32_t>, Text> placed;
  for (std::uint32_t question = 0; question < questions; ++question) {
    Text text = instructions;
    const std::uint32_t count = dice_.whole(2, 5);
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::uint32_t document = popularity.pick(dice_);
      const auto [place, is_new] = placed.try_emplace({text.node, document});
      if (is_new) {
        place->second = write(text, tokens[document]);
      }
      text = place->second;
    }
    double now_s = dice_.uniform(0, kTraceSeconds);
    for (bool more = true; more; more = dice_.chance(0.25)) {
      text = write(text, dice_.tokens(60, 0.6, 500));
      now_s = ask(text, now_s, dice_.tokens(200, 0.6, 1000)) + dice_.lognormal(30, 1);
    }
  }
}

// Programs that call tools in a loop: the prompt grows at every step, steps are retried, and some
// tasks split into several that go on from the same point.
void Author::agent(std::uint32_t tasks) {
  const std::vector<Text> tools = shared_prompts(6, 2000, 8000);
  const Zipf popularity(static_cast<std::uint32_t>(tools.size()), 0.8);
  for (std::uint32_t task = 0; task < tasks; ++task) {
    const Text start = write(tools[popularity.pick(dice_)], dice_.tokens(1500, 0.8, 8000));
    const double start_s = dice_.uniform(0, kTraceSeconds);
    const std::uint32_t branches = dice_.chance(0.15) ? dice_.whole(2, 4) : 1;
    for (std::uint32_t branch = 0; branch < branches; ++branch) {
      std::vector<Text> steps = {start};
      double now_s = start_s + 2.0 * branch;
      const std::uint32_t count = dice_.chance(0.2) ? dice_.whole(1, 3) : dice_.geometric(14);
      for (std::uint32_t step = 0; step < count && now_s < kTraceSeconds; ++step) {
        if (dice_.chance(0.06) && steps.size() > 2) {
          steps.resize(steps.size() - dice_.whole(1, 2));  // that led nowhere: back, and again
        }
        Text text = write(steps.back(), dice_.tokens(350, 1.3, 12000));
        now_s = ask(text, now_s, dice_.tokens(150, 0.8, 2000));
        steps.push_back(text);
        now_s += dice_.chance(0.05) ? dice_.lognormal(300, 0.8) : dice_.lognormal(5, 1.0);
      }
    }
  }
}

// Batch jobs that send long prompts once, in bursts, beside questions behind shared prompts.
void Author::scan(std::uint32_t requests) {
  const std::vector<Text> shared = shared_prompts(60, 2000, 10000);
  const Zipf popularity(static_cast<std::uint32_t>(shared.size()), 0.7);
  constexpr std::uint32_t kBursts = 12;
  std::vector<double> bursts_s;
  for (std::uint32_t i = 0; i < kBursts; ++i) {
    bursts_s.push_back(dice_.uniform(0, kTraceSeconds));
  }
  for (std::uint32_t request = 0; request < requests; ++request) {
    const bool once = dice_.chance(0.3);
    const double at_s = once ? bursts_s[dice_.whole(0, kBursts - 1)] + dice_.uniform(0, 400)
                             : dice_.uniform(0, kTraceSeconds);
    Text text = once ? write({}, dice_.tokens(9000, 0.6, 60000))
                     : write(shared[popularity.pick(dice_)], dice_.tokens(150, 0.8, 2000));
    ask(text, at_s, dice_.tokens(150, 0.6, 1000));
  }
}

}  // namespace

std::vector<std::uint32_t> Trace::path(std::uint32_t node) const {
  std::vector<std::uint32_t> nodes;
  for (; node != kRoot; node = parents[node]) {
    nodes.push_back(node);
  }
  std::reverse(nodes.begin(), nodes.end());
  return nodes;
}

std::size_t Trace::working_set() const {
  std::vector<double> stored_s(parents.size(), -1);
  std::vector<double> asked_s(parents.size(), -1);  // the last time
  for (const Request& request : requests) {
    for (const std::uint32_t node : path(request.asked)) {
      asked_s[node] = request.arrival_s;
    }
    for (const std::uint32_t node : path(request.generated)) {
      stored_s[node] = stored_s[node] < 0 ? request.finish_s : stored_s[node];
    }
  }
  std::vector<std::pair<double, int>> changes;
  for (std::size_t node = kRoot + 1; node < parents.size(); ++node) {
    if (stored_s[node] >= 0 && asked_s[node] > stored_s[node]) {
      changes.emplace_back(stored_s[node], 1);
      changes.emplace_back(asked_s[node], -1);
    }
  }
  std::sort(changes.begin(), changes.end());
  std::ptrdiff_t now = 0;
  std::ptrdiff_t most = 0;
  for (const auto& [at_s, change] : changes) {
    now += change;
    most = std::max(most, now);
  }
  return static_cast<std::size_t>(most);
}

Trace make_trace(std::string_view name, std::uint64_t seed) {
  Author author(seed);
  const bool all = name == "mix";
  if (name == "chat" || all) {
    author.chat(all ? 1200 : 3000);
  }
  if (name == "rag" || all) {
    author.rag(all ? 800 : 4000);
  }
  if (name == "agent" || all) {
    author.agent(all ? 300 : 900);
  }
  if (name == "scan" || all) {
    author.scan(all ? 700 : 3000);
  }
  return author.finish();
}

}  // namespace larder::bench
