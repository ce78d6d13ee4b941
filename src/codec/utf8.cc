#include "codec/utf8.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace larder::codec {

bool is_valid_utf8(std::string_view text) {
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto continues = [&](std::ptrdiff_t offset, unsigned low, unsigned high) {
    if (end - at <= offset) {
      return false;
    }
    const auto byte = static_cast<unsigned char>(at[offset]);
    return byte >= low && byte <= high;
  };
  while (at != end) {
    std::uint64_t word = 0;
    if (end - at >= 8) {
      std::memcpy(&word, at, sizeof(word));
      if ((word & 0x8080808080808080ULL) == 0) {
        at += 8;
        continue;
      }
    }
    const auto lead = static_cast<unsigned char>(*at);
    if (lead < 0x80) {
      at += 1;
    } else if (lead >= 0xc2 && lead <= 0xdf && continues(1, 0x80, 0xbf)) {
      at += 2;
    } else if (lead >= 0xe0 && lead <= 0xef &&
               continues(1, lead == 0xe0 ? 0xa0 : 0x80, lead == 0xed ? 0x9f : 0xbf) &&
               continues(2, 0x80, 0xbf)) {
      at += 3;
    } else if (lead >= 0xf0 && lead <= 0xf4 &&
               continues(1, lead == 0xf0 ? 0x90 : 0x80, lead == 0xf4 ? 0x8f : 0xbf) &&
               continues(2, 0x80, 0xbf) && continues(3, 0x80, 0xbf)) {
      at += 4;
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace larder::codec
