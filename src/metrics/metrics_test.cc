// Goal: the page is one that a strict scraper accepts, and its numbers are the ones that were
// counted. Method: a small parser of the text format 0.0.4 that refuses everything the format does
// not allow reads each page; values, label sets and order are compared with what was registered.
// Bugs (clashing kinds, bad names) are death tests.
#include "metrics/metrics.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <stdexcept>
#include <thread>

#include "base/test_random.h"
#include "metrics/resource_usage.h"
#include "metrics/text_page.h"

namespace larder::metrics {
namespace {

struct Sample {
  std::map<std::string, std::string> labels;
  std::string number;  // as printed
};

struct ParsedFamily {
  std::string help;
  std::string type;
  std::vector<Sample> samples;
};

// Reads a whole page; what() of the thrown error names the line. Stricter than Prometheus: HELP and
// TYPE must both be there, once, in front of the samples, which must stand together.
class Page {
 public:
  explicit Page(std::string_view text) {
    if (text.empty() || text.back() != '\n') {
      throw std::runtime_error("no line feed at the end");
    }
    while (!text.empty()) {
      const std::size_t end = text.find('\n');
      read_line(text.substr(0, end));
      text.remove_prefix(end + 1);
    }
  }

  const std::vector<std::string>& names() const { return names_; }

  bool has(const std::string& name) const { return families_.count(name) == 1; }

  const ParsedFamily& family(const std::string& name) const { return families_.at(name); }

  // The number of the only sample with these labels, as printed.
  std::string number(const std::string& name,
                     const std::map<std::string, std::string>& labels = {}) const {
    for (const Sample& sample : family(name).samples) {
      if (sample.labels == labels) {
        return sample.number;
      }
    }
    return "absent";
  }

 private:
  static void demand(bool condition, std::string_view line) {
    if (!condition) {
      throw std::runtime_error("bad line: " + std::string(line));
    }
  }

  static bool take(std::string_view& text, std::string_view prefix) {
    if (!text.starts_with(prefix)) {
      return false;
    }
    text.remove_prefix(prefix.size());
    return true;
  }

  static std::string take_name(std::string_view& text) {
    std::size_t length = 0;
    while (length < text.size() && (std::isalnum(static_cast<unsigned char>(text[length])) != 0 ||
                                    text[length] == '_' || text[length] == ':')) {
      ++length;
    }
    std::string name(text.substr(0, length));
    text.remove_prefix(length);
    return name;
  }

  static std::string unescape(std::string_view text, bool quoted, std::string_view line) {
    std::string result;
    for (std::size_t i = 0; i < text.size(); ++i) {
      demand(!(quoted && text[i] == '"'), line);
      if (text[i] != '\\') {
        result += text[i];
        continue;
      }
      ++i;
      demand(i < text.size(), line);
      demand(text[i] == '\\' || text[i] == 'n' || (quoted && text[i] == '"'), line);
      result += text[i] == 'n' ? '\n' : text[i];
    }
    return result;
  }

  static std::string take_quoted(std::string_view& text, std::string_view line) {
    demand(take(text, "\""), line);
    std::size_t end = 0;
    while (end < text.size() && text[end] != '"') {
      end += text[end] == '\\' ? 2U : 1U;
    }
    demand(end < text.size(), line);
    std::string value = unescape(text.substr(0, end), true, line);
    text.remove_prefix(end + 1);
    return value;
  }

  void read_line(std::string_view line) {
    demand(line.find('\0') == std::string_view::npos, line);
    std::string_view rest = line;
    if (take(rest, "# HELP ")) {
      const std::string name = take_name(rest);
      demand(!name.empty() && take(rest, " ") && !has(name), line);
      families_[name].help = unescape(rest, false, line);
      names_.push_back(name);
      return;
    }
    if (take(rest, "# TYPE ")) {
      const std::string name = take_name(rest);
      demand(!names_.empty() && name == names_.back() && take(rest, " "), line);
      ParsedFamily& family = families_[name];
      demand(family.type.empty() && (rest == "counter" || rest == "gauge"), line);
      demand(rest != "counter" || name.ends_with("_total"), line);
      family.type = rest;
      return;
    }
    read_sample(line);
  }

