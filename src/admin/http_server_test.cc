// Goal: every route and every error of the admin port answers as LMCache 0.5.2 does, byte for byte
// in the body. Method: a real server on a free port of the loopback device, asked by an HTTP client
// written by others (cpp-httplib) and, where that client cannot, by raw bytes. Expected bodies were
// recorded from the reference.
#include "admin/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "admin/test_client.h"
#include "base/log.h"

namespace larder::admin {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

constexpr const char* kJson = "application/json";
constexpr const char* kCleared = R"({"status":"ok","cleared":{"tier":"l1"}})";

class HttpServerTest : public testing::Test {
 protected:
  HttpServerTest() {
    log::set_level(log::Level::kOff);  // each clear is logged
    metrics_.counter("larder_test_total", "Test.").add(3);
  }

  AdminActions actions() {
    return {[this] {
              const std::lock_guard<std::mutex> lock(mutex_);
              return health_;
            },
            [] { return std::string(R"({"is_healthy":true,"chunk_size":16})"); },
            [this] { ++clears_; },
            {}};
  }

  std::unique_ptr<HttpServer> serve(const HttpConfig& config) {
    auto started = HttpServer::start(config, actions(), metrics_);
    EXPECT_TRUE(started.has_value()) << (started ? "" : started.error().detail);
    return started ? *std::move(started) : nullptr;
  }

  HttpServer& server() {
    if (server_ == nullptr) {
      server_ = serve({"127.0.0.1", 0, std::nullopt});
    }
    return *server_;
  }

  httplib::Client client() { return httplib::Client("127.0.0.1", server().port()); }

  void set_health(Health health) {
    const std::lock_guard<std::mutex> lock(mutex_);
    health_ = std::move(health);
  }

  // The reply to a POST /cache/clear with this body.
  std::pair<int, std::string> clear(const std::string& body, const char* content_type = kJson) {
    const auto reply = client().Post("/cache/clear", body, content_type);
    return reply ? std::pair(reply->status, reply->body) : std::pair(0, std::string("no reply"));
  }

  std::string raw(std::string_view request) {
    TestClient peer(server().port());
    EXPECT_TRUE(peer.send(request));
    std::string reply = peer.read_all();
    EXPECT_TRUE(peer.closed());
    return reply;
  }

