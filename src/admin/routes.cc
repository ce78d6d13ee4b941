#include "admin/routes.h"

#include <fmt/core.h>

#include <array>
#include <cstdint>
#include <exception>
#include <variant>

#include "admin/json_bodies.h"
#include "base/log.h"

namespace larder::admin {
namespace {

// What a limit beyond any memory comes to makes no difference.
std::uint64_t bytes_of_gibibytes(double gibibytes) {
  constexpr double kGibibyte = 1U << 30;
  constexpr std::uint64_t kBytesMax = std::uint64_t{1} << 62;
  const double bytes = gibibytes * kGibibyte;
  return bytes < static_cast<double>(kBytesMax) ? static_cast<std::uint64_t>(bytes) : kBytesMax;
}

Reply json_reply(int status, std::string body) {
  return {status, "application/json", std::move(body), {}};
}

Reply get_root(const Request& /*request*/, const RouteContext& /*context*/) {
  return json_reply(200, R"({"status":"ok","service":"LMCache HTTP API"})");
}

Reply get_healthcheck(const Request& /*request*/, const RouteContext& context) {
  const Health health = context.actions.health();
  if (health.healthy) {
    return json_reply(200, R"({"status":"healthy"})");
  }
  return json_reply(503, R"({"status":"unhealthy","reason":)" + json_string(health.reason) + "}");
}

Reply get_status(const Request& /*request*/, const RouteContext& context) {
  return json_reply(200, context.actions.status_json());
}

Reply get_metrics(const Request& /*request*/, const RouteContext& context) {
  return {200, "text/plain; version=0.0.4; charset=utf-8", context.metrics.page(), {}};
}

Reply post_cache_clear(const Request& request, const RouteContext& context) {
  if (const auto refused = refuse_clear(request.content_type, request.body)) {
    return json_reply(refused->status, refused->body);
  }
  context.actions.clear_l1();
  log::info("Cache cleared via HTTP API");
  return json_reply(200, R"({"status":"ok","cleared":{"tier":"l1"}})");
}

constexpr std::string_view kQuotaPath = "/quota/";

// The salt that a path names. The empty one cannot be part of a path and has a word of its own.
std::string salt_of(const Request& request) {
  const std::string name = request.path.substr(kQuotaPath.size());
  return name == "_default" ? std::string() : name;
}

Reply get_quotas(const Request& /*request*/, const RouteContext& context) {
  return json_reply(200, quotas_listed(context.actions.quotas.all()));
}

Reply get_quota(const Request& request, const RouteContext& context) {
  return json_reply(200, quota_shown(context.actions.quotas.of(salt_of(request))));
}

Reply put_quota(const Request& request, const RouteContext& context) {
  const std::string salt = salt_of(request);
  const std::variant<double, Refusal> limit = read_limit_gb(request.body);
  if (const Refusal* const refused = std::get_if<Refusal>(&limit)) {
    return json_reply(refused->status, refused->body);
  }
  const double limit_gb = *std::get_if<double>(&limit);
  if (!context.actions.quotas.set(salt, bytes_of_gibibytes(limit_gb))) {
    return json_reply(400, R"({"error":"there are too many quotas"})");
  }
  return json_reply(200, quota_set(salt, limit_gb));
}

Reply delete_quota(const Request& request, const RouteContext& context) {
  const std::string salt = salt_of(request);
  return json_reply(200, quota_removed(salt, context.actions.quotas.remove(salt)));
}

struct Route {
  std::string_view method;
  std::string_view path;  // one that ends with a slash takes one more word
  bool for_prometheus;    // also on the port that only Prometheus asks
  Reply (*answer)(const Request&, const RouteContext&);
};

constexpr auto kRoutes = std::to_array<Route>({
    // clang-format off
    {"GET",    "/",            false, &get_root},
    {"GET",    "/healthcheck", false, &get_healthcheck},
    {"GET",    "/status",      false, &get_status},
    {"GET",    "/metrics",     true,  &get_metrics},
    {"POST",   "/cache/clear", false, &post_cache_clear},
    {"PUT",    kQuotaPath,     false, &put_quota},
    {"GET",    kQuotaPath,     false, &get_quota},
    {"DELETE", kQuotaPath,     false, &delete_quota},
    {"GET",    "/quota",       false, &get_quotas},
    // clang-format on
});

bool is_path_of(const Route& route, std::string_view path) {
  if (route.path.size() < 2 || !route.path.ends_with('/')) {
    return route.path == path;
  }
  return path.size() > route.path.size() && path.starts_with(route.path) &&
         path.find('/', route.path.size()) == std::string_view::npos;
}

// The route of this path and method, else the first of the path.
const Route* find_route(Door door, std::string_view path, std::string_view method) {
  const Route* of_path = nullptr;
  for (const Route& route : kRoutes) {
    if (is_path_of(route, path) && (door == Door::kAdmin || route.for_prometheus)) {
      if (route.method == method) {
        return &route;
      }
      of_path = of_path == nullptr ? &route : of_path;
    }
  }
  return of_path;
}

// A path with slashes at its end is told the one without them; empty when that is not a route
// either.
std::string_view without_slashes(Door door, std::string_view path, std::string_view method) {
  const std::size_t last = path.find_last_not_of('/');
  if (last == std::string_view::npos || last + 1 == path.size()) {
    return {};
  }
  path = path.substr(0, last + 1);
  return find_route(door, path, method) == nullptr ? std::string_view() : path;
}

// As it may stand in a header: the path was decoded.
std::string percent_encoded(std::string_view path) {
  std::string encoded;
  for (const char c : path) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                          (c >= '0' && c <= '9') ||
                          std::string_view("/-._~").find(c) != std::string_view::npos;
    encoded += is_plain
                   ? std::string(1, c)
                   : fmt::format("%{:02X}", static_cast<unsigned>(static_cast<unsigned char>(c)));
  }
  return encoded;
}

Reply redirect_to(std::string_view path, const Request& request) {
  std::string target = percent_encoded(path);
  if (!request.query.empty()) {
    target += "?" + request.query;
  }
  return {307, "", "", {{"location", std::move(target)}}};
}

Reply answer_route(const Route& route, const Request& request, const RouteContext& context) {
  if (route.method != request.method) {
    Reply reply = json_reply(405, R"({"detail":"Method Not Allowed"})");
    reply.headers.emplace_back("allow", route.method);
    return reply;
  }
  try {
    return route.answer(request, context);
  } catch (const std::exception& failure) {
    log::error("{} {} failed: {}", route.method, route.path, failure.what());
    return {500, "text/plain; charset=utf-8", "Internal Server Error", {}};
  }
}

}  // namespace

bool takes_body(Door door, std::string_view method, std::string_view path) {
  const Route* route = find_route(door, path, method);
  return route != nullptr && route->method == method && (method == "POST" || method == "PUT");
}

Reply answer(Door door, const Request& request, const RouteContext& context) {
  if (const Route* route = find_route(door, request.path, request.method)) {
    return answer_route(*route, request, context);
  }
  const std::string_view path = without_slashes(door, request.path, request.method);
  if (!path.empty()) {
    return redirect_to(path, request);
  }
  return json_reply(404, R"({"detail":"Not Found"})");
}

Reply refusal(int status) {
  switch (status) {
    case 413:
      return json_reply(status, R"({"detail":"Content Too Large"})");
    case 414:
      return json_reply(status, R"({"detail":"URI Too Long"})");
    case 415:
      return json_reply(status, R"({"detail":"Unsupported Media Type"})");
    case 416:
      return json_reply(status, R"({"detail":"Range Not Satisfiable"})");
    default:
      // The words of the reference's HTTP library.
      return {status, "text/plain; charset=utf-8", "Invalid HTTP request received.", {}};
  }
}

}  // namespace larder::admin
