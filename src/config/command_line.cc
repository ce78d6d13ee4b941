#include <fmt/format.h>

#include <array>
#include <span>
#include <utility>

#include "config/arguments.h"
#include "config/config.h"
#include "config/flag_text.h"
#include "config/nearest.h"
#include "config/settings.h"
#include "config/version.h"

namespace larder::config {
namespace {

constexpr int kExitInvalid = 1;
constexpr int kExitUsage = 2;

Outcome exit_with(int exit_code, std::string text) {
  Outcome outcome;
  outcome.exit_code = exit_code;
  outcome.text = std::move(text);
  return outcome;
}

Outcome print_version() {
  return exit_with(0, fmt::format("larder {} (speaks LMCache {})\n", kVersion, kReferenceVersion));
}

Outcome serve(std::span<const std::string> words, const Machine& machine, Environment environment) {
  // Not in the table: it must not make a prefix of --help ambiguous.
  if (words.size() == 1 && words.front() == "--help-markdown") {
    return exit_with(0, render_flags_markdown());
  }
  const Result<Arguments> arguments = read_arguments(words);
  if (!arguments) {
    return exit_with(kExitUsage,
                     fmt::format("larder: {}\n'larder serve --help' lists every flag.\n",
                                 arguments.error().detail));
  }
  if (arguments->contains("help")) {
    return exit_with(0, render_flags_help());
  }
  if (arguments->contains("version")) {
    return print_version();
  }
  Settings settings = settle(*arguments, machine, environment);
  if (!settings.errors.empty()) {
    std::string text;
    for (const std::string& error : settings.errors) {
      text += fmt::format("larder: {}\n", error);
    }
    return exit_with(kExitInvalid, std::move(text));
  }
  Outcome outcome;
  outcome.action = Outcome::Action::kServe;
  outcome.config = std::move(settings.config);
  outcome.notices = std::move(settings.notices);
  return outcome;
}

std::string missing_command(std::span<const std::string> words) {
  if (words.empty()) {
    return "larder: a command is missing; to run the server: larder serve\n";
  }
  if (words.front().starts_with('-')) {
    return fmt::format("larder: a command is missing before {}; did you mean: larder serve {}\n",
                       words.front(),
                       fmt::join(words, " "));
  }
  const std::array<std::string, 2> commands{"serve", "server"};
  const std::string near = nearest_word(words.front(), commands);
  return fmt::format("larder: there is no command '{}'{}\n",
                     words.front(),
                     near.empty() ? "" : fmt::format("; did you mean '{}'?", near));
}

}  // namespace

Outcome parse_command_line(const std::vector<std::string>& arguments,
                           const Machine& machine,
                           Environment environment) {
  const std::span<const std::string> words(arguments);
  if (!words.empty()) {
    const std::string& command = words.front();
    if (command == "serve" || command == "server") {
      return serve(words.subspan(1), machine, environment);
    }
    if (command == "--version") {
      return print_version();
    }
    if (command == "--help" || command == "-h" || command == "help") {
      return exit_with(0, render_usage());
    }
  }
  return exit_with(kExitUsage, missing_command(words) + "\n" + render_usage());
}

}  // namespace larder::config
