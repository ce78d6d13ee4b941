// test_executor.h - for tests: does the runs of a copy with memcpy, and sees to it that they stay
// inside of what they may touch and never touch a byte twice.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "geometry/copy_runs.h"

namespace larder::geometry {

using Memory = std::vector<std::byte>;

inline std::uint64_t address_of(const Memory& memory) {
  return reinterpret_cast<std::uintptr_t>(memory.data());
}

inline std::byte* pointer_to(std::uint64_t address) {
  return reinterpret_cast<std::byte*>(address);
}

class TestExecutor {
 public:
  TestExecutor& allow_engine(const Memory& memory) { return allow(engine_, memory); }

  TestExecutor& allow_object(const Memory& memory) { return allow(object_, memory); }

  void store(std::span<const CopyRun> runs) {
    for (const CopyRun& run : runs) {
      copy(run, true);
    }
    check_disjoint(object_written_);
  }

  void retrieve(std::span<const CopyRun> runs) {
    for (const CopyRun& run : runs) {
      copy(run, false);
    }
    check_disjoint(engine_written_);
  }

 private:
  using Span = std::pair<std::uint64_t, std::uint64_t>;  // begin, end

  TestExecutor& allow(std::vector<Span>& side, const Memory& memory) {
    side.emplace_back(address_of(memory), address_of(memory) + memory.size());
    return *this;
  }

  static bool is_inside(const std::vector<Span>& side, const Span& span) {
    return std::any_of(side.begin(), side.end(), [&span](const Span& allowed) {
      return allowed.first <= span.first && span.second <= allowed.second;
    });
  }

  void copy(const CopyRun& run, bool to_object) {
    ASSERT_GT(run.bytes, 0U);
    ASSERT_GT(run.rows, 0U);
    for (std::uint64_t row = 0; row < run.rows; ++row) {
      const std::uint64_t engine = run.engine + row * run.engine_stride;
      const std::uint64_t object = run.object + row * run.object_stride;
      ASSERT_TRUE(is_inside(engine_, {engine, engine + run.bytes}));
      ASSERT_TRUE(is_inside(object_, {object, object + run.bytes}));
      engine_written_.emplace_back(engine, engine + run.bytes);
      object_written_.emplace_back(object, object + run.bytes);
      if (to_object) {
        std::memcpy(pointer_to(object), pointer_to(engine), run.bytes);
      } else {
        std::memcpy(pointer_to(engine), pointer_to(object), run.bytes);
      }
    }
  }

  static void check_disjoint(std::vector<Span>& written) {
    std::sort(written.begin(), written.end());
    for (std::size_t i = 1; i < written.size(); ++i) {
      ASSERT_LE(written[i - 1].second, written[i].first) << "a byte is written twice";
    }
  }

  std::vector<Span> engine_;
  std::vector<Span> object_;
  std::vector<Span> engine_written_;
  std::vector<Span> object_written_;
};

}  // namespace larder::geometry