  metrics::Registry metrics_;
  std::mutex mutex_;
  Health health_;
  std::atomic<int> clears_{0};
  std::unique_ptr<HttpServer> server_;
};

void expect_reply(const httplib::Result& reply, int status, const std::string& body) {
  ASSERT_TRUE(reply) << httplib::to_string(reply.error());
  EXPECT_EQ(reply->status, status);
  EXPECT_EQ(reply->body, body);
}

TEST_F(HttpServerTest, NamesTheServiceAtTheRoot) {
  const auto reply = client().Get("/");
  expect_reply(reply, 200, R"({"status":"ok","service":"LMCache HTTP API"})");
  EXPECT_EQ(reply->get_header_value("Content-Type"), kJson);
}

TEST_F(HttpServerTest, AnswersAHealthCheck) {
  const auto reply = client().Get("/healthcheck");
  expect_reply(reply, 200, R"({"status":"healthy"})");
  EXPECT_EQ(reply->get_header_value("Content-Type"), kJson);
}

TEST_F(HttpServerTest, SaysWhyItIsUnhealthy) {
  set_health({false, "the \"request\" loop\nis silent \xFF"});
  expect_reply(client().Get("/healthcheck"),
               503,
               "{\"status\":\"unhealthy\",\"reason\":\"the \\\"request\\\" loop\\nis silent "
               "\xEF\xBF\xBD\"}");
  set_health({});
  expect_reply(client().Get("/healthcheck"), 200, R"({"status":"healthy"})");
}

TEST_F(HttpServerTest, PassesTheStatusThrough) {
  const auto reply = client().Get("/status");
  expect_reply(reply, 200, R"({"is_healthy":true,"chunk_size":16})");
  EXPECT_EQ(reply->get_header_value("Content-Type"), kJson);
}

TEST_F(HttpServerTest, ServesTheMetricsPage) {
  const auto reply = client().Get("/metrics");
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, 200);
  EXPECT_EQ(reply->get_header_value("Content-Type"), "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_THAT(reply->body, HasSubstr("# TYPE larder_test_total counter\nlarder_test_total 3.0\n"));
  EXPECT_THAT(reply->body, HasSubstr("\nprocess_open_fds "));
}

TEST_F(HttpServerTest, ClearsTheCacheWithAndWithoutABody) {
  for (const char* body : {"",
                           "null",
                           "{}",
                           R"({"tier":"l1"})",
                           R"({"tier":"l1","force":true})",
                           R"({"tier":"l1","force":"off"})",
                           R"({"force":0,"unknown":[1,{}]})"}) {
    EXPECT_EQ(clear(body), std::pair(200, std::string(kCleared))) << body;
  }
  expect_reply(client().Post("/cache/clear"), 200, kCleared);
  EXPECT_EQ(clear(R"({"tier":"l1"})", "application/vnd.api+json; charset=utf-8").first, 200);
  EXPECT_EQ(clears_.load(), 9);
}

TEST_F(HttpServerTest, RefusesToClearAnotherTier) {
  EXPECT_EQ(clear(R"({"tier":"l2"})"),
            std::pair(400, std::string(R"({"detail":"tier 'l2' not supported; only 'l1'"})")));
  EXPECT_EQ(clear(R"({"tier":"all"})"),
            std::pair(400, std::string(R"({"detail":"tier 'all' not supported; only 'l1'"})")));
  EXPECT_EQ(clears_.load(), 0);
}

TEST_F(HttpServerTest, RefusesFieldsOfTheWrongKindAsFastApiDoes) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"tier":"l3"})",
       R"({"detail":[{"type":"enum","loc":["body","tier"],"msg":"Input should be 'l1',)"
       R"( 'l2' or 'all'","input":"l3","ctx":{"expected":"'l1', 'l2' or 'all'"}}]})"},
      {R"({"tier":null})",
       R"({"detail":[{"type":"enum","loc":["body","tier"],"msg":"Input should be 'l1',)"
       R"( 'l2' or 'all'","input":null,"ctx":{"expected":"'l1', 'l2' or 'all'"}}]})"},
      {R"({"force":"x"})",
       R"({"detail":[{"type":"bool_parsing","loc":["body","force"],)"
       R"("msg":"Input should be a valid boolean, unable to interpret input","input":"x"}]})"},
      {R"({"force":2})",
       R"({"detail":[{"type":"bool_parsing","loc":["body","force"],)"
       R"("msg":"Input should be a valid boolean, unable to interpret input","input":2}]})"},
      {R"({"force":1.5})",
       R"({"detail":[{"type":"bool_type","loc":["body","force"],)"
       R"("msg":"Input should be a valid boolean","input":1.5}]})"},
      {R"({"tier":"l3","force":[]})",
       R"({"detail":[{"type":"enum","loc":["body","tier"],"msg":"Input should be 'l1',)"
       R"( 'l2' or 'all'","input":"l3","ctx":{"expected":"'l1', 'l2' or 'all'"}},)"
       R"({"type":"bool_type","loc":["body","force"],"msg":"Input should be a valid boolean",)"
       R"("input":[]}]})"},
      {"[]",
       R"({"detail":[{"type":"dataclass_type","loc":["body"],)"
       R"("msg":"Input should be a dictionary or an instance of ClearRequest","input":[],)"
       R"("ctx":{"class_name":"ClearRequest"}}]})"},
      {R"("x")",
       R"({"detail":[{"type":"dataclass_type","loc":["body"],)"
       R"("msg":"Input should be a dictionary or an instance of ClearRequest","input":"x",)"
       R"("ctx":{"class_name":"ClearRequest"}}]})"},
  };
  for (const auto& [body, expected] : cases) {
    EXPECT_EQ(clear(body), std::pair(422, expected));
  }
  EXPECT_EQ(clears_.load(), 0);
}

