// json_bodies.h - the JSON that routes read and write: the body of POST /cache/clear, and text.
//
// Private to this room. The replies are those of the reference (FastAPI's): a client that sees them
// there sees them here. "force" is checked but has no effect: 0.5.2 always clears, locked objects
// included.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace larder::admin {

struct Refusal {
  int status;
  std::string body;
};

// Empty when L1 is to be cleared: no body, null, or an object whose tier is "l1" or absent.
std::optional<Refusal> refuse_clear(std::string_view content_type, std::string_view body);

// `text` as a JSON string, with the quotes; bytes that are not UTF-8 are replaced, so that every
// reply can be read.
std::string json_string(std::string_view text);

}  // namespace larder::admin
