// Goal: the quota routes answer as LMCache's do, byte for byte, and reach the quotas. Method: a
// real server on a free port of the loopback device, asked by cpp-httplib, over quotas kept in a
// map. Expected bodies were recorded from the reference, but for usage, which is L2's there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <map>
#include <memory>
#include <mutex>

#include "admin/http_server.h"
#include "admin/test_client.h"
#include "base/log.h"

namespace larder::admin {
namespace {

constexpr std::uint64_t kGibibyte = 1U << 30;
constexpr std::size_t kQuotasMax = 4;

class QuotaRoutes : public testing::Test {
 protected:
  QuotaRoutes() {
    log::set_level(log::Level::kOff);
    AdminActions actions{[] { return Health{}; }, [] { return std::string("{}"); }, [] {}, {}};
    actions.quotas.all = [this] {
      const std::lock_guard<std::mutex> lock(mutex_);
      std::vector<SaltQuota> all;
      for (const auto& [salt, limit] : limits_) {
        all.push_back({salt, limit, used_});
      }
      return all;
    };
    actions.quotas.of = [this](const std::string& salt) {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto found = limits_.find(salt);
      return SaltQuota{
          salt, found == limits_.end() ? std::nullopt : std::optional(found->second), used_};
    };
    actions.quotas.set = [this](const std::string& salt, std::uint64_t limit) {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (limits_.size() == kQuotasMax && !limits_.contains(salt)) {
        return false;
      }
      limits_[salt] = limit;
      return true;
    };
    actions.quotas.remove = [this](const std::string& salt) {
      const std::lock_guard<std::mutex> lock(mutex_);
      return limits_.erase(salt) > 0;
    };
    auto started = HttpServer::start({"127.0.0.1", 0, std::nullopt}, std::move(actions), metrics_);
    EXPECT_TRUE(started.has_value());
    server_ = *std::move(started);
  }

  httplib::Client client() { return httplib::Client("127.0.0.1", server_->port()); }

  std::pair<int, std::string> put(const std::string& salt,
                                  const std::string& body,
                                  const char* content_type = "application/json") {
    const auto reply = client().Put("/quota/" + salt, body, content_type);
    return reply ? std::pair(reply->status, reply->body) : std::pair(0, std::string("no reply"));
  }

  std::pair<int, std::string> get(const std::string& path) {
    const auto reply = client().Get(path);
    return reply ? std::pair(reply->status, reply->body) : std::pair(0, std::string("no reply"));
  }

  std::pair<int, std::string> remove(const std::string& salt) {
    const auto reply = client().Delete("/quota/" + salt);
    return reply ? std::pair(reply->status, reply->body) : std::pair(0, std::string("no reply"));
  }

  static std::pair<int, std::string> is(int status, const std::string& body) {
    return {status, body};
  }

  std::map<std::string, std::uint64_t> limits() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return limits_;
  }

