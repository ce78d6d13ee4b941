#include "metrics/metrics.h"

#include <algorithm>
#include <map>
#include <optional>

#include "base/check.h"
#include "base/mutex.h"
#include "metrics/resource_usage.h"
#include "metrics/text_page.h"

namespace larder::metrics {
namespace {

constexpr std::string_view kOverflowValue = "other";

// A longer label value counts as "other": peers choose some of them, and a frame may be megabytes.
constexpr std::size_t kLabelValueBytesMax = 1024;

class Family {
 public:
  explicit Family(FamilyName family) : family_(std::move(family)) {}

  Family(const Family&) = delete;
  Family& operator=(const Family&) = delete;
  virtual ~Family() = default;

  const FamilyName& family() const { return family_; }

  virtual void append_to(std::string& page) const = 0;

 private:
  const FamilyName family_;
};

class SingleCounter final : public Family {
 public:
  using Family::Family;

  Counter& counter() { return counter_; }

  void append_to(std::string& page) const override {
    append_header(page, family(), "counter");
    append_sample(page, family().name, {}, counter_.value());
  }

 private:
  Counter counter_;
};

class Gauge final : public Family {
 public:
  Gauge(FamilyName family, std::function<double()> read)
      : Family(std::move(family)), read_(std::move(read)) {}

  void append_to(std::string& page) const override {
    append_header(page, family(), "gauge");
    append_sample(page, family().name, {}, read_());
  }

 private:
  const std::function<double()> read_;
};

// The form in which equal label sets are equal and can be printed: sorted by name, values made
// readable.
Labels normalized(const Labels& labels) {
  Labels result;
  result.reserve(labels.size());
  for (const auto& [name, value] : labels) {
    LARDER_CHECK(is_label_name(name));
    const bool fits = value.size() <= kLabelValueBytesMax;
    result.emplace_back(name, fits ? scrapable(value) : std::string(kOverflowValue));
  }
  std::sort(result.begin(), result.end());
  const auto same_name = [](const auto& a, const auto& b) { return a.first == b.first; };
  LARDER_CHECK(std::adjacent_find(result.begin(), result.end(), same_name) == result.end());
  return result;
}

class LabelledCounters final : public Family, public CounterFamily {
 public:
  using Family::Family;

  Counter& with(const Labels& labels) override {
    Labels key = normalized(labels);
    MutexLock lock(mutex_);
    const auto known = series_.find(key);
    if (known != series_.end()) {
      return *known->second;
    }
    if (series_.size() >= Registry::kSeriesMax) {
      // Label names come from the code, so this adds one series per way of labelling at most.
      for (auto& [name, value] : key) {
        value = kOverflowValue;
      }
    }
    auto& counter = series_[std::move(key)];
    if (counter == nullptr) {
      counter = std::make_unique<Counter>();
    }
    return *counter;
  }

  void append_to(std::string& page) const override {
    append_header(page, family(), "counter");
    MutexLock lock(mutex_);
    for (const auto& [labels, counter] : series_) {
      append_sample(page, family().name, labels, counter->value());
    }
  }

 private:
  mutable Mutex mutex_;
  std::map<Labels, std::unique_ptr<Counter>> series_ LARDER_GUARDED_BY(mutex_);
};

}  // namespace

struct Registry::State {
  mutable Mutex mutex;
  std::vector<std::unique_ptr<Family>> families LARDER_GUARDED_BY(mutex);  // only ever grows
  const std::optional<double> started = start_seconds();

  Family* find(std::string_view name) LARDER_REQUIRES(mutex) {
    const auto named = [name](const auto& family) { return family->family().name == name; };
    const auto found = std::find_if(families.begin(), families.end(), named);
    return found == families.end() ? nullptr : found->get();
  }

  // The counters of either kind with this name; made when there are none.
  template <typename Kind>
  Kind& counters(std::string_view name, std::string_view help) LARDER_EXCLUDES(mutex) {
    LARDER_CHECK(name.ends_with("_total"));
    MutexLock lock(mutex);
    if (Family* known = find(name)) {
      auto* same_kind = dynamic_cast<Kind*>(known);
      LARDER_CHECK(same_kind != nullptr);
      return *same_kind;
    }
    auto made = std::make_unique<Kind>(named(name, help));
    Kind& result = *made;
    families.push_back(std::move(made));
    return result;
  }

  static FamilyName named(std::string_view name, std::string_view help) {
    LARDER_CHECK(is_metric_name(name));
    LARDER_CHECK(!name.starts_with("process_"));
    return {std::string(name), std::string(help)};
  }
};

Registry::Registry() : state_(std::make_unique<State>()) {}

Registry::~Registry() = default;

Counter& Registry::counter(std::string_view name, std::string_view help) {
  return state_->counters<SingleCounter>(name, help).counter();
}

CounterFamily& Registry::counter_family(std::string_view name, std::string_view help) {
  return state_->counters<LabelledCounters>(name, help);
}

void Registry::gauge(std::string_view name, std::string_view help, std::function<double()> read) {
  LARDER_CHECK(read != nullptr);
  auto made = std::make_unique<Gauge>(State::named(name, help), std::move(read));
  MutexLock lock(state_->mutex);
  LARDER_CHECK(state_->find(name) == nullptr);
  state_->families.push_back(std::move(made));
}

std::string Registry::page() const {
  std::vector<const Family*> families;
  {
    // Gauges call into other rooms; no lock is held while they do.
    MutexLock lock(state_->mutex);
    for (const auto& family : state_->families) {
      families.push_back(family.get());
    }
  }
  std::string page;
  for (const Family* family : families) {
    family->append_to(page);
  }
  append_resource_usage(page, state_->started);
  return page;
}

}  // namespace larder::metrics
