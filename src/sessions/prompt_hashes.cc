#include "sessions/prompt_hashes.h"

#include <algorithm>

namespace larder::sessions {

PromptHashes::PromptHashes(std::uint32_t chunk_tokens, std::size_t tokens_max, const Clock& clock)
    : chunk_tokens_(chunk_tokens), tokens_max_(tokens_max), clock_(clock) {}

PromptView PromptHashes::hash(const std::string& request_id,
                              std::span<const std::uint32_t> tokens) {
  const std::size_t chunks = tokens.size() / chunk_tokens_;
  if (chunks == 0) {
    return {};  // not kept: the bound counts tokens, and prompts without any would escape it
  }
  const std::shared_ptr<const Prompt> known = find(request_id);
  std::size_t equal_tokens = 0;
  if (known != nullptr) {
    const std::size_t shorter = std::min(known->tokens.size(), tokens.size());
    const auto difference = std::mismatch(tokens.begin(),
                                          tokens.begin() + static_cast<std::ptrdiff_t>(shorter),
                                          known->tokens.begin());
    equal_tokens = static_cast<std::size_t>(difference.first - tokens.begin());
  }
  const std::size_t equal_chunks = equal_tokens / chunk_tokens_;
  if (known != nullptr && equal_chunks == chunks) {
    return {known->hashes, chunks};
  }
  std::vector<keys::ChunkHash> hashes;
  if (known != nullptr) {
    const auto first = known->hashes->begin();
    hashes.assign(first, first + static_cast<std::ptrdiff_t>(equal_chunks));
  }
  auto prompt = std::make_shared<Prompt>();
  prompt->tokens.assign(tokens.begin(), tokens.end());
  keys::extend_hashes(prompt->tokens, chunk_tokens_, hashes);
  prompt->hashes = std::make_shared<const std::vector<keys::ChunkHash>>(std::move(hashes));
  const SharedHashes shared = prompt->hashes;
  keep(request_id, std::move(prompt));
  return {shared, chunks};
}

void PromptHashes::sweep(Duration idle) {
  const TimePoint oldest = clock_.now() - idle;
  const MutexLock lock(mutex_);
  while (!uses_.empty() && uses_.back().last_use < oldest) {
    drop(std::prev(uses_.end()));
  }
}

std::size_t PromptHashes::kept_tokens() const {
  const MutexLock lock(mutex_);
  return kept_tokens_;
}

std::shared_ptr<const Prompt> PromptHashes::find(const std::string& request_id) {
  const MutexLock lock(mutex_);
  const auto found = by_id_.find(request_id);
  if (found == by_id_.end()) {
    return nullptr;
  }
  found->second->last_use = clock_.now();
  uses_.splice(uses_.begin(), uses_, found->second);
  return found->second->prompt;
}

void PromptHashes::keep(const std::string& request_id, std::shared_ptr<const Prompt> prompt) {
  const std::size_t tokens = prompt->tokens.size();
  if (tokens > tokens_max_) {
    return;
  }
  const MutexLock lock(mutex_);
  if (const auto found = by_id_.find(request_id); found != by_id_.end()) {
    drop(found->second);
  }
  while (kept_tokens_ + tokens > tokens_max_) {
    drop(std::prev(uses_.end()));
  }
  uses_.push_front(Kept{request_id, std::move(prompt), clock_.now()});
  by_id_[request_id] = uses_.begin();
  kept_tokens_ += tokens;
}

void PromptHashes::drop(Uses::iterator kept) {
  kept_tokens_ -= kept->prompt->tokens.size();
  by_id_.erase(kept->request_id);
  uses_.erase(kept);
}

}  // namespace larder::sessions
