// Goal: a job runs at once as long as there may be another thread, waits in its turn otherwise, and
// no thread outlives its use. Method: jobs that hold their thread until the test lets them go.
#include "admin/elastic_threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "base/clock.h"

namespace larder::admin {
namespace {

using std::chrono::milliseconds;

class ElasticThreadsTest : public testing::Test {
 protected:
  void holding_job() {
    ++begun_;
    std::unique_lock<std::mutex> lock(mutex_);
    released_.wait(lock, [this] { return open_; });
    ++ended_;
  }

  void release() {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_ = true;
    released_.notify_all();
  }

  bool comes_true(const std::function<bool()>& condition) const {
    const auto deadline = clock_.now() + milliseconds(10000);
    while (!condition() && clock_.now() < deadline) {
      std::this_thread::yield();
    }
    return condition();
  }

  SteadyClock clock_;
  std::atomic<int> begun_{0};
  std::atomic<int> ended_{0};
  std::mutex mutex_;
  std::condition_variable released_;
  bool open_ = false;
};

TEST_F(ElasticThreadsTest, StartsAThreadForEachJobWhileNoneIsIdle) {
  ElasticThreads threads({20, 20, milliseconds(60000)});
  for (int i = 0; i < 20; ++i) {
    threads.enqueue([this] { holding_job(); });
  }
  EXPECT_TRUE(comes_true([this] { return begun_ == 20; }));
  release();
  threads.shutdown();
  EXPECT_EQ(ended_, 20);
  EXPECT_EQ(threads.thread_count(), 0U);
}

TEST_F(ElasticThreadsTest, KeepsJobsBeyondTheLimitUntilAThreadIsFree) {
  ElasticThreads threads({2, 5, milliseconds(60000)});
  for (int i = 0; i < 7; ++i) {
    threads.enqueue([this] { holding_job(); });
  }
  EXPECT_TRUE(comes_true([this] { return begun_ == 2; }));
  EXPECT_EQ(threads.thread_count(), 2U);
  release();
  threads.shutdown();
  EXPECT_EQ(ended_, 7);
}

TEST_F(ElasticThreadsTest, HoldsTheCallerBackWhenTooManyWait) {
  ElasticThreads threads({1, 1, milliseconds(60000)});
  threads.enqueue([this] { holding_job(); });
  ASSERT_TRUE(comes_true([this] { return begun_ == 1; }));
  threads.enqueue([this] { holding_job(); });
  std::atomic<int> ended_before{-1};
  std::thread caller([&] {
    threads.enqueue([this] { holding_job(); });
    ended_before = ended_.load();
  });
  release();
  caller.join();
  EXPECT_GE(ended_before, 1);
  threads.shutdown();
  EXPECT_EQ(ended_, 3);
}

TEST_F(ElasticThreadsTest, GivesAJobToAnIdleThread) {
  ElasticThreads threads({20, 5, milliseconds(60000)});
  for (int i = 1; i <= 50; ++i) {
    threads.enqueue([this] { ++begun_; });
    ASSERT_TRUE(comes_true([this, i] { return begun_ == i; }));
  }
  EXPECT_LT(threads.thread_count(), 10U);  // a thread that ended its job may not wait yet
  threads.shutdown();
}

TEST_F(ElasticThreadsTest, EndsThreadsThatStayIdle) {
  ElasticThreads threads({20, 5, milliseconds(20)});
  for (int round = 1; round <= 2; ++round) {
    for (int i = 0; i < 10; ++i) {
      threads.enqueue([this] { ++begun_; });
    }
    EXPECT_TRUE(comes_true([&] { return threads.thread_count() == 0; }));
    EXPECT_EQ(begun_, 10 * round);
  }
  threads.shutdown();
}

}  // namespace
}  // namespace larder::admin
