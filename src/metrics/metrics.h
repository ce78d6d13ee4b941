// metrics.h - counters, gauges and the Prometheus text page.
//
// Rooms get a Registry& and keep the Counter& they were given; counting is one relaxed atomic add.
// A series without labels shows from the start as 0; a family with labels shows only HELP and TYPE
// until its first label set is used. Gauges are read through a callback at scrape time, on the HTTP
// thread: callbacks must not take locks of the data path. Names follow LMCache's (docs/metrics.md).
// Thread-safe. The registry outlives everything that counts.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace larder::metrics {

class Counter {
 public:
  void add(std::uint64_t amount = 1) { value_.fetch_add(amount, std::memory_order_relaxed); }

  std::uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

using Labels = std::vector<std::pair<std::string, std::string>>;  // name, value; values are escaped
                                                                  // on the page

// Counters that differ in their labels. At most series_max label sets; what comes after is counted
// together under the label values "other", so that peers cannot grow the page by inventing names.
class CounterFamily {
 public:
  CounterFamily(const CounterFamily&) = delete;
  CounterFamily& operator=(const CounterFamily&) = delete;
  virtual ~CounterFamily() = default;

  // The returned counter lives as long as the registry. Takes a lock: keep the reference where it
  // is hot.
  virtual Counter& with(const Labels& labels) = 0;

 protected:
  CounterFamily() = default;
};

class Registry {
 public:
  static constexpr std::size_t kSeriesMax = 1000;

  Registry();
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;
  ~Registry();

  // `name` as on the page; a counter's ends in "_total". A name that is already there returns the
  // same object (its kind must agree: a bug otherwise).
  Counter& counter(std::string_view name, std::string_view help);
  CounterFamily& counter_family(std::string_view name, std::string_view help);

  // `read` is called at each scrape until the registry is destroyed.
  void gauge(std::string_view name, std::string_view help, std::function<double()> read);

  // The whole page, families in order of registration, with process_* families at the end.
  std::string page() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace larder::metrics
