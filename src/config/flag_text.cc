#include "config/flag_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/check.h"
#include "config/flags.h"

namespace larder::config {
namespace {

constexpr std::size_t kColumns = 80;
constexpr std::size_t kIndent = 6;

// "NUMBER", "{a,b}": what stands for the value.
std::string value_word(const Flag& flag) {
  // A longer list does not fit in front of the help, which names them then.
  constexpr std::size_t kChoicesMax = 50;
  if (flag.choices.size() > kChoicesMax) {
    return "CHOICE";
  }
  if (!flag.choices.empty()) {
    std::string choices(flag.choices);
    std::replace(choices.begin(), choices.end(), '|', ',');
    return fmt::format("{{{}}}", choices);
  }
  switch (flag.kind) {
    case Kind::kText:
    case Kind::kRepeated:
      return "TEXT";
    case Kind::kInteger:
      return "INTEGER";
    case Kind::kNumber:
      return "NUMBER";
    case Kind::kWords:
      return "[TEXT ...]";
    case Kind::kSwitch:
    case Kind::kPair:
      return "";
  }
  LARDER_UNREACHABLE();
}

std::string spelled(const Flag& flag) {
  std::string text = fmt::format("--{}", flag.name);
  if (flag.kind == Kind::kPair) {
    text += fmt::format(", --no-{}", flag.name);
  }
  const std::string value = value_word(flag);
  return value.empty() ? text : text + " " + value;
}

std::string wrapped(std::string_view text, std::size_t indent) {
  std::string result;
  std::size_t column = kColumns;  // so that the first word opens a line
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(word.size() + 1, text.size()));
    if (column + 1 + word.size() > kColumns) {
      result += (result.empty() ? "" : "\n") + std::string(indent, ' ');
      column = indent;
    } else {
      result += ' ';
      ++column;
    }
    result += word;
    column += word.size();
  }
  return result + "\n";
}

// Visits the flags that `wanted` picks, in the table's order, and each group's title before its
// first.
template <typename Wanted, typename Title, typename Row>
void for_each_group(Wanted wanted, Title title, Row row) {
  const Flag* before = nullptr;
  for (const Flag& flag : flags()) {
    if (!wanted(flag)) {
      continue;
    }
    if (before == nullptr || before->group != flag.group) {
      title(flag.group);
    }
    row(flag);
    before = &flag;
  }
}

// The help explains what works, and what does not where its neighbours do; the rest is named only.
bool explained_in_help(const Flag& flag) {
  return flag.status == Status::kSupported ||
         (flag.status == Status::kNoEffect && flag.group <= Group::kGeneral);
}

std::string names_of(Status status) {
  std::string names;
  for (const Flag& flag : flags()) {
    if (flag.status == status && !explained_in_help(flag)) {
      names += fmt::format("{}--{}", names.empty() ? "" : " ", flag.name);
    }
  }
  return names;
}

std::string_view since_text(Since since) {
  switch (since) {
    case Since::k052:
      return "0.5.2";
    case Since::k056:
      return "0.5.6";
    case Since::kLarder:
      return "larder";
  }
  LARDER_UNREACHABLE();
}

// Inside a table a bar ends the cell.
std::string cell(std::string_view text) {
  std::string result;
  for (const char c : text) {
    result += c == '|' ? "\\|" : std::string(1, c);
  }
  return result;
}

std::string markdown_table(Status status) {
  std::string text;
  for_each_group([&](const Flag& flag) { return flag.status == status; },
                 [&](Group group) {
                   text += fmt::format(
                       "\n### {}\n\n| flag | default | since | {} |\n|---|---|---|---|\n",
                       group_title(group),
                       status == Status::kSupported ? "meaning" : "why, and what to do");
                 },
                 [&](const Flag& flag) {
                   const std::string default_value =
                       flag.default_value.empty() ? "" : fmt::format("`{}`", flag.default_value);
                   text += fmt::format("| `{}` | {} | {} | {} |\n",
                                       spelled(flag),
                                       default_value,
                                       since_text(flag.since),
                                       cell(flag.text));
                 });
  return text;
}

}  // namespace

