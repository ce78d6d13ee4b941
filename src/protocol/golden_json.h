// golden_json.h - for tests: the golden frames of tests/fixtures/wire/<release>.json as plain
// values, and what the releases call the operations of our table.
//
// The fixture's notation: {"$bytes": hex}, {"$tuple": [...]}, {"$float": text}, {"$int": text},
// {"$enum": value},
// {"$ipc": hex}, {"$obj": class, fields...}.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/release.h"

namespace larder::protocol::golden {

using Json = nlohmann::json;

inline Json load(const std::string& name) {
  std::ifstream file(std::string(LARDER_FIXTURES) + "/" + name);
  return Json::parse(file);
}

// The recorded versions; 0.5.0 equals 0.5.1 and 0.5.3 equals 0.5.4 on the wire.
inline std::vector<std::string> recorded_versions() {
  return {"0.4.5", "0.4.6", "0.4.7", "0.5.1", "0.5.2", "0.5.4", "0.5.5", "0.5.6", "0.5.7rc3"};
}

// For tests with one case a version.
inline std::string name_of_version(const testing::TestParamInfo<std::string>& version) {
  std::string name = version.param;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

inline Json load_version(const std::string& version) {
  return load("wire/" + version + ".json");
}

// Our name for what a release calls `name`: ours are the newest names.
inline std::string row_name(std::string name, Release release) {
  const auto replace = [&name](std::string_view from, std::string_view to) {
    if (const std::size_t at = name.find(from); at != std::string::npos) {
      name.replace(at, from.size(), to);
    }
  };
  const bool is_blend_v1 = name == "CB_LOOKUP_PRE_COMPUTED" ||
                           (name == "CB_RETRIEVE_PRE_COMPUTED" && release < Release::k055);
  if (is_blend_v1) {
    return name + "_V1";
  }
  replace("NON_GPU", "ENGINE_DRIVEN");
  replace("_V3", "");
  return name;
}

inline std::vector<std::byte> from_hex(const std::string& hex) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

inline std::string to_hex(std::span<const std::byte> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string hex;
  for (const std::byte byte : bytes) {
    hex += kDigits[std::to_integer<unsigned>(byte) >> 4U];
    hex += kDigits[std::to_integer<unsigned>(byte) & 0xFU];
  }
  return hex;
}

// Tuples as arrays, objects as maps without their class, numbers as numbers; bytes stay hex text.
inline Json plain(const Json& value) {
  if (value.is_array()) {
    Json items = Json::array();
    for (const Json& item : value) {
      items.push_back(plain(item));
    }
    return items;
  }
  if (!value.is_object()) {
    return value;
  }
  if (value.contains("$tuple")) {
    return plain(value["$tuple"]);
  }
  if (value.contains("$int")) {
    const std::string text = value["$int"];
    return text.front() == '-' ? Json(std::stoll(text)) : Json(std::stoull(text));
  }
  if (value.contains("$float")) {
    return std::stod(value["$float"].get<std::string>());
  }
  for (const char* wrapped : {"$bytes", "$ipc", "$enum"}) {
    if (value.contains(wrapped)) {
      return value[wrapped];
    }
  }
  Json fields = Json::object();
  for (const auto& [name, field] : value.items()) {
    if (name != "$obj") {
      fields[name] = plain(field);
    }
  }
  return fields;
}

// The frames of a recorded message, kept alive with the views onto them.
class RecordedFrames {
 public:
  explicit RecordedFrames(const Json& frames) {
    for (const Json& frame : frames) {
      bytes_.push_back(from_hex(frame));
    }
    views_.assign(bytes_.begin(), bytes_.end());
  }

  std::span<const std::span<const std::byte>> all() const { return views_; }

  std::span<const std::span<const std::byte>> payloads() const {
    return std::span(views_).subspan(std::min<std::size_t>(2, views_.size()));
  }

 private:
  std::vector<std::vector<std::byte>> bytes_;
  std::vector<std::span<const std::byte>> views_;
};

}  // namespace larder::protocol::golden
