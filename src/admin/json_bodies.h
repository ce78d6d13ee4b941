// json_bodies.h - the JSON that routes read and write: the bodies of POST /cache/clear and of the
// quota routes, and text.
//
// Private to this room. The replies are those of the reference (FastAPI's): a client that sees them
// there sees them here. "force" is checked but has no effect: 0.5.2 always clears, locked objects
// included.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "admin/http_server.h"

namespace larder::admin {

struct Refusal {
  int status;
  std::string body;
};

// Empty when L1 is to be cleared: no body, null, or an object whose tier is "l1" or absent.
std::optional<Refusal> refuse_clear(std::string_view content_type, std::string_view body);

// The limit that a PUT of a quota asks for, in GiB: finite and not negative.
std::variant<double, Refusal> read_limit_gb(std::string_view body);

// The replies of the quota routes. The empty salt is called "_default", as in their paths.
std::string quota_set(std::string_view salt, double limit_gb);
std::string quota_removed(std::string_view salt, bool existed);
std::string quota_shown(const SaltQuota& quota);
std::string quotas_listed(const std::vector<SaltQuota>& quotas);

// `text` as a JSON string, with the quotes; bytes that are not UTF-8 are replaced, so that every
// reply can be read.
std::string json_string(std::string_view text);

}  // namespace larder::admin
