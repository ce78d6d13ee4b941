// flags.h - THE table of command-line flags: the reference server's and ours, with what larder does
// with each.
//
// Help, docs/flags.md, parsing, notices and refusals all walk this table; a new flag is one row
// here and, when it is supported, a few lines in settings.cc. Constant; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace larder::config {

enum class Kind : std::uint8_t {
  kText,      // one value
  kInteger,   // one value, a whole number
  kNumber,    // one value, any number
  kSwitch,    // no value; off unless given
  kPair,      // --name and --no-name, no value
  kWords,     // zero or more values; the last use wins
  kRepeated,  // one value each time; the uses add up
};

enum class Group : std::uint8_t {
  kRequestPort,
  kPortLimits,
  kMemory,
  kEviction,
  kThreads,
  kHttp,
  kGeneral,
  kMetrics,
  kEngine,
  kL2,
  kOtherL1,
  kPeers,
  kCoordinator,
  kTrace,
  kPlugins,
};

// The first release of the reference that has the flag. Prefixes are resolved among 0.5.2's flags
// first, so that a command line that worked there is never ambiguous here.
enum class Since : std::uint8_t { k052, k056, kLarder };

enum class Status : std::uint8_t {
  kSupported,
  kNoEffect,  // accepted; any value but the reference's default is worth a notice
  kRefused,   // asks for what larder lacks; only the reference's default is accepted
};

struct Flag {
  std::string_view name;  // without dashes
  Kind kind;
  std::string_view default_value;  // as one would type it; empty: none
  std::string_view choices;        // "a|b"; empty: any value
  Group group;
  Since since;
  Status status;
  std::string_view text;  // kSupported: the help; else: why, and what to do instead
};

std::span<const Flag> flags();

// nullptr when there is none of exactly this name.
const Flag* find_flag(std::string_view name);

std::string_view group_title(Group group);

}  // namespace larder::config
