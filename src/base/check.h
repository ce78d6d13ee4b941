// check.h - for bugs, on in every build: prints the condition and its place, then aborts.
//
// Never on anything that comes from a peer, a file or the operating system: those are Errors
// (base/result.h).
#pragma once

namespace larder {

[[noreturn]] void check_failed(const char* condition, const char* file, int line);

}  // namespace larder

#define LARDER_CHECK(condition)                        \
  (static_cast<bool>(condition) ? static_cast<void>(0) \
                                : ::larder::check_failed(#condition, __FILE__, __LINE__))

#define LARDER_UNREACHABLE() ::larder::check_failed("unreachable", __FILE__, __LINE__)
