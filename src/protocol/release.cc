#include "protocol/release.h"

#include <algorithm>

namespace larder::protocol {
namespace {

struct Names {
  std::string_view whole;
  std::string_view first;  // the oldest and the newest version of the dialect
  std::string_view last;
};

constexpr std::array<Names, kReleaseCount> kNames{{
    {"0.4.5", "0.4.5", "0.4.5"},
    {"0.4.6", "0.4.6", "0.4.6"},
    {"0.4.7", "0.4.7", "0.4.7"},
    {"0.5.0-0.5.1", "0.5.0", "0.5.1"},
    {"0.5.2", "0.5.2", "0.5.2"},
    {"0.5.3-0.5.4", "0.5.3", "0.5.4"},
    {"0.5.5", "0.5.5", "0.5.5"},
    {"0.5.6", "0.5.6", "0.5.6"},
    {"0.5.7rc3", "0.5.7rc3", "0.5.7rc3"},
}};

struct Version {
  std::string_view text;
  Release release;
};

constexpr auto kVersions = std::to_array<Version>({
    {"0.4.5", Release::k045},
    {"0.4.6", Release::k046},
    {"0.4.7", Release::k047},
    {"0.5.0", Release::k050},
    {"0.5.1", Release::k050},
    {"0.5.2", Release::k052},
    {"0.5.3", Release::k053},
    {"0.5.4", Release::k053},
    {"0.5.5", Release::k055},
    {"0.5.6", Release::k056},
    {"0.5.7rc3", Release::k057rc3},
});

}  // namespace

std::optional<Release> release_of_version(std::string_view version) {
  const auto* const found =
      std::find_if(kVersions.begin(), kVersions.end(), [version](const Version& known) {
        return known.text == version;
      });
  return found == kVersions.end() ? std::nullopt : std::optional(found->release);
}

std::string_view name_of(Release release) {
  return kNames[column_of(release)].whole;
}

std::string to_string(ReleaseSet releases) {
  if (releases.empty()) {
    return "none";
  }
  if (releases == ReleaseSet::all()) {
    return "any";
  }
  std::string text;
  for (std::size_t column = 0; column < kReleaseCount; ++column) {
    if (!releases.contains(kReleases[column])) {
      continue;
    }
    std::size_t last = column;
    while (last + 1 < kReleaseCount && releases.contains(kReleases[last + 1])) {
      ++last;
    }
    text += text.empty() ? "" : ", ";
    text += kNames[column].first;
    if (kNames[last].last != kNames[column].first) {
      text += '-';
      text += kNames[last].last;
    }
    column = last;
  }
  return text;
}

}  // namespace larder::protocol
