// Goal: every part of a job runs exactly once and run() returns only then, whoever helps.
// Method: counters per part, with crews of several sizes and jobs from several threads at once.
#include "devices/copy_crew.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace larder::devices {
namespace {

void expect_each_once(CopyCrew& crew, std::size_t parts) {
  std::vector<std::atomic<int>> done(parts);
  crew.run(parts, [&done](std::size_t part) { ++done[part]; });
  for (std::size_t part = 0; part < parts; ++part) {
    ASSERT_EQ(done[part].load(), 1) << "part " << part;
  }
}

TEST(CopyCrew, RunsEachPartOnceWithAnyNumberOfHelpers) {
  for (const std::size_t helpers : {0U, 1U, 3U}) {
    CopyCrew crew(helpers);
    for (const std::size_t parts : {0U, 1U, 2U, 17U, 100U}) {
      expect_each_once(crew, parts);
    }
  }
}

TEST(CopyCrew, JobsOfSeveralThreadsDoNotWaitForEachOther) {
  CopyCrew crew(2);
  std::atomic<bool> is_released{false};
  std::atomic<int> begun{0};
  // Holds up both helpers and its own thread.
  std::thread slow([&] {
    crew.run(3, [&](std::size_t) {
      ++begun;
      is_released.wait(false);
    });
  });
  while (begun.load() < 3) {
    std::this_thread::yield();
  }
  expect_each_once(crew, 10);
  is_released = true;
  is_released.notify_all();
  slow.join();
}

TEST(CopyCrew, ManyThreadsManyJobs) {
  CopyCrew crew(2);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&crew] {
      for (int job = 0; job < 200; ++job) {
        expect_each_once(crew, 5);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace
}  // namespace larder::devices