std::string render_usage() {
  return R"(larder keeps the KV cache of LLM engines in memory and serves it to them.

usage: larder serve [flags]      run the server ('larder server' does the same)
       larder serve --help       every flag, with its default
       larder --version
       larder --help
)";
}

std::string render_flags_help() {
  std::string text = R"(usage: larder serve [flags]

Every flag has a safe default: 'larder serve' alone works. '--flag value' and
'--flag=value' are the same; a flag may be shortened while it stays unambiguous;
the last of repeated flags wins.
)";
  for_each_group(
      explained_in_help,
      [&](Group group) { text += fmt::format("\n{}:\n", group_title(group)); },
      [&](const Flag& flag) {
        text += fmt::format("  {}", spelled(flag));
        if (!flag.default_value.empty()) {
          text += fmt::format("  (default: {})", flag.default_value);
        }
        const bool works = flag.status == Status::kSupported;
        text += "\n" +
                wrapped(works ? std::string(flag.text) : fmt::format("No effect: {}.", flag.text),
                        kIndent);
      });
  text += "\nAccepted, but without effect (docs/flags.md says why):\n";
  text += wrapped(names_of(Status::kNoEffect), 2);
  text += "\nRefused, unless the value is the default (docs/flags.md says what to do):\n";
  text += wrapped(names_of(Status::kRefused), 2);
  text += R"(
Environment: LMCACHE_LOG_LEVEL sets the log level when --log-level is absent.

Exit codes: 1 a value makes no sense or asks for something larder lacks;
2 wrong usage; 3 a port is in use.
)";
  return text;
}

std::string render_flags_markdown() {
  std::string text = R"(# Flags of `larder serve`

Made from the table in `src/config/flags.cc`, and checked against it by a test. To make it again:
`larder serve --help-markdown > docs/flags.md`.

Every flag has a safe default: `larder serve` alone works. The habits are those of the reference's
parser:

* `--flag value` and `--flag=value` are the same.
* A flag may be shortened while it stays unambiguous. Where 0.5.2 has exactly one flag that fits,
  that one is meant.
* The last of repeated flags wins; flags that take a list of words take them up to the next flag.
* A value may begin with `-` when it is a number; otherwise write `--flag=-value`.
* Numbers are written as in Python: `1e-3`, `.5`, `1_000`.

An unknown flag is an error, and the nearest known one is named. "since" is the first release of the
reference that has the flag; "larder" marks those it never had.

Defaults that differ from 0.5.2's: `--l1-size-gb` and `--eviction-policy` need not be given;
`--http-host` is 127.0.0.1 as in 0.5.6, no longer 0.0.0.0; `--max-workers` is our own choice, not 1;
`--prometheus-port` is off, not 9090; `--eviction-trigger-watermark` is off, not 0.8;
`--eviction-policy` is Learned where it is not given.

| exit code | when |
|---|---|
| 1 | a value makes no sense, or asks for something larder lacks |
| 2 | wrong usage: an unknown flag, a missing value, a word that is not a number |
| 3 | a port is in use |

| environment variable | meaning |
|---|---|
| `LMCACHE_LOG_LEVEL` | log level, when `--log-level` is absent |
| `LMCACHE_COORDINATOR_URL` | ignored, with a line in the log |
| `LARDER_CUDA_DRIVER` | path of the CUDA driver's library, instead of libcuda.so.1 |
| `LMCACHE_TRACK_USAGE`, `DO_NOT_TRACK` | nothing is ever sent anywhere |

## Supported
)";
  text += markdown_table(Status::kSupported);
  text += R"(
## Accepted without effect

Each is a flag whose absence of effect can neither harm nor surprise. With the default value nothing
is said; with any other, one line in the log says that it has no effect, and why.
)";
  text += markdown_table(Status::kNoEffect);
  text += R"(
## Refused

Each asks for something larder does not have. With the default value (where there is none: an empty
one) the flag is accepted; with any other the server does not start: exit code 1, and the sentence
below.
)";
  text += markdown_table(Status::kRefused);
  return text;
}

}  // namespace larder::config
