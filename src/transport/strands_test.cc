// Goal: one connection's requests run in order and one at a time, connections run in parallel,
// nothing is lost or run twice, and stop() ends in bounded time. Method: runs that wait on gates
// opened by the test, and a seeded storm from several threads whose order is checked per
// connection. No sleeps.
#include "transport/strands.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>

#include "base/test_random.h"
#include "transport/test_gate.h"

namespace larder::transport {
namespace {

using std::chrono::milliseconds;

const StrandWorkers kWorkers{2, 2};

Request request_of(std::uint64_t connection, Lane lane, std::uint16_t number) {
  Request request;
  request.connection = ConnectionId{connection};
  request.route.lane = lane;
  request.route.operation = number;
  return request;
}

bool push(Strands& strands, std::uint64_t connection, Lane lane, std::uint16_t number) {
  Request request = request_of(connection, lane, number);
  return strands.push(request);
}

std::vector<std::uint16_t> one_to(std::uint16_t last) {
  std::vector<std::uint16_t> numbers;
  for (std::uint16_t i = 1; i <= last; ++i) {
    numbers.push_back(i);
  }
  return numbers;
}

// What ran, in order of start, per connection.
class RunLog {
 public:
  void add(const Request& request) {
    const MutexLock lock(mutex_);
    numbers_[request.connection].push_back(request.route.operation);
  }

  std::vector<std::uint16_t> of(std::uint64_t connection) {
    const MutexLock lock(mutex_);
    return numbers_[ConnectionId{connection}];
  }