  void read_sample(std::string_view line) {
    std::string_view rest = line;
    const std::string name = take_name(rest);
    demand(!names_.empty() && name == names_.back() && !families_[name].type.empty(), line);
    Sample sample;
    if (take(rest, "{")) {
      do {
        const std::string label = take_name(rest);
        demand(!label.empty() && take(rest, "="), line);
        demand(sample.labels.emplace(label, take_quoted(rest, line)).second, line);
      } while (take(rest, ","));
      demand(take(rest, "}"), line);
    }
    demand(take(rest, " "), line);
    sample.number = rest;
    char* end = nullptr;
    std::strtod(sample.number.c_str(), &end);
    demand(end == sample.number.c_str() + sample.number.size() && !sample.number.empty(), line);
    for (const Sample& other : families_[name].samples) {
      demand(other.labels != sample.labels, line);
    }
    families_[name].samples.push_back(std::move(sample));
  }

  std::map<std::string, ParsedFamily> families_;
  std::vector<std::string> names_;
};

TEST(Registry, ShowsACounterWithoutLabelsFromTheStartAsZero) {
  Registry registry;
  registry.counter("larder_transport_messages_total", "Messages that arrived.");
  const Page page(registry.page());
  EXPECT_EQ(page.family("larder_transport_messages_total").type, "counter");
  EXPECT_EQ(page.family("larder_transport_messages_total").help, "Messages that arrived.");
  EXPECT_EQ(page.number("larder_transport_messages_total"), "0.0");
}

TEST(Registry, ShowsAFamilyWithLabelsWithoutSeriesUntilItsFirstUse) {
  Registry registry;
  CounterFamily& family = registry.counter_family("larder_requests_total", "Requests.");
  EXPECT_TRUE(Page(registry.page()).family("larder_requests_total").samples.empty());
  family.with({{"operation", "LOOKUP"}}).add(2);
  EXPECT_EQ(Page(registry.page()).number("larder_requests_total", {{"operation", "LOOKUP"}}),
            "2.0");
}

TEST(Registry, PrintsTheExactLinesOfTheTextFormat) {
  Registry registry;
  registry.counter("a_total", "A.").add(2);
  CounterFamily& family = registry.counter_family("b_total", "Back\\slash\nand line.");
  family.with({{"y", "1"}, {"x", "say \"hi\"\\\n"}}).add(3);
  family.with({}).add(4);
  registry.gauge("c_ratio", "C.", [] { return 0.25; });
  const std::string page = registry.page();
  EXPECT_EQ(page.substr(0, page.find("# HELP process_")),
            "# HELP a_total A.\n"
            "# TYPE a_total counter\n"
            "a_total 2.0\n"
            "# HELP b_total Back\\\\slash\\nand line.\n"
            "# TYPE b_total counter\n"
            "b_total 4.0\n"
            "b_total{x=\"say \\\"hi\\\"\\\\\\n\",y=\"1\"} 3.0\n"
            "# HELP c_ratio C.\n"
            "# TYPE c_ratio gauge\n"
            "c_ratio 0.25\n");
}

TEST(Registry, KeepsTheOrderOfRegistrationAndPutsTheServersOwnUsageLast) {
  Registry registry;
  registry.counter("z_total", "Z.");
  registry.gauge("m_bytes", "M.", [] { return 1.0; });
  registry.counter_family("a_total", "A.");
  EXPECT_EQ(Page(registry.page()).names(),
            (std::vector<std::string>{"z_total",
                                      "m_bytes",
                                      "a_total",
                                      "process_virtual_memory_bytes",
                                      "process_resident_memory_bytes",
                                      "process_start_time_seconds",
                                      "process_cpu_seconds_total",
                                      "process_open_fds",
                                      "process_max_fds"}));
}

TEST(Registry, PrintsSeriesInTheSameOrderWhicheverWasUsedFirst) {
  Registry one;
  one.counter_family("a_total", "A.").with({{"model", "x"}});
  one.counter_family("a_total", "A.").with({{"model", "b"}});
  Registry two;
  two.counter_family("a_total", "A.").with({{"model", "b"}});
  two.counter_family("a_total", "A.").with({{"model", "x"}});
  const auto own_part = [](const std::string& page) {
    return page.substr(0, page.find("process_"));
  };
  EXPECT_EQ(own_part(one.page()), own_part(two.page()));
}

TEST(Registry, ReturnsTheSameCounterForTheSameName) {
  Registry registry;
  Counter& first = registry.counter("a_total", "A.");
  EXPECT_EQ(&first, &registry.counter("a_total", "another help text"));
  CounterFamily& family = registry.counter_family("b_total", "B.");
  EXPECT_EQ(&family, &registry.counter_family("b_total", "B."));
  EXPECT_EQ(Page(registry.page()).family("a_total").help, "A.");
}

TEST(Registry, PrintsLargeCountsExactly) {
  Registry registry;
  Counter& counter = registry.counter("a_total", "A.");
  counter.add((std::uint64_t{1} << 53) - 1);
  EXPECT_EQ(Page(registry.page()).number("a_total"), "9007199254740991.0");
  counter.add(2);
  EXPECT_EQ(Page(registry.page()).number("a_total"), "9007199254740993.0");
}

TEST(Registry, PrintsGaugesAsFloats) {
  const std::vector<std::pair<double, std::string>> cases = {
      {0.0, "0.0"},
      {-0.0, "0.0"},
      {2.0, "2.0"},
      {-3.0, "-3.0"},
      {0.1, "0.1"},
      {2.5e9, "2500000000.0"},
      {9007199254740992.0, "9007199254740992.0"},
      {1e300, "1e+300"},
      {1.5e-7, "1.5e-07"},
      {std::nan(""), "NaN"},
      {std::numeric_limits<double>::infinity(), "+Inf"},
      {-std::numeric_limits<double>::infinity(), "-Inf"},
  };
  for (const auto& [value, text] : cases) {
    Registry registry;
    registry.gauge("a_ratio", "A.", [value = value] { return value; });
    EXPECT_EQ(Page(registry.page()).number("a_ratio"), text);
  }
}

TEST(Registry, ReadsAGaugeAtEachScrape) {
  Registry registry;
  double level = 1;
  registry.gauge("a_bytes", "A.", [&level] { return level; });
  EXPECT_EQ(Page(registry.page()).number("a_bytes"), "1.0");
  level = 7;
  EXPECT_EQ(Page(registry.page()).number("a_bytes"), "7.0");
}

TEST(Registry, LetsAGaugeRegisterAndCountWhileThePageIsWritten) {
  Registry registry;
  registry.gauge("a_bytes", "A.", [&registry] {
    registry.counter("scrapes_total", "Scrapes.").add();
    return 1.0;
  });
  registry.page();
  EXPECT_EQ(Page(registry.page()).number("scrapes_total"), "2.0");
}

TEST(Registry, CountsFromManyThreadsWithoutLosingOne) {
  Registry registry;
  constexpr int kThreads = 4;
  constexpr int kRounds = 5000;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&registry] {
      Counter& counter = registry.counter("a_total", "A.");
      CounterFamily& family = registry.counter_family("b_total", "B.");
      for (int i = 0; i < kRounds; ++i) {
        counter.add();
        family.with({{"slot", std::to_string(i % 10)}}).add(2);
      }
    });
  }
  for (int i = 0; i < 20; ++i) {
    EXPECT_NO_THROW(Page{registry.page()});
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  const Page page(registry.page());
  EXPECT_EQ(page.number("a_total"), "20000.0");
  EXPECT_EQ(page.number("b_total", {{"slot", "3"}}), "4000.0");
}

