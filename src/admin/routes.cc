#include "admin/routes.h"

#include <algorithm>
#include <array>
#include <exception>

#include "admin/json_bodies.h"
#include "base/log.h"

namespace larder::admin {
namespace {

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

struct Route {
  std::string_view method;
  std::string_view path;
  bool for_prometheus;  // also on the port that only Prometheus asks
  Reply (*answer)(const Request&, const RouteContext&);
};

constexpr auto kRoutes = std::to_array<Route>({
    // clang-format off
    {"GET",  "/",            false, &get_root},
    {"GET",  "/healthcheck", false, &get_healthcheck},
    {"GET",  "/status",      false, &get_status},
    {"GET",  "/metrics",     true,  &get_metrics},
    {"POST", "/cache/clear", false, &post_cache_clear},
    // clang-format on
});

const Route* find_route(Door door, std::string_view path) {
  const auto* found = std::find_if(kRoutes.begin(), kRoutes.end(), [&](const Route& route) {
    return route.path == path && (door == Door::kAdmin || route.for_prometheus);
  });
  return found == kRoutes.end() ? nullptr : found;
}

// A path with slashes at its end is told the one without them; `nullptr` when that is not a route
// either.
const Route* find_without_slashes(Door door, std::string_view path) {
  const std::size_t last = path.find_last_not_of('/');
  if (last == std::string_view::npos || last + 1 == path.size()) {
    return nullptr;
  }
  return find_route(door, path.substr(0, last + 1));
}

Reply redirect_to(const Route& route, const Request& request) {
  std::string target(route.path);
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
  const Route* route = find_route(door, path);
  return route != nullptr && route->method == method && method == "POST";
}

Reply answer(Door door, const Request& request, const RouteContext& context) {
  if (const Route* route = find_route(door, request.path)) {
    return answer_route(*route, request, context);
  }
  if (const Route* route = find_without_slashes(door, request.path)) {
    return redirect_to(*route, request);
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
