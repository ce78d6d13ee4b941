// Any bytes as a request of the admin port, past the HTTP library: method, path, content type and
// body, each but the last ended by a zero byte. It must be answered with a status that the routes
// know; a limit that is set must be one; what is sent back in a header must stay in its line.
#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "admin/routes.h"
#include "base/check.h"
#include "base/log.h"
#include "metrics/metrics.h"

namespace {

using larder::admin::AdminActions;
using larder::admin::Door;
using larder::admin::Health;
using larder::admin::Reply;
using larder::admin::Request;
using larder::admin::SaltQuota;

constexpr std::uint64_t kLimitMax = std::uint64_t{1} << 62;

std::string next_field(std::string_view& input) {
  const std::size_t end = std::min(input.find('\0'), input.size());
  std::string field(input.substr(0, end));
  input.remove_prefix(std::min(end + 1, input.size()));
  return field;
}

AdminActions actions() {
  AdminActions actions;
  actions.health = [] { return Health{}; };
  actions.status_json = [] { return std::string("{}"); };
  actions.clear_l1 = [] {};
  actions.quotas.all = [] { return std::vector<SaltQuota>{{"salt", 1, 2}}; };
  actions.quotas.of = [](const std::string& salt) { return SaltQuota{salt, std::nullopt, 0}; };
  actions.quotas.set = [](const std::string& salt, std::uint64_t limit) {
    LARDER_CHECK(salt.find('/') == std::string::npos && limit <= kLimitMax);
    return true;
  };
  actions.quotas.remove = [](const std::string& salt) { return salt.empty(); };
  return actions;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  larder::log::set_level(larder::log::Level::kOff);
  std::string_view input(reinterpret_cast<const char*>(bytes), size);
  Request request;
  request.method = next_field(input);
  request.path = next_field(input);
  request.content_type = next_field(input);
  request.body = input;
  const AdminActions all = actions();
  const larder::metrics::Registry metrics;
  for (const Door door : {Door::kAdmin, Door::kPrometheus}) {
    const Reply reply = larder::admin::answer(door, request, {all, metrics});
    constexpr auto kStatuses = std::to_array<int>({200, 307, 400, 404, 405, 422});
    LARDER_CHECK(std::find(kStatuses.begin(), kStatuses.end(), reply.status) != kStatuses.end());
    for (const auto& [name, value] : reply.headers) {
      LARDER_CHECK(value.find_first_of("\r\n") == std::string::npos);
    }
  }
  return 0;
}