 private:
  Mutex mutex_;
  std::map<ConnectionId, std::vector<std::uint16_t>> numbers_ LARDER_GUARDED_BY(mutex_);
};

TEST(Strands, OneConnectionRunsInOrderAcrossBothLanes) {
  RunLog log;
  Strands strands(kWorkers, [&](Request request) {
    log.add(request);
    return After::kNext;
  });
  for (std::uint16_t i = 1; i <= 60; ++i) {
    ASSERT_TRUE(push(strands, 7, i % 3 == 0 ? Lane::kTransfer : Lane::kLookup, i));
  }
  strands.start();
  EXPECT_EQ(strands.stop(milliseconds(20000)), 0U);
  EXPECT_EQ(log.of(7), one_to(60));
  EXPECT_EQ(strands.size(), 0U);
}

TEST(Strands, ASecondRequestWaitsForTheFirstEvenWhenItsLaneIsIdle) {
  Gate gate;
  RunLog log;
  Strands strands(kWorkers, [&](Request request) {
    log.add(request);
    if (request.route.operation == 1) {
      gate.pass();
    }
    return After::kNext;
  });
  strands.start();
  ASSERT_TRUE(push(strands, 1, Lane::kTransfer, 1));
  ASSERT_TRUE(push(strands, 1, Lane::kLookup, 2));
  ASSERT_TRUE(gate.wait_for_arrivals(1));
  ASSERT_TRUE(push(strands, 2, Lane::kLookup, 9));
  ASSERT_TRUE(eventually([&] { return log.of(2).size() == 1; }));  // the lane is idle
  EXPECT_EQ(log.of(1), one_to(1));
  EXPECT_EQ(strands.size(), 2U);
  gate.open();
  EXPECT_EQ(strands.stop(milliseconds(20000)), 0U);
  EXPECT_EQ(log.of(1), one_to(2));
}

TEST(Strands, ConnectionsRunInParallelOnOneLane) {
  Gate gate;
  Strands strands(kWorkers, [&](Request) {
    gate.pass();
    return After::kNext;
  });
  strands.start();
  ASSERT_TRUE(push(strands, 1, Lane::kLookup, 1));
  ASSERT_TRUE(push(strands, 2, Lane::kLookup, 1));
  EXPECT_TRUE(gate.wait_for_arrivals(2));
  gate.open();
}

TEST(Strands, LookupsDoNotWaitBehindTransfersOfOthers) {
  Gate gate;
  RunLog log;
  Strands strands(kWorkers, [&](Request request) {
    if (request.route.lane == Lane::kTransfer) {
      gate.pass();
    }
    log.add(request);
    return After::kNext;
  });
  strands.start();
  for (std::uint64_t connection = 1; connection <= 5; ++connection) {
    ASSERT_TRUE(push(strands, connection, Lane::kTransfer, 1));
  }
  ASSERT_TRUE(gate.wait_for_arrivals(2));  // every transfer worker is taken
  ASSERT_TRUE(push(strands, 6, Lane::kLookup, 1));
  EXPECT_TRUE(eventually([&] { return log.of(6).size() == 1; }));
  gate.open();
}

TEST(Strands, ABusyConnectionSharesItsLaneWithOthers) {
  RunLog log;
  std::vector<std::uint64_t> order;
  Strands strands({1, 1}, [&](Request request) {
    order.push_back(static_cast<std::uint64_t>(request.connection));  // one worker: no race
    return After::kNext;
  });
  for (std::uint16_t i = 1; i <= 50; ++i) {
    ASSERT_TRUE(push(strands, 1, Lane::kLookup, i));
  }
  ASSERT_TRUE(push(strands, 2, Lane::kLookup, 1));
  strands.start();
  EXPECT_EQ(strands.stop(milliseconds(20000)), 0U);
  ASSERT_EQ(order.size(), 51U);
  EXPECT_EQ(order[1], 2U);
}

TEST(Strands, AHeldStrandRunsNothingUntilItIsResumed) {
  RunLog log;
  Strands strands(kWorkers, [&](Request request) {
    log.add(request);
    return request.route.operation == 1 ? After::kHold : After::kNext;
  });
  ASSERT_TRUE(push(strands, 1, Lane::kLookup, 1));
  ASSERT_TRUE(push(strands, 1, Lane::kLookup, 2));
  ASSERT_TRUE(push(strands, 2, Lane::kLookup, 1));
  strands.start();
  ASSERT_TRUE(eventually([&] { return log.of(2).size() == 1 && strands.size() == 1; }));
  ASSERT_TRUE(push(strands, 1, Lane::kTransfer, 3));
  EXPECT_EQ(log.of(1), one_to(1));
  strands.resume(ConnectionId{1});
  EXPECT_EQ(strands.stop(milliseconds(20000)), 0U);
  EXPECT_EQ(log.of(1), one_to(3));
}

TEST(Strands, AnEmptyStrandStaysHeldForWhatComesNext) {
  RunLog log;
  Strands strands(kWorkers, [&](Request request) {
    log.add(request);
    return request.route.operation == 1 ? After::kHold : After::kNext;
  });
  strands.start();
  ASSERT_TRUE(push(strands, 1, Lane::kLookup, 1));
  ASSERT_TRUE(eventually([&] { return strands.size() == 0; }));
  ASSERT_TRUE(push(strands, 1, Lane::kLookup, 2));
  EXPECT_EQ(strands.stop(milliseconds(0)), 1U);
  EXPECT_EQ(log.of(1), one_to(1));
}

TEST(Strands, AResumeThatOvertakesTheHoldIsNotLost) {
  Gate gate;
  RunLog log;
  Strands strands(kWorkers, [&](Request request) {
    log.add(request);
    if (request.route.operation == 1) {
      gate.pass();
      return After::kHold;
    }
    return After::kNext;
  });
  strands.start();
  ASSERT_TRUE(push(strands, 1, Lane::kLookup, 1));
  ASSERT_TRUE(push(strands, 1, Lane::kLookup, 2));
  ASSERT_TRUE(gate.wait_for_arrivals(1));
  strands.resume(ConnectionId{1});
  gate.open();
  EXPECT_EQ(strands.stop(milliseconds(20000)), 0U);
  EXPECT_EQ(log.of(1), one_to(2));
}

TEST(Strands, StopDropsWhatDidNotRunInTimeAndWaitsForTheRunInProgress) {
  Gate gate;
  RunLog log;
  Strands strands({1, 1}, [&](Request request) {
    log.add(request);
    gate.pass();
    return After::kNext;
  });
  strands.start();
  for (std::uint16_t i = 1; i <= 5; ++i) {
    ASSERT_TRUE(push(strands, 1, Lane::kLookup, i));
  }
  ASSERT_TRUE(gate.wait_for_arrivals(1));
  std::thread opener([&] {
    EXPECT_TRUE(eventually([&] { return strands.size() == 1; }));  // the rest has been dropped
    gate.open();
  });
  EXPECT_EQ(strands.stop(milliseconds(10)), 4U);
  opener.join();
  EXPECT_EQ(log.of(1), one_to(1));
  Request late = request_of(2, Lane::kLookup, 7);
  EXPECT_FALSE(strands.push(late));
  EXPECT_EQ(late.route.operation, 7);  // untouched
  EXPECT_EQ(strands.stop(milliseconds(10)), 0U);
}

TEST(Strands, AStormFromManyThreadsKeepsEveryConnectionsOrder) {
  const std::uint64_t seed = test_seed();
  constexpr std::uint64_t kConnections = 8;
  constexpr std::uint16_t kRequests = 500;
  RunLog log;
  std::array<std::atomic<int>, kConnections + 1> running{};
  std::atomic<bool> overlapped{false};
  Strands strands({3, 3}, [&](Request request) {
    std::atomic<int>& mine = running.at(static_cast<std::uint64_t>(request.connection));
    overlapped = overlapped || mine.fetch_add(1) != 0;
    log.add(request);
    mine.fetch_sub(1);
    return request.route.operation % 16 == 0 ? After::kHold : After::kNext;
  });
  strands.start();
  std::atomic<bool> done{false};
  std::thread resumer([&] {
    while (!done) {
      for (std::uint64_t connection = 1; connection <= kConnections; ++connection) {
        strands.resume(ConnectionId{connection});
      }
    }
  });
  std::vector<std::thread> pushers;
  for (std::uint64_t connection = 1; connection <= kConnections; ++connection) {
    pushers.emplace_back([&, connection] {
      std::mt19937_64 random(seed + connection);
      for (std::uint16_t i = 1; i <= kRequests; ++i) {
        EXPECT_TRUE(
            push(strands, connection, random() % 2 == 0 ? Lane::kLookup : Lane::kTransfer, i));
      }
    });
  }
  for (std::thread& pusher : pushers) {
    pusher.join();
  }
  EXPECT_EQ(strands.stop(milliseconds(30000)), 0U);
  done = true;
  resumer.join();
  EXPECT_FALSE(overlapped);
  for (std::uint64_t connection = 1; connection <= kConnections; ++connection) {
    EXPECT_EQ(log.of(connection), one_to(kRequests)) << "connection " << connection;
  }
}

}  // namespace
}  // namespace larder::transport