TEST_F(HttpServerTest, RefusesABodyThatIsNotJson) {
  EXPECT_EQ(
      clear("{bad"),
      std::pair(
          422,
          std::string(
              R"({"detail":[{"type":"json_invalid","loc":["body",1],"msg":"JSON decode error",)"
              R"("input":{},"ctx":{"error":"Invalid JSON"}}]})")));
  for (const std::string& body :
       {std::string(" "),
        std::string(R"({"tier":"l1")"),
        std::string(R"({"tier":"l1"}x)"),
        std::string("\xFF\xFE"),
        std::string(100000, '['),
        R"({"tier":)" + std::string(50000, '[') + std::string(50000, ']') + "}"}) {
    const auto [status, reply] = clear(body);
    EXPECT_EQ(status, 422);
    EXPECT_THAT(reply, HasSubstr("json_invalid"));
  }
  EXPECT_EQ(clears_.load(), 0);
}

TEST_F(HttpServerTest, RefusesABodyThatIsNotDeclaredAsJson) {
  EXPECT_EQ(
      clear(R"({"tier":"l2"})", "text/plain"),
      std::pair(
          422,
          std::string(R"({"detail":[{"type":"dataclass_type","loc":["body"],)"
                      R"("msg":"Input should be a dictionary or an instance of ClearRequest",)"
                      R"("input":"{\"tier\":\"l2\"}","ctx":{"class_name":"ClearRequest"}}]})")));
  EXPECT_EQ(clears_.load(), 0);
}

TEST_F(HttpServerTest, AnswersNotFoundForEveryOtherPath) {
  for (const char* path :
       {"/nope", "/healthcheckx", "/Healthcheck", "//", "/nope/", "/version", "/run_script"}) {
    const auto reply = client().Get(path);
    expect_reply(reply, 404, R"({"detail":"Not Found"})");
    EXPECT_EQ(reply->get_header_value("Content-Type"), kJson);
  }
  expect_reply(client().Post("/run_script", "x", "text/plain"), 404, R"({"detail":"Not Found"})");
}

TEST_F(HttpServerTest, TellsWhichMethodAPathTakes) {
  const auto post = client().Post("/healthcheck");
  expect_reply(post, 405, R"({"detail":"Method Not Allowed"})");
  EXPECT_EQ(post->get_header_value("Allow"), "GET");
  const auto get = client().Get("/cache/clear");
  expect_reply(get, 405, R"({"detail":"Method Not Allowed"})");
  EXPECT_EQ(get->get_header_value("Allow"), "POST");
  for (const char* path : {"/", "/status", "/metrics", "/cache/clear"}) {
    expect_reply(client().Delete(path), 405, R"({"detail":"Method Not Allowed"})");
    expect_reply(client().Options(path), 405, R"({"detail":"Method Not Allowed"})");
  }
  EXPECT_EQ(clears_.load(), 0);
}