TEST(CounterFamily, TreatsLabelsInAnyOrderAsTheSameSeries) {
  Registry registry;
  CounterFamily& family = registry.counter_family("a_total", "A.");
  EXPECT_EQ(&family.with({{"x", "1"}, {"y", "2"}}), &family.with({{"y", "2"}, {"x", "1"}}));
  EXPECT_NE(&family.with({{"x", "1"}, {"y", "2"}}), &family.with({{"x", "2"}, {"y", "1"}}));
}

TEST(CounterFamily, KeepsAnEmptyLabelValueAndNoLabelApart) {
  Registry registry;
  CounterFamily& family = registry.counter_family("a_total", "A.");
  family.with({{"cache_salt", ""}}).add(1);
  family.with({}).add(2);
  const Page page(registry.page());
  EXPECT_EQ(page.number("a_total", {{"cache_salt", ""}}), "1.0");
  EXPECT_EQ(page.number("a_total"), "2.0");
}

TEST(CounterFamily, CountsLabelSetsBeyondTheBoundTogether) {
  Registry registry;
  CounterFamily& family = registry.counter_family("a_total", "A.");
  for (std::size_t i = 0; i < Registry::kSeriesMax + 500; ++i) {
    family.with({{"model", "m" + std::to_string(i)}, {"reason", "r"}}).add();
  }
  family.with({{"model", "m3"}, {"reason", "r"}}).add();
  const Page page(registry.page());
  EXPECT_EQ(page.family("a_total").samples.size(), Registry::kSeriesMax + 1);
  EXPECT_EQ(page.number("a_total", {{"model", "other"}, {"reason", "other"}}), "500.0");
  EXPECT_EQ(page.number("a_total", {{"model", "m3"}, {"reason", "r"}}), "2.0");
  EXPECT_EQ(page.number("a_total", {{"model", "m1000"}, {"reason", "r"}}), "absent");
}

