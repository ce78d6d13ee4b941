// Goal: no client can keep the admin port from answering the next one or from stopping, whatever it
// sends or leaves unsent. Method: a real server and raw connections that stay silent, send byte by
// byte or never finish, next to a health probe that must be answered.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <future>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "admin/http_server.h"
#include "admin/test_client.h"
#include "base/clock.h"
#include "base/log.h"

namespace larder::admin {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::StartsWith;

constexpr std::string_view kProbe = "GET /healthcheck HTTP/1.1\r\n\r\n";

class SlowClientsTest : public testing::Test {
 protected:
  SlowClientsTest() {
    log::set_level(log::Level::kOff);
    const AdminActions actions{[] { return Health{}; },
                               [this] {
                                 ++status_asked_;
                                 release_status_.get_future().wait();
                                 return std::string("late");
                               },
                               [this] { ++clears_; },
                               {}};
    auto started = HttpServer::start({"127.0.0.1", 0, std::nullopt}, actions, metrics_);
    EXPECT_TRUE(started.has_value());
    server_ = *std::move(started);
    port_ = server_->port();
  }

  TestClient& connect(std::string_view first_bytes = "") {
    clients_.emplace_back(port_);
    EXPECT_TRUE(clients_.back().connected());
    EXPECT_TRUE(clients_.back().send(first_bytes));
    return clients_.back();
  }

  void expect_probe_is_answered(milliseconds within) {
    TestClient probe(port_);
    const auto asked = clock_.now();
    ASSERT_TRUE(probe.send(kProbe));
    EXPECT_THAT(probe.read_until("healthy"), StartsWith("HTTP/1.1 200 OK"));
    EXPECT_LT(clock_.now() - asked, within);
  }

  void expect_quick_stop() {
    const auto asked = clock_.now();
    server_.reset();
    EXPECT_LT(clock_.now() - asked,
              milliseconds(900));  // before a silent connection ends by itself
  }

  void wait_for_status_request() {
    const auto deadline = clock_.now() + TestClient::kPatience;
    while (status_asked_.load() == 0 && clock_.now() < deadline) {
      std::this_thread::yield();
    }
    ASSERT_EQ(status_asked_.load(), 1);
  }

