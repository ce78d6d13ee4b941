// transfer.h - what the requests that move blocks have in common: from the key on the wire to
// objects.
#pragma once

#include <cstdint>
#include <memory>

#include "cache/cache_index.h"
#include "handlers/services.h"
#include "protocol/key.h"
#include "protocol/responses.h"
#include "sessions/instance.h"
#include "sessions/prompt_hashes.h"

namespace larder::handlers {

// Who copies an instance's blocks: the engine itself (PREPARE and COMMIT), or this server (STORE
// and RETRIEVE).
enum class CopiedBy : std::uint8_t { kEngine, kServer };

struct Transfer {
  std::shared_ptr<sessions::Instance> instance;
  sessions::PromptView prompt;  // keeps the hashes of `objects`
  cache::KeySpace space;        // of object group 0
  cache::StoreRange objects;
  keys::ChunkRange range;  // in chunks of the prompt; empty ranges are valid
  sessions::TransferKey key;
  std::uint32_t worker = 0;
};

// kNotFound: the instance is not registered (with this server process). kMismatch: it registered
// for the other way of copying. kInvalid: no worker, a world or worker out of range, a range that
// is not in whole chunks of the tokens, tokens that cannot be hashed, '@' in the model's name.
Result<Transfer> resolve_transfer(Services& services,
                                  const Caller& caller,
                                  const protocol::Key& key,
                                  std::uint64_t instance_id,
                                  CopiedBy copied_by);

// Where one object group of an engine's chunks is kept.
cache::KeySpace space_of(const protocol::Key& key,
                         const sessions::ObjectGroups& groups,
                         std::size_t group);

// The range's objects for a retrieve: those a lookup of this request id promised, which uses the
// promise up, otherwise what is resident. Where they are to be verified (--l1-verify) they are read
// first; those that have changed are counted and dropped, and what was stored anew is taken for
// them. kNotFound: not all are there. kMismatch: some have changed.
Result<cache::ReadLease> pin_intact(Services& services,
                                    const protocol::Key& key,
                                    const cache::KeySpace& space,
                                    const cache::StoreRange& range);

protocol::SlotDescriptor describe_slot(const Transfer& transfer, std::size_t offset);

}  // namespace larder::handlers