TEST(CounterFamily, KeepsItsCountersInPlaceWhileItGrows) {
  Registry registry;
  CounterFamily& family = registry.counter_family("a_total", "A.");
  Counter& first = family.with({{"model", "first"}});
  for (std::size_t i = 0; i < 2 * Registry::kSeriesMax; ++i) {
    family.with({{"model", std::to_string(i)}});
  }
  first.add(5);
  EXPECT_EQ(&family.with({{"model", "first"}}), &first);
  EXPECT_EQ(Page(registry.page()).number("a_total", {{"model", "first"}}), "5.0");
}

TEST(CounterFamily, CountsAnOverlongLabelValueAsOther) {
  Registry registry;
  CounterFamily& family = registry.counter_family("a_total", "A.");
  family.with({{"model", std::string(1 << 20, 'x')}, {"reason", "r"}}).add();
  family.with({{"model", std::string(1025, 'y')}, {"reason", "r"}}).add();
  family.with({{"model", std::string(1024, 'z')}, {"reason", "r"}}).add();
  const Page page(registry.page());
  EXPECT_EQ(page.number("a_total", {{"model", "other"}, {"reason", "r"}}), "2.0");
  EXPECT_EQ(page.number("a_total", {{"model", std::string(1024, 'z')}, {"reason", "r"}}), "1.0");
}

TEST(CounterFamily, MergesLabelValuesThatLookTheSameOnThePage) {
  Registry registry;
  CounterFamily& family = registry.counter_family("a_total", "A.");
  family.with({{"model", "a\xFF"}}).add();
  family.with({{"model", "a\xFE"}}).add();
  EXPECT_EQ(Page(registry.page()).number("a_total", {{"model", "a\xEF\xBF\xBD"}}), "2.0");
}

TEST(CounterFamily, GivesAReadablePageForAnyBytesInLabelValues) {
  std::mt19937_64 random(test_seed());
  Registry registry;
  CounterFamily& family = registry.counter_family("a_total", "A.");
  constexpr std::string_view kHostile("\0\\\"\n\r{},=# \xC3\xA9\xED\xA0\x80", 17);
  std::map<std::string, std::uint64_t> counted;
  for (int i = 0; i < 500; ++i) {
    std::string value;
    const std::size_t length = random() % 12;
    for (std::size_t at = 0; at < length; ++at) {
      value +=
          random() % 2 == 0 ? kHostile[random() % kHostile.size()] : static_cast<char>(random());
    }
    family.with({{"model", value}}).add();
    ++counted[scrapable(value)];
  }
  const Page page(registry.page());
  EXPECT_EQ(page.family("a_total").samples.size(), counted.size());
  for (const auto& [value, count] : counted) {
    EXPECT_EQ(page.number("a_total", {{"model", value}}), std::to_string(count) + ".0");
  }
}

TEST(Scrapable, KeepsValidTextAndReplacesTheRest) {
  const std::string mark = "\xEF\xBF\xBD";
  EXPECT_EQ(scrapable(""), "");
  EXPECT_EQ(scrapable("plain \n\t text"), "plain \n\t text");
  EXPECT_EQ(scrapable("\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80"),
            "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80");
  EXPECT_EQ(scrapable(std::string_view("a\0b", 3)), "a" + mark + "b");
  EXPECT_EQ(scrapable("\x80"), mark);
  EXPECT_EQ(scrapable("\xC3"), mark);
  EXPECT_EQ(scrapable("\xC3("), mark + "(");
  EXPECT_EQ(scrapable("\xC0\xAF"), mark + mark);                        // longer than needed
  EXPECT_EQ(scrapable("\xE0\x80\xAF"), mark + mark + mark);             // longer than needed
  EXPECT_EQ(scrapable("\xED\xA0\x80"), mark + mark + mark);             // half of a surrogate pair
  EXPECT_EQ(scrapable("\xF4\x90\x80\x80"), mark + mark + mark + mark);  // beyond U+10FFFF
  EXPECT_EQ(scrapable("\xF4\x8F\xBF\xBF"), "\xF4\x8F\xBF\xBF");         // U+10FFFF itself
}

double number_of(const Page& page, const std::string& name) {
  return std::strtod(page.number(name).c_str(), nullptr);
}

