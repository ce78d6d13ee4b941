#include "cache/ghosts.h"

#include <iterator>

#include "cache/shelf.h"

namespace larder::cache {
namespace {

std::uint64_t name_of(const Object& object) {
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15ULL;
  const std::uint64_t space = object.shelf == nullptr ? 0 : object.shelf->space_hash;
  return (space * kOdd) ^ keys::ObjectIdHash()(object.id);
}

}  // namespace

std::vector<Usage> Ghosts::add(const Object& object, std::size_t max) {
  take(object);
  const std::uint64_t name = name_of(object);
  ghosts_.push_back({name, object.usage});
  by_name_.emplace(name, std::prev(ghosts_.end()));
  std::vector<Usage> forgotten;
  while (by_name_.size() > max) {
    forgotten.push_back(ghosts_.front().usage);
    by_name_.erase(ghosts_.front().name);
    ghosts_.pop_front();
  }
  return forgotten;
}

const Usage* Ghosts::find(const Object& object) const {
  const auto found = by_name_.find(name_of(object));
  return found == by_name_.end() ? nullptr : &found->second->usage;
}

std::optional<Usage> Ghosts::take(const Object& object) {
  const auto found = by_name_.find(name_of(object));
  if (found == by_name_.end()) {
    return std::nullopt;
  }
  const Usage usage = found->second->usage;
  ghosts_.erase(found->second);
  by_name_.erase(found);
  return usage;
}

}  // namespace larder::cache
