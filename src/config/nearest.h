// nearest.h - which known word somebody probably meant. Pure functions.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace larder::config {

// How many insertions, deletions, replacements and swaps of neighbours turn one word into the
// other.
std::size_t edit_distance(std::string_view left, std::string_view right);

// The known word nearest to `word`, or else the first that contains it; empty when none is near.
std::string nearest_word(std::string_view word, std::span<const std::string> known);

}  // namespace larder::config
