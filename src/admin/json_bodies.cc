#include "admin/json_bodies.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include "config/numbers.h"

namespace larder::admin {
namespace {

using Json = nlohmann::ordered_json;

// Deeper bodies are refused: printing one back recurses.
constexpr int kDepthMax = 32;

std::string print(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return result;
}

bool is_json(std::string_view content_type) {
  std::string type = lower(content_type.substr(0, content_type.find(';')));
  type.erase(std::find_if_not(type.rbegin(), type.rend(), [](char c) { return c == ' '; }).base(),
             type.end());
  return type == "application/json" ||
         (type.starts_with("application/") && type.ends_with("+json"));
}

// Where the body stops being JSON, if it does.
struct NotJson {
  std::size_t position;
};

std::variant<Json, NotJson> parse(std::string_view body) {
  bool too_deep = false;
  const auto within_depth = [&too_deep](
                                int depth, Json::parse_event_t /*event*/, const Json& /*value*/) {
    too_deep = too_deep || depth > kDepthMax;
    return depth <= kDepthMax;
  };
  try {
    Json parsed = Json::parse(body.begin(), body.end(), within_depth);
    if (too_deep) {
      return NotJson{0};
    }
    return parsed;
  } catch (const Json::parse_error& error) {
    return NotJson{std::max<std::size_t>(error.byte, 1) - 1};
  } catch (const Json::out_of_range&) {  // a number
    return NotJson{0};
  }
}

// FastAPI's shape: one entry per wrong field.
std::optional<Refusal> refuse(Json problems) {
  if (problems.empty()) {
    return std::nullopt;
  }
  return Refusal{422, print(Json{{"detail", std::move(problems)}})};
}

Json not_json(std::size_t position) {
  return {{"type", "json_invalid"},
          {"loc", {"body", position}},
          {"msg", "JSON decode error"},
          {"input", Json::object()},
          {"ctx", {{"error", "Invalid JSON"}}}};
}

Json not_an_object(Json input) {
  return {{"type", "dataclass_type"},
          {"loc", {"body"}},
          {"msg", "Input should be a dictionary or an instance of ClearRequest"},
          {"input", std::move(input)},
          {"ctx", {{"class_name", "ClearRequest"}}}};
}

bool is_tier(const Json& value) {
  return value == "l1" || value == "l2" || value == "all";
}

Json not_a_tier(const Json& input) {
  return {{"type", "enum"},
          {"loc", {"body", "tier"}},
          {"msg", "Input should be 'l1', 'l2' or 'all'"},
          {"input", input},
          {"ctx", {{"expected", "'l1', 'l2' or 'all'"}}}};
}

// What the reference takes for true or false.
bool is_boolean(const Json& value) {
  constexpr std::array<std::string_view, 12> kWords = {
      "true", "t", "yes", "y", "on", "1", "false", "f", "no", "n", "off", "0"};
  if (value.is_string()) {
    const std::string word = lower(value.get_ref<const std::string&>());
    return std::find(kWords.begin(), kWords.end(), word) != kWords.end();
  }
  return value.is_boolean() ||
         (value.is_number() && (value.get<double>() == 0.0 || value.get<double>() == 1.0));
}

Json not_a_boolean(const Json& input) {
  const bool parsable = input.is_string() || input.is_number_integer();
  return {{"type", parsable ? "bool_parsing" : "bool_type"},
          {"loc", {"body", "force"}},
          {"msg",
           parsable ? "Input should be a valid boolean, unable to interpret input"
                    : "Input should be a valid boolean"},
          {"input", input}};
}

std::optional<Refusal> check_fields(const Json& body) {
  Json problems = Json::array();
  const auto tier = body.find("tier");
  if (tier != body.end() && !is_tier(*tier)) {
    problems.push_back(not_a_tier(*tier));
  }
  const auto force = body.find("force");
  if (force != body.end() && !is_boolean(*force)) {
    problems.push_back(not_a_boolean(*force));
  }
  if (auto refused = refuse(std::move(problems))) {
    return refused;
  }
  if (tier != body.end() && *tier != "l1") {
    return Refusal{
        400, R"({"detail":"tier ')" + tier->get<std::string>() + R"(' not supported; only 'l1'"})"};
  }
  return std::nullopt;
}

Refusal bad_quota(std::string_view text) {
  return {400, print(Json{{"error", text}})};
}

// What Python's float() makes of it.
std::optional<double> number_of(const Json& value) {
  if (value.is_string()) {
    return config::parse_number(value.get_ref<const std::string&>());
  }
  if (value.is_boolean()) {
    return value.get<bool>() ? 1.0 : 0.0;
  }
  return value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
}

// A limit that Python's JSON reader takes for a number, though JSON has none like it.
bool is_limit_beyond_json(std::string_view body) {
  constexpr std::string_view kKey = R"({"limit_gb":)";
  std::string dense;
  std::copy_if(body.begin(), body.end(), std::back_inserter(dense), [](char c) {
    return c != ' ' && c != '\t' && c != '\n' && c != '\r';
  });
  if (!dense.starts_with(kKey) || !dense.ends_with('}')) {
    return false;
  }
  const std::string_view number =
      std::string_view(dense).substr(kKey.size(), dense.size() - kKey.size() - 1);
  const std::optional<double> limit = config::parse_number(number);
  return limit.has_value() && !std::isfinite(*limit);
}

std::string name_of(std::string_view salt) {
  return salt.empty() ? "_default" : std::string(salt);
}

double gibibytes(std::uint64_t bytes) {
  constexpr double kGibibyte = 1U << 30;
  return static_cast<double>(bytes) / kGibibyte;
}

}  // namespace

std::string json_string(std::string_view text) {
  return print(Json(std::string(text)));
}

std::optional<Refusal> refuse_clear(std::string_view content_type, std::string_view body) {
  if (body.empty()) {
    return std::nullopt;
  }
  if (!is_json(content_type)) {
    return refuse(Json::array({not_an_object(std::string(body))}));
  }
  const auto parsed = parse(body);
  if (const NotJson* const failure = std::get_if<NotJson>(&parsed)) {
    return refuse(Json::array({not_json(failure->position)}));
  }
  const Json& value = *std::get_if<Json>(&parsed);
  if (value.is_null()) {
    return std::nullopt;
  }
  if (!value.is_object()) {
    return refuse(Json::array({not_an_object(value)}));
  }
  return check_fields(value);
}

std::variant<double, Refusal> read_limit_gb(std::string_view body) {
  const auto parsed = parse(body);
  const Json* const value = std::get_if<Json>(&parsed);
  if (value == nullptr) {
    return is_limit_beyond_json(body) ? bad_quota("limit_gb must be finite")
                                      : bad_quota("invalid JSON body");
  }
  if (!value->is_object() || !value->contains("limit_gb")) {
    return bad_quota("body must be {'limit_gb': <float>}");
  }
  const std::optional<double> limit_gb = number_of((*value)["limit_gb"]);
  if (!limit_gb.has_value()) {
    return bad_quota("limit_gb must be numeric");
  }
  if (!std::isfinite(*limit_gb)) {
    return bad_quota("limit_gb must be finite");
  }
  if (*limit_gb < 0) {
    return bad_quota("limit_gb must be non-negative");
  }
  return *limit_gb;
}

std::string quota_set(std::string_view salt, double limit_gb) {
  return print(Json{{"cache_salt", name_of(salt)}, {"limit_gb", limit_gb}, {"status", "ok"}});
}

std::string quota_removed(std::string_view salt, bool existed) {
  return print(Json{{"cache_salt", name_of(salt)}, {"status", existed ? "removed" : "not_found"}});
}

std::string quota_shown(const SaltQuota& quota) {
  return print(Json{{"cache_salt", name_of(quota.cache_salt)},
                    {"limit_gb", gibibytes(quota.limit_bytes.value_or(0))},
                    {"current_usage_gb", gibibytes(quota.used_bytes)},
                    {"exists", quota.limit_bytes.has_value()}});
}

std::string quotas_listed(const std::vector<SaltQuota>& quotas) {
  Json users = Json::object();
  for (const SaltQuota& quota : quotas) {
    users[name_of(quota.cache_salt)] = {
        {"limit_gb", gibibytes(quota.limit_bytes.value_or(0))},
        {"current_usage_gb", gibibytes(quota.used_bytes)},
    };
  }
  return print(Json{{"users", std::move(users)}});
}

}  // namespace larder::admin
