// routes.h - what each path of the admin port answers.
//
// Private to this room; knows no socket and no HTTP library. One table; called on many threads,
// concurrently. Never throws: what an action throws becomes a 500.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "admin/http_server.h"

namespace larder::admin {

// The ports a request may come in by; a route names those that serve it.
enum class Door { kAdmin, kPrometheus };

struct Request {
  std::string method;
  std::string path;   // percent-decoded, without the query
  std::string query;  // as sent, without the question mark
  std::string content_type;
  std::string body;
};

struct Reply {
  int status = 200;
  std::string content_type = "application/json";  // empty: no such header
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
};

struct RouteContext {
  const AdminActions& actions;
  const metrics::Registry& metrics;
};

// False when the answer does not depend on a body: it need not be read.
bool takes_body(Door door, std::string_view method, std::string_view path);

Reply answer(Door door, const Request& request, const RouteContext& context);

// For requests that are refused before a route is asked.
Reply refusal(int status);

}  // namespace larder::admin
