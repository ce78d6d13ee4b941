#include "config/numbers.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <string>
#include <system_error>

namespace larder::config {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\r\v\f";
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) {
    return {};
  }
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

// The text in lower case, without spaces around, a leading plus and underscores; empty when an
// underscore is not between digits.
std::string plain(std::string_view text) {
  text = trimmed(text);
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') {
    text.remove_prefix(1);
  }
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '_') {
      if (i == 0 || i + 1 == text.size() || !is_digit(text[i - 1]) || !is_digit(text[i + 1])) {
        return {};
      }
      continue;
    }
    const bool upper = text[i] >= 'A' && text[i] <= 'Z';
    result.push_back(upper ? static_cast<char>(text[i] - 'A' + 'a') : text[i]);
  }
  return result;
}

}  // namespace

std::optional<std::int64_t> parse_integer(std::string_view text) {
  const std::string digits = plain(text);
  std::int64_t value = 0;
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, value);
  if (error == std::errc::invalid_argument || stop != end) {
    return std::nullopt;
  }
  if (error == std::errc::result_out_of_range) {
    using Limits = std::numeric_limits<std::int64_t>;
    return digits.front() == '-' ? Limits::min() : Limits::max();
  }
  return value;
}

std::optional<double> parse_number(std::string_view text) {
  const std::string digits = plain(text);
  const std::string_view magnitude =
      std::string_view(digits).substr(digits.starts_with('-') ? 1 : 0);
  using Limits = std::numeric_limits<double>;
  if (magnitude == "nan") {
    return Limits::quiet_NaN();
  }
  if (magnitude == "inf" || magnitude == "infinity") {
    return digits.front() == '-' ? -Limits::infinity() : Limits::infinity();
  }
  // from_chars knows "nan(...)" too, which Python does not.
  if (!std::all_of(magnitude.begin(), magnitude.end(), [](char c) {
        return is_digit(c) || c == '.' || c == 'e' || c == '+' || c == '-';
      })) {
    return std::nullopt;
  }
  double value = 0;
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, value);
  if (error == std::errc::invalid_argument || stop != end) {
    return std::nullopt;
  }
  if (error == std::errc::result_out_of_range) {
    const double size = magnitude.find("e-") == std::string_view::npos ? Limits::infinity() : 0.0;
    return digits.front() == '-' ? -size : size;
  }
  return value;
}

}  // namespace larder::config
