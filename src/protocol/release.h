// release.h - the LMCache releases whose wire dialects we know, and sets of them.
//
// One enumerator per dialect ("wire profile"): releases that are equal on the wire share one. The
// enumerator is the column of the operation table (handlers/operations.cc) and a parameter of every
// decoder and encoder. Order is age: `release >= Release::k055` reads "0.5.5 and later".
//
// Some dialects give the core operations (1 to 24) the same numbers; they form a family. Within a
// family a core message means the same, so a connection need not be told apart further.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

namespace larder::protocol {

enum class Release : std::uint8_t {
  k045,     // 0.4.5
  k046,     // 0.4.6
  k047,     // 0.4.7
  k050,     // 0.5.0, 0.5.1
  k052,     // 0.5.2
  k053,     // 0.5.3, 0.5.4
  k055,     // 0.5.5
  k056,     // 0.5.6
  k057rc3,  // 0.5.7rc3
};

inline constexpr std::array kReleases{Release::k045,
                                      Release::k046,
                                      Release::k047,
                                      Release::k050,
                                      Release::k052,
                                      Release::k053,
                                      Release::k055,
                                      Release::k056,
                                      Release::k057rc3};

inline constexpr std::size_t kReleaseCount = kReleases.size();

constexpr std::size_t column_of(Release release) {
  return static_cast<std::size_t>(release);
}

// "0.5.2" or "0.5.0"; nullopt for a version that is not known.
std::optional<Release> release_of_version(std::string_view version);

// "0.4.7", "0.5.0-0.5.1".
std::string_view name_of(Release release);

class ReleaseSet {
 public:
  constexpr ReleaseSet() = default;

  constexpr ReleaseSet(std::initializer_list<Release> releases) {
    for (const Release release : releases) {
      insert(release);
    }
  }

  static constexpr ReleaseSet all() { return between(kReleases.front(), kReleases.back()); }

  // Both ends are in it.
  static constexpr ReleaseSet between(Release oldest, Release newest) {
    ReleaseSet set;
    for (const Release release : kReleases) {
      if (release >= oldest && release <= newest) {
        set.insert(release);
      }
    }
    return set;
  }

  static constexpr ReleaseSet since(Release oldest) { return between(oldest, kReleases.back()); }

  constexpr void insert(Release release) { bits_ |= 1U << column_of(release); }

  constexpr bool contains(Release release) const { return (bits_ >> column_of(release) & 1U) != 0; }

  constexpr bool contains(ReleaseSet other) const { return (other.bits_ & ~bits_) == 0; }

  constexpr bool empty() const { return bits_ == 0; }

  constexpr std::size_t size() const {
    std::size_t count = 0;
    for (const Release release : kReleases) {
      count += contains(release) ? 1U : 0U;
    }
    return count;
  }

  // REQUIRES: not empty().
  constexpr Release oldest() const {
    for (const Release release : kReleases) {
      if (contains(release)) {
        return release;
      }
    }
    return kReleases.back();
  }

  // The releases of this set for which `holds(release)` is true.
  template <typename Predicate>
  constexpr ReleaseSet where(Predicate holds) const {
    ReleaseSet chosen;
    for (const Release release : kReleases) {
      if (contains(release) && holds(release)) {
        chosen.insert(release);
      }
    }
    return chosen;
  }

  friend constexpr ReleaseSet operator&(ReleaseSet left, ReleaseSet right) {
    ReleaseSet both;
    both.bits_ = left.bits_ & right.bits_;
    return both;
  }

  friend constexpr bool operator==(ReleaseSet, ReleaseSet) = default;

 private:
  std::uint32_t bits_ = 0;
};

// Those that share the numbers of the core operations with `release`.
constexpr ReleaseSet family_of(Release release) {
  if (release >= Release::k053) {
    return ReleaseSet::since(Release::k053);
  }
  return release >= Release::k050 ? ReleaseSet::between(Release::k050, Release::k052)
                                  : ReleaseSet{release};
}

// True when all of a set that is not empty are of one family.
constexpr bool is_one_family(ReleaseSet releases) {
  return !releases.empty() && family_of(releases.oldest()).contains(releases);
}

// "0.5.3-0.5.6", "0.4.6, 0.5.0-0.5.2", "any", "none".
std::string to_string(ReleaseSet releases);

}  // namespace larder::protocol