  SteadyClock clock_;
  metrics::Registry metrics_;
  std::atomic<int> status_asked_{0};
  std::atomic<int> clears_{0};
  std::promise<void> release_status_;
  std::uint16_t port_ = 0;
  std::list<TestClient> clients_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(SlowClientsTest, AnswersAProbeNextToSilentConnections) {
  for (int i = 0; i < 100; ++i) {
    connect();
  }
  expect_probe_is_answered(milliseconds(900));
  expect_quick_stop();
}

TEST_F(SlowClientsTest, AnswersAProbeNextToClientsThatSendByteByByte) {
  for (int i = 0; i < 100; ++i) {
    connect("GET /x HTTP/1.1\r\nA: ");
  }
  for (TestClient& client : clients_) {
    EXPECT_TRUE(client.send("a"));
  }
  expect_probe_is_answered(milliseconds(4000));
  expect_quick_stop();
}

TEST_F(SlowClientsTest, AnswersAProbeBehindAFloodOfSilentConnections) {
  for (int i = 0; i < 200; ++i) {
    connect();
  }
  expect_probe_is_answered(TestClient::kPatience);
  expect_quick_stop();
}

TEST_F(SlowClientsTest, AnswersAProbeWhileAnotherRequestIsStillBeingAnswered) {
  TestClient& slow = connect("GET /status HTTP/1.1\r\n\r\n");
  wait_for_status_request();
  expect_probe_is_answered(milliseconds(4000));
  release_status_.set_value();
  EXPECT_THAT(slow.read_all(), HasSubstr("late"));
}

TEST_F(SlowClientsTest, FinishesTheReplyUnderWayWhenItStops) {
  TestClient& slow = connect("GET /status HTTP/1.1\r\n\r\n");
  wait_for_status_request();
  std::thread stopper([this] { server_.reset(); });
  // The port is closed first, so a refused connection tells that stopping has begun.
  const auto deadline = clock_.now() + TestClient::kPatience;
  while (TestClient(port_).connected() && clock_.now() < deadline) {
    std::this_thread::yield();
  }
  release_status_.set_value();
  EXPECT_THAT(slow.read_all(), HasSubstr("late"));
  stopper.join();
}

TEST_F(SlowClientsTest, ClosesASilentConnectionWithoutAWord) {
  TestClient& client = connect();
  EXPECT_EQ(client.read_all(), "");
  EXPECT_TRUE(client.closed());
}

TEST_F(SlowClientsTest, DoesNotLetSingleBytesProlongARequest) {
  TestClient& client = connect("GET /x HTTP/1.1\r\nA: ");
  const auto started = clock_.now();
  pollfd reply{client.fd(), POLLIN, 0};
  while (poll(&reply, 1, 100) == 0 && clock_.now() - started < TestClient::kPatience) {
    client.send("a");
  }
  EXPECT_LT(clock_.now() - started, milliseconds(7000));
}

TEST_F(SlowClientsTest, EndsAHeadThatNeverEnds) {
  TestClient& client = connect("GET /x HTTP/1.1\r\nA: ");
  const std::string piece(65536, 'a');
  const auto started = clock_.now();
  pollfd reply{client.fd(), POLLIN, 0};
  while (poll(&reply, 1, 0) == 0 && clock_.now() - started < TestClient::kPatience) {
    client.send(piece);
  }
  EXPECT_LT(clock_.now() - started, milliseconds(4000));  // not only when the time was over
  EXPECT_THAT(client.read_until("\r\n\r\n"), StartsWith("HTTP/1.1 400 Bad Request"));
}

TEST_F(SlowClientsTest, DoesNotClearForABodyThatWasCutShort) {
  TestClient& client =
      connect("POST /cache/clear HTTP/1.1\r\nContent-Length: 20\r\n\r\n{\"tier\":");
  client.end_sending();
  EXPECT_THAT(client.read_all(), StartsWith("HTTP/1.1 400 Bad Request"));
  EXPECT_EQ(clears_, 0);
}

TEST_F(SlowClientsTest, LetsAClientThatIsStillSendingReadTheRefusal) {
  TestClient& client =
      connect("POST /nope HTTP/1.1\r\nContent-Length: 999999\r\n\r\n" + std::string(200000, 'x'));
  pollfd ended{client.fd(), POLLRDHUP, 0};
  ASSERT_EQ(poll(&ended, 1, static_cast<int>(TestClient::kPatience.count())), 1);
  EXPECT_TRUE(client.send("more of the body"));  // or it would see an error before it reads
  EXPECT_THAT(client.read_all(), StartsWith("HTTP/1.1 404 Not Found"));
}

TEST_F(SlowClientsTest, SendsContinueToAClientThatWaitsForIt) {
  TestClient& client = connect(
      "POST /cache/clear HTTP/1.1\r\nExpect: 100-continue\r\nContent-Type: application/json\r\n"
      "Content-Length: 2\r\n\r\n");
  EXPECT_EQ(client.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("{}");
  EXPECT_THAT(client.read_all(), StartsWith("HTTP/1.1 200 OK"));
  EXPECT_EQ(clears_, 1);
}

long cpu_ms() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000 +
         (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1000;
}

TEST_F(SlowClientsTest, SleepsWhileClientsAreSilent) {
  for (int i = 0; i < 20; ++i) {
    connect();
  }
  expect_probe_is_answered(milliseconds(900));
  const long before = cpu_ms();
  EXPECT_EQ(clients_.back().read_all(), "");  // returns when its time is over, after a second
  EXPECT_LT(cpu_ms() - before, 100);
}

}  // namespace
}  // namespace larder::admin
