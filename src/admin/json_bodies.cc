#include "admin/json_bodies.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

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
  return value.is_boolean() || (value.is_number() && (value == 0 || value == 1));
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
  bool too_deep = false;
  const auto within_depth = [&too_deep](
                                int depth, Json::parse_event_t /*event*/, const Json& /*value*/) {
    too_deep = too_deep || depth > kDepthMax;
    return depth <= kDepthMax;
  };
  Json parsed;
  try {
    parsed = Json::parse(body.begin(), body.end(), within_depth);
  } catch (const Json::parse_error& error) {
    return refuse(Json::array({not_json(std::max<std::size_t>(error.byte, 1) - 1)}));
  }
  if (too_deep) {
    return refuse(Json::array({not_json(0)}));
  }
  if (parsed.is_null()) {
    return std::nullopt;
  }
  if (!parsed.is_object()) {
    return refuse(Json::array({not_an_object(std::move(parsed))}));
  }
  return check_fields(parsed);
}

}  // namespace larder::admin
