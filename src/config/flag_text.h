// flag_text.h - the table of flags as text: for the terminal and for docs/flags.md. Pure functions.
#pragma once

#include <string>

namespace larder::config {

std::string render_usage();           // `larder --help`
std::string render_flags_help();      // `larder serve --help`
std::string render_flags_markdown();  // docs/flags.md, byte for byte

}  // namespace larder::config
