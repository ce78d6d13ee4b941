// utf8.h - whether bytes of a peer are UTF-8 as RFC 3629 has it: no overlong forms, no surrogates,
// nothing above U+10FFFF. Pure.
#pragma once

#include <string_view>

namespace larder::codec {

bool is_valid_utf8(std::string_view text);

}  // namespace larder::codec
