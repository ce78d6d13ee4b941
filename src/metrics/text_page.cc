#include "metrics/text_page.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace larder::metrics {
namespace {

// Up to here every whole number is a double of its own.
constexpr double kExactWholeMax = 9007199254740992.0;

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

std::uint32_t byte_at(std::string_view text, std::size_t index) {
  return static_cast<unsigned char>(text[index]);
}

struct Utf8Lead {
  std::size_t length;      // bytes of the whole sequence; 0: no sequence starts like this
  std::uint32_t bits;      // of the first byte
  std::uint32_t code_min;  // below: a longer form than needed, which is not valid
};

Utf8Lead utf8_lead(std::uint32_t byte) {
  if (byte < 0x80) {
    return {1, byte, 0};
  }
  if ((byte & 0xE0U) == 0xC0) {
    return {2, byte & 0x1FU, 0x80};
  }
  if ((byte & 0xF0U) == 0xE0) {
    return {3, byte & 0x0FU, 0x800};
  }
  if ((byte & 0xF8U) == 0xF0) {
    return {4, byte & 0x07U, 0x10000};
  }
  return {0, 0, 0};
}

// Length of the valid UTF-8 sequence at `start`, 0 when there is none.
std::size_t utf8_length_at(std::string_view text, std::size_t start) {
  const Utf8Lead lead = utf8_lead(byte_at(text, start));
  if (lead.length == 0 || lead.length > text.size() - start) {
    return 0;
  }
  std::uint32_t code = lead.bits;
  for (std::size_t i = 1; i < lead.length; ++i) {
    const std::uint32_t next = byte_at(text, start + i);
    if ((next & 0xC0U) != 0x80) {
      return 0;
    }
    code = (code << 6U) | (next & 0x3FU);
  }
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  const bool valid = code >= lead.code_min && code <= 0x10FFFF && !surrogate;
  return valid ? lead.length : 0;
}

// In HELP text only backslash and line feed are escaped, in label values the quote as well.
void append_escaped(std::string& page, std::string_view text, bool quoted) {
  for (const char c : text) {
    if (c == '\n') {
      page += "\\n";
      continue;
    }
    if (c == '\\' || (quoted && c == '"')) {
      page += '\\';
    }
    page += c;
  }
}

void append_name(std::string& page, std::string_view name, const Labels& labels) {
  page += name;
  if (labels.empty()) {
    page += ' ';
    return;
  }
  char separator = '{';
  for (const auto& [label, value] : labels) {
    page += separator;
    page += label;
    page += "=\"";
    append_escaped(page, value, true);
    page += '"';
    separator = ',';
  }
  page += "} ";
}

void append_count(std::string& page, std::uint64_t value) {
  page += std::to_string(value);
  page += ".0";
}

void append_number(std::string& page, double value) {
  if (std::isnan(value)) {
    page += "NaN";
    return;
  }
  if (std::isinf(value)) {
    page += value > 0 ? "+Inf" : "-Inf";
    return;
  }
  if (std::abs(value) <= kExactWholeMax && std::trunc(value) == value) {
    page += value < 0 ? "-" : "";
    append_count(page, static_cast<std::uint64_t>(std::abs(value)));
    return;
  }
  std::array<char, 64> digits{};  // the shortest form that reads back as the same double needs 24
  const auto written = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  page.append(digits.data(), written.ptr);
}

}  // namespace

bool is_metric_name(std::string_view name) {
  return !name.empty() && !is_digit(name.front()) &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return is_letter(c) || is_digit(c) || c == ':';
         });
}

bool is_label_name(std::string_view name) {
  // A leading "__" belongs to Prometheus itself.
  return is_metric_name(name) && name.find(':') == std::string_view::npos &&
         !name.starts_with("__");
}

std::string scrapable(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t length = text[at] == '\0' ? 0 : utf8_length_at(text, at);
    result += length == 0 ? kReplacement : text.substr(at, length);
    at += std::max<std::size_t>(length, 1);
  }
  return result;
}

void append_header(std::string& page, const FamilyName& family, std::string_view type) {
  page += "# HELP ";
  page += family.name;
  page += ' ';
  append_escaped(page, family.help, false);
  page += "\n# TYPE ";
  page += family.name;
  page += ' ';
  page += type;
  page += '\n';
}

void append_sample(std::string& page,
                   std::string_view name,
                   const Labels& labels,
                   std::uint64_t value) {
  append_name(page, name, labels);
  append_count(page, value);
  page += '\n';
}

void append_sample(std::string& page, std::string_view name, const Labels& labels, double value) {
  append_name(page, name, labels);
  append_number(page, value);
  page += '\n';
}

}  // namespace larder::metrics
