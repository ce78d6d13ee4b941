#include "config/arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <utility>

#include "config/nearest.h"
#include "config/numbers.h"

namespace larder::config {
namespace {

struct Spelling {
  std::string text;  // "--no-l1-use-lazy"
  const Flag* flag;
  bool on;
};

std::vector<Spelling> spellings() {
  std::vector<Spelling> result;
  for (const Flag& flag : flags()) {
    result.push_back({fmt::format("--{}", flag.name), &flag, true});
    if (flag.kind == Kind::kPair) {
      result.push_back({fmt::format("--no-{}", flag.name), &flag, false});
    }
  }
  result.push_back({"-h", find_flag("help"), true});
  result.push_back({"-q", find_flag("quiet"), true});
  return result;
}

Error usage_error(std::string sentence) {
  return Error{Code::kInvalid, std::move(sentence)};
}

// A word of the command line that is a flag, split at its first '='.
struct FlagWord {
  const Flag* flag;
  bool on;
  std::string spelled;
  std::optional<std::string> value;
};

class Reader {
 public:
  explicit Reader(std::span<const std::string> words) : words_(words) {}

  Result<Arguments> read() {
    while (next_ < words_.size()) {
      const std::string& word = words_[next_++];
      if (is_value(word)) {
        return usage_error(fmt::format("'{}' is neither a flag nor the value of one", word));
      }
      if (word == "--" && next_ == words_.size()) {
        break;
      }
      Result<FlagWord> flag_word = resolve(word);
      if (!flag_word) {
        return flag_word.error();
      }
      if (Result<void> taken = take(*flag_word); !taken) {
        return taken.error();
      }
    }
    return std::move(given_);
  }

 private:
  bool is_value(const std::string& word) const {
    if (!word.starts_with('-') || word == "-") {
      return true;
    }
    if (find(word.substr(0, word.find('='))) != nullptr) {
      return false;
    }
    const bool number = word.size() > 1 &&
                        (std::isdigit(static_cast<unsigned char>(word[1])) != 0 || word[1] == '.');
    return (number && parse_number(word)) || word.find(' ') != std::string::npos;
  }

  const Spelling* find(std::string_view text) const {
    const auto found = std::find_if(
        known_.begin(), known_.end(), [&](const Spelling& known) { return known.text == text; });
    return found == known_.end() ? nullptr : &*found;
  }

  Result<FlagWord> resolve(const std::string& word) const {
    const std::size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    std::optional<std::string> value;
    if (equals != std::string::npos) {
      value = word.substr(equals + 1);
    }
    if (const Spelling* exact = find(name)) {
      return FlagWord{exact->flag, exact->on, exact->text, std::move(value)};
    }
    std::vector<const Spelling*> candidates;
    if (name.starts_with("--") && name.size() > 2) {
      candidates = starting_with(name);
    }
    if (candidates.empty()) {
      return usage_error(unknown_flag(name));
    }
    if (candidates.size() > 1) {
      std::string names;
      for (const Spelling* candidate : candidates) {
        names += (names.empty() ? "" : ", ") + candidate->text;
      }
      return usage_error(fmt::format("{} is ambiguous: it could be {}", name, names));
    }
    const Spelling& only = *candidates.front();
    return FlagWord{only.flag, only.on, only.text, std::move(value)};
  }

  std::vector<const Spelling*> starting_with(std::string_view prefix) const {
    std::vector<const Spelling*> all;
    std::vector<const Spelling*> of_052;
    for (const Spelling& known : known_) {
      if (known.text.starts_with(prefix)) {
        all.push_back(&known);
        if (known.flag->since == Since::k052) {
          of_052.push_back(&known);
        }
      }
    }
    return of_052.size() == 1 ? of_052 : all;
  }

  std::string unknown_flag(const std::string& name) const {
    std::vector<std::string> names;
    for (const Spelling& known : known_) {
      if (known.text.starts_with("--")) {
        names.push_back(known.text);
      }
    }
    const std::string near = nearest_word(name, names);
    return fmt::format(
        "there is no flag {}{}", name, near.empty() ? "" : fmt::format("; did you mean {}?", near));
  }

  Result<void> take(FlagWord& word) {
    const Kind kind = word.flag->kind;
    Given given{.flag = word.flag, .on = word.on};
    if (kind == Kind::kSwitch || kind == Kind::kPair) {
      if (word.value) {
        return usage_error(fmt::format("{} takes no value", word.spelled));
      }
    } else if (word.value) {
      given.words.push_back(std::move(*word.value));
    } else {
      const std::size_t count_max = kind == Kind::kWords ? words_.size() : 1;
      while (next_ < words_.size() && given.words.size() < count_max && is_value(words_[next_])) {
        given.words.push_back(words_[next_++]);
      }
      if (given.words.empty() && kind != Kind::kWords) {
        return usage_error(fmt::format("{} needs a value", word.spelled));
      }
    }
    return keep(std::move(given));
  }

  Result<void> keep(Given given) {
    const Flag& flag = *given.flag;
    if (Result<void> typed = read_value(given); !typed) {
      return typed;
    }
    Given& kept = given_[flag.name];
    if (flag.kind == Kind::kRepeated) {
      given.words.insert(given.words.begin(), kept.words.begin(), kept.words.end());
    }
    kept = std::move(given);
    return {};
  }

  static Result<void> read_value(Given& given) {
    const Flag& flag = *given.flag;
    if (flag.kind == Kind::kInteger) {
      const auto integer = parse_integer(given.words.front());
      if (!integer) {
        return usage_error(
            fmt::format("--{}: '{}' is not a whole number", flag.name, given.words.front()));
      }
      given.integer = *integer;
    }
    if (flag.kind == Kind::kNumber) {
      const auto number = parse_number(given.words.front());
      if (!number) {
        return usage_error(
            fmt::format("--{}: '{}' is not a number", flag.name, given.words.front()));
      }
      given.number = *number;
    }
    return flag.choices.empty() ? Result<void>() : check_choice(given);
  }

  static Result<void> check_choice(Given& given) {
    const Flag& flag = *given.flag;
    std::string& value = given.words.front();
    if (flag.since == Since::kLarder) {
      std::transform(value.begin(), value.end(), value.begin(), [](unsigned char c) {
        return static_cast<char>(std::tolower(c));
      });
    }
    std::string listed;
    for (std::string_view rest = flag.choices; !rest.empty();) {
      const std::string_view choice = rest.substr(0, rest.find('|'));
      if (choice == value) {
        return {};
      }
      listed += fmt::format("{}{}", listed.empty() ? "" : ", ", choice);
      rest.remove_prefix(std::min(choice.size() + 1, rest.size()));
    }
    return usage_error(fmt::format("--{}: '{}' is not one of {}", flag.name, value, listed));
  }

  const std::span<const std::string> words_;
  const std::vector<Spelling> known_ = spellings();
  std::size_t next_ = 0;
  Arguments given_;
};

}  // namespace

Result<Arguments> read_arguments(std::span<const std::string> words) {
  const Flag* help = find_flag("help");
  if (std::any_of(words.begin(), words.end(), [](const std::string& word) {
        return word == "--help" || word == "-h";
      })) {
    return Arguments{{help->name, Given{.flag = help}}};
  }
  return Reader(words).read();
}

}  // namespace larder::config