  metrics::Registry metrics_;
  std::mutex mutex_;
  std::map<std::string, std::uint64_t> limits_;
  std::uint64_t used_ = 0;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(QuotaRoutes, AreSetShownListedAndRemoved) {
  EXPECT_EQ(get("/quota"), is(200, R"({"users":{}})"));
  EXPECT_EQ(put("tenant-a", R"({"limit_gb":0.5})"),
            is(200, R"({"cache_salt":"tenant-a","limit_gb":0.5,"status":"ok"})"));
  EXPECT_EQ(limits(), (std::map<std::string, std::uint64_t>{{"tenant-a", kGibibyte / 2}}));
  EXPECT_EQ(
      get("/quota/tenant-a"),
      is(200, R"({"cache_salt":"tenant-a","limit_gb":0.5,"current_usage_gb":0.0,"exists":true})"));
  used_ = kGibibyte / 4;
  EXPECT_EQ(get("/quota"),
            is(200, R"({"users":{"tenant-a":{"limit_gb":0.5,"current_usage_gb":0.25}}})"));
  EXPECT_EQ(remove("tenant-a"), is(200, R"({"cache_salt":"tenant-a","status":"removed"})"));
  EXPECT_EQ(remove("tenant-a"), is(200, R"({"cache_salt":"tenant-a","status":"not_found"})"));
  EXPECT_EQ(
      get("/quota/tenant-a"),
      is(200,
         R"({"cache_salt":"tenant-a","limit_gb":0.0,"current_usage_gb":0.25,"exists":false})"));
  EXPECT_TRUE(limits().empty());
}

TEST_F(QuotaRoutes, TheEmptySaltHasAWordOfItsOwn) {
  EXPECT_EQ(put("_default", R"({"limit_gb":1})"),
            is(200, R"({"cache_salt":"_default","limit_gb":1.0,"status":"ok"})"));
  EXPECT_EQ(limits(), (std::map<std::string, std::uint64_t>{{"", kGibibyte}}));
  EXPECT_EQ(get("/quota"),
            is(200, R"({"users":{"_default":{"limit_gb":1.0,"current_usage_gb":0.0}}})"));
  EXPECT_EQ(remove("_default"), is(200, R"({"cache_salt":"_default","status":"removed"})"));
}

TEST_F(QuotaRoutes, ALimitIsWhatPythonTakesForANumber) {
  const auto limit_of = [this](const std::string& body, const char* content_type) {
    EXPECT_EQ(put("salt", body, content_type).first, 200) << body;
    return limits()["salt"];
  };
  EXPECT_EQ(limit_of(R"({"limit_gb":"2.5"})", "application/json"), 5 * kGibibyte / 2);
  EXPECT_EQ(limit_of(R"({"limit_gb":" 1_0e-1 "})", "text/plain"), kGibibyte);
  EXPECT_EQ(limit_of(R"({"limit_gb":true,"other":[]})", "application/json"), kGibibyte);
  EXPECT_EQ(limit_of(R"({"limit_gb":0})", "application/json"), 0U);
  EXPECT_EQ(limit_of(R"({"limit_gb":1e300})", "application/json"), std::uint64_t{1} << 62);
}

TEST_F(QuotaRoutes, AnythingElseIsRefused) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{bad", "invalid JSON body"},
      {"", "invalid JSON body"},
      {std::string(100000, '['), "invalid JSON body"},
      {"[]", "body must be {'limit_gb': <float>}"},
      {"{}", "body must be {'limit_gb': <float>}"},
      {R"({"limit":1})", "body must be {'limit_gb': <float>}"},
      {R"({"limit_gb":"x"})", "limit_gb must be numeric"},
      {R"({"limit_gb":null})", "limit_gb must be numeric"},
      {R"({"limit_gb":[1]})", "limit_gb must be numeric"},
      {R"({"limit_gb":NaN})", "limit_gb must be finite"},
      {R"({ "limit_gb" : -Infinity })", "limit_gb must be finite"},
      {R"({"limit_gb":"inf"})", "limit_gb must be finite"},
      {R"({"limit_gb":1e999})", "limit_gb must be finite"},
      {R"({"limit_gb":-1})", "limit_gb must be non-negative"},
  };
  for (const auto& [body, text] : cases) {
    EXPECT_EQ(put("salt", body), is(400, R"({"error":")" + text + R"("})")) << body.substr(0, 40);
  }
  EXPECT_TRUE(limits().empty());
}

TEST_F(QuotaRoutes, ThereAreNotMoreThanCanBeKept) {
  for (std::size_t salt = 0; salt < kQuotasMax; ++salt) {
    EXPECT_EQ(put(std::to_string(salt), R"({"limit_gb":1})").first, 200);
  }
  EXPECT_EQ(put("one-more", R"({"limit_gb":1})"),
            is(400, R"({"error":"there are too many quotas"})"));
  EXPECT_EQ(put("0", R"({"limit_gb":2})").first, 200);
}

TEST_F(QuotaRoutes, ASaltIsAnyWordOfAPath) {
  EXPECT_EQ(put("a%20b%C3%A9%22", R"({"limit_gb":1})"),
            is(200, "{\"cache_salt\":\"a b\xC3\xA9\\\"\",\"limit_gb\":1.0,\"status\":\"ok\"}"));
  EXPECT_EQ(limits().count("a b\xC3\xA9\""), 1U);
  EXPECT_EQ(put("a%2Fb", R"({"limit_gb":1})"), is(404, R"({"detail":"Not Found"})"));
  EXPECT_EQ(get("/quota/a/b"), is(404, R"({"detail":"Not Found"})"));
  EXPECT_EQ(get("/quotas"), is(404, R"({"detail":"Not Found"})"));
}

TEST_F(QuotaRoutes, OtherMethodsAreToldWhichOneAPathTakes) {
  const auto one = client().Post("/quota/salt", "{}", "application/json");
  ASSERT_TRUE(one);
  EXPECT_EQ(one->status, 405);
  EXPECT_EQ(one->get_header_value("Allow"), "PUT");
  const auto all = client().Put("/quota", R"({"limit_gb":1})", "application/json");
  ASSERT_TRUE(all);
  EXPECT_EQ(all->status, 405);
  EXPECT_EQ(all->get_header_value("Allow"), "GET");
}

TEST_F(QuotaRoutes, ARedirectIsASafeHeader) {
  const auto list = client().Get("/quota/");
  ASSERT_TRUE(list);
  EXPECT_EQ(list->status, 307);
  EXPECT_EQ(list->get_header_value("Location"), "/quota");
  TestClient peer(server_->port());  // the library's client would decode the header
  ASSERT_TRUE(peer.send("GET /quota/a%0D%0AX-Evil:%20b/?x=y HTTP/1.1\r\nHost: x\r\n\r\n"));
  const std::string reply = peer.read_all();
  EXPECT_THAT(reply, testing::StartsWith("HTTP/1.1 307 "));
  EXPECT_THAT(reply, testing::HasSubstr("location: /quota/a%0D%0AX-Evil%3A%20b?x=y\r\n"));
}

}  // namespace
}  // namespace larder::admin