TEST_F(HttpServerTest, RefusesHeadAndSendsNoBody) {
  const std::string reply = raw("HEAD /healthcheck HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(reply, StartsWith("HTTP/1.1 405 Method Not Allowed\r\n"));
  EXPECT_THAT(reply, HasSubstr("allow: GET\r\n"));
  EXPECT_THAT(reply, HasSubstr("Content-Length: 31\r\n"));
  EXPECT_THAT(reply, EndsWith("\r\n\r\n"));
}

TEST_F(HttpServerTest, RedirectsToThePathWithoutASlashAtItsEnd) {
  const auto reply = client().Get("/healthcheck/");
  expect_reply(reply, 307, "");
  EXPECT_EQ(reply->get_header_value("Location"), "/healthcheck");
  const auto with_query = client().Get("/metrics//?a=b");
  expect_reply(with_query, 307, "");
  EXPECT_EQ(with_query->get_header_value("Location"), "/metrics?a=b");
  expect_reply(client().Post("/cache/clear/"), 307, "");
  EXPECT_EQ(clears_.load(), 0);
}

TEST_F(HttpServerTest, FollowsItsOwnRedirectForAClient) {
  httplib::Client follower = client();
  follower.set_follow_location(true);
  expect_reply(follower.Get("/healthcheck/"), 200, R"({"status":"healthy"})");
}

TEST_F(HttpServerTest, TurnsAnExceptionOfAnActionIntoAPlainError) {
  auto failing = actions();
  failing.status_json = []() -> std::string { throw std::runtime_error("expected by this test"); };
  auto started = HttpServer::start({"127.0.0.1", 0, std::nullopt}, failing, metrics_);
  ASSERT_TRUE(started.has_value());
  httplib::Client asker("127.0.0.1", (*started)->port());
  const auto reply = asker.Get("/status");
  expect_reply(reply, 500, "Internal Server Error");
  EXPECT_EQ(reply->get_header_value("Content-Type"), "text/plain; charset=utf-8");
  expect_reply(asker.Get("/healthcheck"), 200, R"({"status":"healthy"})");
}

TEST_F(HttpServerTest, RefusesWhatIsNotHttpAndGoesOn) {
  const std::string reply = raw("\x16\x03\x01 this is TLS\r\n\r\n");
  EXPECT_THAT(reply, StartsWith("HTTP/1.1 400 Bad Request\r\n"));
  EXPECT_THAT(reply, EndsWith("\r\n\r\nInvalid HTTP request received."));
  expect_reply(client().Get("/healthcheck"), 200, R"({"status":"healthy"})");
}

TEST_F(HttpServerTest, RefusesABodyBeyondTheLimitAndLetsTheClientReadTheReply) {
  const auto [status, body] = clear(std::string((1U << 20) + 1, 'x'));
  EXPECT_EQ(status, 413);
  EXPECT_EQ(body, R"({"detail":"Content Too Large"})");
  EXPECT_EQ(clear(std::string(1U << 20, ' ')).first, 422);
}

TEST_F(HttpServerTest, RefusesABodyBeyondTheLimitHoweverItIsSent) {
  const std::string large((1U << 20) + 1, ' ');
  httplib::Client compressing = client();
  compressing.set_compress(true);  // a thousandth is sent
  expect_reply(
      compressing.Post("/cache/clear", large, kJson), 413, R"({"detail":"Content Too Large"})");
  const auto in_chunks = client().Post(
      "/cache/clear",
      [&large](std::size_t offset, httplib::DataSink& sink) {
        sink.write(large.data() + offset, std::min<std::size_t>(large.size() - offset, 65536));
        if (offset + 65536 >= large.size()) {
          sink.done();
        }
        return true;
      },
      kJson);
  expect_reply(in_chunks, 413, R"({"detail":"Content Too Large"})");
  EXPECT_EQ(clears_.load(), 0);
}

TEST_F(HttpServerTest, ClearsForAChunkedOrCompressedBody) {
  EXPECT_THAT(raw("POST /cache/clear HTTP/1.1\r\nContent-Type: application/json\r\n"
                  "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"),
              EndsWith(kCleared));
  httplib::Client compressing = client();
  compressing.set_compress(true);
  expect_reply(compressing.Post("/cache/clear", R"({"tier":"l1"})", kJson), 200, kCleared);
  EXPECT_EQ(clears_.load(), 2);
}

TEST_F(HttpServerTest, ClearsAtOnceWhenNoLengthIsSent) {
  EXPECT_THAT(raw("POST /cache/clear HTTP/1.1\r\nHost: x\r\n\r\n"), EndsWith(kCleared));
  EXPECT_EQ(clears_.load(), 1);
}

TEST_F(HttpServerTest, DoesNotClearForABodyItCannotRead) {
  const std::string request = "POST /cache/clear HTTP/1.1\r\nContent-Type: application/json\r\n";
  EXPECT_THAT(raw(request + "Content-Length: two\r\n\r\n{}"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(raw(request + "Content-Length: -2\r\n\r\n{}"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(raw(request + "Transfer-Encoding: chunked\r\n\r\nzz\r\n"),
              StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(raw(request + "Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}"),
              StartsWith("HTTP/1.1 400 "));
  const httplib::MultipartFormDataItems form = {{"tier", "l1", "", ""}};
  expect_reply(client().Post("/cache/clear", form), 415, R"({"detail":"Unsupported Media Type"})");
  EXPECT_EQ(clears_.load(), 0);
}

TEST_F(HttpServerTest, ServesManyRequestsOfOneClient) {
  httplib::Client one = client();
  one.set_keep_alive(true);
  for (int i = 0; i < 200; ++i) {
    expect_reply(one.Get("/healthcheck"), 200, R"({"status":"healthy"})");
  }
}

TEST_F(HttpServerTest, AnswersManyClientsAtOnce) {
  const std::uint16_t port = server().port();
  std::atomic<int> good{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([port, &good] {
      for (int i = 0; i < 25; ++i) {
        httplib::Client asker("127.0.0.1", port);
        const auto health = asker.Get("/healthcheck");
        const auto cleared = asker.Post("/cache/clear");
        const auto metrics = asker.Get("/metrics");
        good += health && health->body == R"({"status":"healthy"})" ? 1 : 0;
        good += cleared && cleared->body == kCleared ? 1 : 0;
        good += metrics && metrics->status == 200 ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(good.load(), 8 * 25 * 3);
  EXPECT_EQ(clears_.load(), 8 * 25);
}

TEST_F(HttpServerTest, NamesAPortThatIsTaken) {
  const auto second =
      HttpServer::start({"127.0.0.1", server().port(), std::nullopt}, actions(), metrics_);
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code, Code::kBusy);
  EXPECT_THAT(second.error().detail, HasSubstr(std::to_string(server().port())));
  EXPECT_THAT(second.error().detail, HasSubstr("Address already in use"));
}

TEST_F(HttpServerTest, NamesAHostThatCannotBeResolved) {
  const auto started =
      HttpServer::start({"no-such-host.invalid", 0, std::nullopt}, actions(), metrics_);
  ASSERT_FALSE(started.has_value());
  EXPECT_EQ(started.error().code, Code::kInvalid);
  EXPECT_THAT(started.error().detail, HasSubstr("'no-such-host.invalid' cannot be resolved"));
}

TEST_F(HttpServerTest, NamesAnAddressThatThisMachineDoesNotHave) {
  const auto started = HttpServer::start({"192.0.2.1", 0, std::nullopt}, actions(), metrics_);
  ASSERT_FALSE(started.has_value());
  EXPECT_EQ(started.error().code, Code::kInvalid);
  EXPECT_THAT(started.error().detail, HasSubstr("192.0.2.1"));
}

TEST_F(HttpServerTest, ListensOnEveryAddressOfAHostName) {
  const auto on_name = serve({"localhost", 0, std::nullopt});
  httplib::Client by_number("127.0.0.1", on_name->port());
  expect_reply(by_number.Get("/healthcheck"), 200, R"({"status":"healthy"})");
  const auto everywhere = serve({"", 0, std::nullopt});
  httplib::Client anywhere("127.0.0.1", everywhere->port());
  expect_reply(anywhere.Get("/healthcheck"), 200, R"({"status":"healthy"})");
}

TEST_F(HttpServerTest, GetsItsPortBackAtOnceAfterARestart) {
  const std::uint16_t port = server().port();
  for (int i = 0; i < 5; ++i) {
    TestClient idle(port);
    ASSERT_TRUE(idle.connected());
    expect_reply(client().Get("/healthcheck"), 200, R"({"status":"healthy"})");
    server_.reset();
    server_ = serve({"127.0.0.1", port, std::nullopt});
    ASSERT_NE(server_, nullptr);
  }
}

TEST_F(HttpServerTest, ServesNothingButMetricsOnThePrometheusPort) {
  server_ = serve({"127.0.0.1", 0, 0});
  ASSERT_TRUE(server_->prometheus_port().has_value());
  ASSERT_NE(*server_->prometheus_port(), server_->port());
  httplib::Client scraper("127.0.0.1", *server_->prometheus_port());
  const auto page = scraper.Get("/metrics");
  ASSERT_TRUE(page);
  EXPECT_THAT(page->body, HasSubstr("larder_test_total 3.0"));
  expect_reply(scraper.Get("/healthcheck"), 404, R"({"detail":"Not Found"})");
  expect_reply(scraper.Post("/cache/clear"), 404, R"({"detail":"Not Found"})");
  expect_reply(scraper.Post("/metrics"), 405, R"({"detail":"Method Not Allowed"})");
  expect_reply(client().Get("/metrics/"), 307, "");
  EXPECT_EQ(clears_.load(), 0);
}

TEST_F(HttpServerTest, StartsWithoutThePrometheusPortWhenItIsTaken) {
  const auto started = serve({"127.0.0.1", 0, server().port()});
  ASSERT_NE(started, nullptr);
  EXPECT_FALSE(started->prometheus_port().has_value());
  httplib::Client asker("127.0.0.1", started->port());
  EXPECT_EQ(asker.Get("/metrics")->status, 200);
}

}  // namespace
}  // namespace larder::admin
