// text_page.h - the lines of the Prometheus text format 0.0.4.
//
// Pure functions that append to a page; private to this room. Every line they write can be read by
// a strict parser, whatever the bytes of a label value are: one bad value would cost the operator
// the whole scrape.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "metrics/metrics.h"

namespace larder::metrics {

struct FamilyName {
  std::string name;
  std::string help;
};

bool is_metric_name(std::string_view name);
bool is_label_name(std::string_view name);

// `text` with every byte that is not part of valid UTF-8, and every NUL, replaced by U+FFFD:
// Prometheus refuses a page that holds either.
std::string scrapable(std::string_view text);

// The HELP and TYPE lines; `type` is "counter" or "gauge".
void append_header(std::string& page, const FamilyName& family, std::string_view type);

// One sample. REQUIRES: label names are valid, label values are scrapable().
void append_sample(std::string& page,
                   std::string_view name,
                   const Labels& labels,
                   std::uint64_t value);
void append_sample(std::string& page, std::string_view name, const Labels& labels, double value);

}  // namespace larder::metrics
