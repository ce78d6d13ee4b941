// prompt_hashes.h - hashes each prompt once, however many requests name it.
//
// The scheduler's LOOKUP and each worker's transfers repeat the same tokens under the same request
// id, a little longer each time. What was hashed is kept per request id together with its tokens,
// and is used only for the part of the new tokens that is equal, token by token: an id that comes
// back with another prompt costs a new hash, never a wrong key.
//
// Prompts are immutable and shared, so nobody waits while another hashes. Kept prompts are bounded
// by their tokens (least recently used go first) and by idle time. Thread-safe.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "keys/token_hash.h"

namespace larder::sessions {

using SharedHashes = std::shared_ptr<const std::vector<keys::ChunkHash>>;

struct Prompt {
  std::vector<std::uint32_t> tokens;
  SharedHashes hashes;  // of every complete chunk of tokens
};

// A prompt's complete chunks as one request sees them: perhaps fewer than were hashed. Keeps no
// tokens: a view lives as long as its session, and the tokens are many times larger.
class PromptView {
 public:
  PromptView() = default;

  PromptView(SharedHashes hashes, std::size_t chunks)
      : hashes_(std::move(hashes)), chunks_(chunks) {}

  std::size_t chunk_count() const { return chunks_; }

  std::span<const keys::ChunkHash> hashes() const {
    return hashes_ == nullptr ? std::span<const keys::ChunkHash>{}
                              : std::span(*hashes_).first(chunks_);
  }

 private:
  SharedHashes hashes_;
  std::size_t chunks_ = 0;
};

class PromptHashes {
 public:
  PromptHashes(std::uint32_t chunk_tokens, std::size_t tokens_max, const Clock& clock);

  // REQUIRES: every token is below 2^32 as sent (protocol::Key::tokens_hashable).
  PromptView hash(const std::string& request_id, std::span<const std::uint32_t> tokens);

  // Drops what was not asked for since now - idle.
  void sweep(Duration idle);

  std::size_t kept_tokens() const;

 private:
  struct Kept {
    std::string request_id;
    std::shared_ptr<const Prompt> prompt;
    TimePoint last_use;
  };

  using Uses = std::list<Kept>;  // most recent first

  std::shared_ptr<const Prompt> find(const std::string& request_id);
  void keep(const std::string& request_id, std::shared_ptr<const Prompt> prompt);
  void drop(Uses::iterator kept) LARDER_REQUIRES(mutex_);

  const std::uint32_t chunk_tokens_;
  const std::size_t tokens_max_;
  const Clock& clock_;
  mutable Mutex mutex_;
  Uses uses_ LARDER_GUARDED_BY(mutex_);
  std::unordered_map<std::string, Uses::iterator> by_id_ LARDER_GUARDED_BY(mutex_);
  std::size_t kept_tokens_ LARDER_GUARDED_BY(mutex_) = 0;
};

}  // namespace larder::sessions
