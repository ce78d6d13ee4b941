// The operation table as docs/protocol.md shows it.

#include "base/check.h"
#include "base/log.h"
#include "handlers/operations.h"

namespace larder::handlers {
namespace {

using protocol::Release;
using protocol::ReleaseSet;

std::string cell_of(std::int16_t id) {
  switch (id) {
    case kAbsent:
      return "-";
    case kByName:
      return "name";
    default:
      return std::to_string(id);
  }
}

ReleaseSet releases_of(const Operation& operation) {
  return ReleaseSet::all().where(
      [&operation](Release release) { return operation.ids[column_of(release)] != kAbsent; });
}

std::string payloads_text(const Operation& operation, Release release) {
  std::string text;
  for (const protocol::PayloadKind kind : operation.payloads(release)) {
    text += text.empty() ? "" : ", ";
    text += name_of(kind);
  }
  return text.empty() ? "none" : text;
}

std::string_view lane_name(transport::Lane lane) {
  switch (lane) {
    case transport::Lane::kWire:
      return "wire";
    case transport::Lane::kLookup:
      return "lookup";
    case transport::Lane::kTransfer:
      return "transfer";
  }
  LARDER_UNREACHABLE();
}

// "`x`" when every release has the same text, else "`x` (0.4.5-0.4.6), `y` (0.4.7-0.5.7rc3)".
template <typename TextOf>
std::string by_release(const Operation& operation, TextOf text_of) {
  const ReleaseSet known = releases_of(operation);
  ReleaseSet left = known;
  std::string all;
  while (!left.empty()) {
    const std::string text(text_of(left.oldest()));
    const ReleaseSet alike =
        left.where([&](Release release) { return text == std::string(text_of(release)); });
    all += all.empty() ? "" : ", ";
    all += fmt::format("`{}`", text);
    if (!(alike == known)) {
      all += fmt::format(" ({})", to_string(alike));
    }
    left = left.where([alike](Release release) { return !alike.contains(release); });
  }
  return all;
}

void render_numbers(std::string& page) {
  page += "| operation |";
  std::string line = "|---|";
  for (const Release release : protocol::kReleases) {
    page += fmt::format(" {} |", name_of(release));
    line += "---|";
  }
  page += "\n" + line + "\n";
  for (const Operation& operation : operations()) {
    page += fmt::format("| {} |", operation.name);
    for (const std::int16_t id : operation.ids) {
      page += fmt::format(" {} |", cell_of(id));
    }
    page += "\n";
  }
}

void render_forms(std::string& page) {
  page += "| operation | payloads | reply | lane |\n|---|---|---|---|\n";
  for (const Operation& operation : operations()) {
    page += fmt::format(
        "| {} | {} | {} | {} |\n",
        operation.name,
        by_release(operation, [&](Release release) { return payloads_text(operation, release); }),
        by_release(operation, operation.reply),
        lane_name(operation.lane));
  }
}

}  // namespace

std::string render_operations() {
  std::string page;
  render_numbers(page);
  page += "\n";
  render_forms(page);
  return page;
}

}  // namespace larder::handlers