TEST(ResourceUsage, AgreesWithTheOperatingSystem) {
  Registry registry;
  const Page page(registry.page());
  EXPECT_GT(number_of(page, "process_virtual_memory_bytes"), 1e6);
  EXPECT_GT(number_of(page, "process_resident_memory_bytes"), 1e5);
  EXPECT_LT(number_of(page, "process_resident_memory_bytes"),
            number_of(page, "process_virtual_memory_bytes"));
  EXPECT_GT(number_of(page, "process_start_time_seconds"), 1.5e9);
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_cur != RLIM_INFINITY) {
    EXPECT_EQ(number_of(page, "process_max_fds"), static_cast<double>(limit.rlim_cur));
  }
  EXPECT_EQ(page.family("process_cpu_seconds_total").type, "counter");
  EXPECT_EQ(page.family("process_open_fds").type, "gauge");
}

TEST(ResourceUsage, CountsOpenFilesOneByOne) {
  Registry registry;
  const double before = number_of(Page(registry.page()), "process_open_fds");
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  EXPECT_EQ(number_of(Page(registry.page()), "process_open_fds"), before + 2);
  close(ends[0]);
  close(ends[1]);
  EXPECT_EQ(number_of(Page(registry.page()), "process_open_fds"), before);
}

TEST(ResourceUsage, KeepsTheStartTimeWhileTheServerRuns) {
  Registry registry;
  const std::string first = Page(registry.page()).number("process_start_time_seconds");
  EXPECT_EQ(Page(registry.page()).number("process_start_time_seconds"), first);
}

TEST(ResourceUsage, ReadsAStatLineWhoseProgramNameHoldsSpacesAndBrackets) {
  const auto stat = parse_proc_stat(
      "77 (a ) (b) S 1 2 3 4 5 6 7 8 9 10 100 23 16 17 18 19 20 21 5000 4096000 250 "
      "18446744073709551615\n");
  ASSERT_TRUE(stat.has_value());
  EXPECT_EQ(stat->cpu_ticks, 123);
  EXPECT_EQ(stat->start_ticks, 5000);
  EXPECT_EQ(stat->virtual_bytes, 4096000);
  EXPECT_EQ(stat->resident_pages, 250);
}

TEST(ResourceUsage, RefusesAStatLineOfAnotherForm) {
  EXPECT_FALSE(parse_proc_stat("").has_value());
  EXPECT_FALSE(parse_proc_stat("77 (a) S 1 2 3").has_value());
  EXPECT_FALSE(
      parse_proc_stat("77 (a) S 1 2 3 4 5 6 7 8 9 10 x 23 16 17 18 19 20 21 5000 4096000 250 0")
          .has_value());
}

TEST(ResourceUsage, FindsTheMomentOfBoot) {
  EXPECT_EQ(parse_boot_seconds("cpu 1 2\nbtime 1700000000\nprocs 3\n"), 1.7e9);
  EXPECT_FALSE(parse_boot_seconds("cpu 1 2\n").has_value());
}

TEST(ResourceUsage, LeavesOutAStartTimeThatIsNotKnown) {
  std::string page;
  append_resource_usage(page, std::nullopt);
  EXPECT_FALSE(Page(page).has("process_start_time_seconds"));
}

TEST(RegistryDeathTest, AbortsOnNamesAndKindsThatAreBugs) {
  Registry registry;
  registry.counter("a_total", "A.");
  registry.gauge("g_bytes", "G.", [] { return 0.0; });
  EXPECT_DEATH(registry.counter_family("a_total", "A."), "same_kind");
  EXPECT_DEATH(registry.counter("a_count", "A."), "_total");
  EXPECT_DEATH(registry.counter("9a_total", "A."), "is_metric_name");
  EXPECT_DEATH(registry.counter("a b_total", "A."), "is_metric_name");
  EXPECT_DEATH(registry.gauge("g_bytes", "G.", [] { return 0.0; }), "find");
  EXPECT_DEATH(registry.gauge("process_x", "X.", [] { return 0.0; }), "process_");
  CounterFamily& family = registry.counter_family("b_total", "B.");
  EXPECT_DEATH(family.with({{"a b", "1"}}), "is_label_name");
  EXPECT_DEATH(family.with({{"__a", "1"}}), "is_label_name");
  EXPECT_DEATH(family.with({{"a", "1"}, {"a", "2"}}), "adjacent_find");
}

}  // namespace
}  // namespace larder::metrics
