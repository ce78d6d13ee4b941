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

// kMismatch: some of the objects have changed since they were stored (--l1-verify). Counted, and
// they are dropped. Reads the objects; call it before they are promised to anybody.
Result<void> verify(Services& services,
                    const std::string& model_name,
                    const cache::ReadLease& lease);

protocol::SlotDescriptor describe_slot(const Transfer& transfer, std::size_t offset);

}  // namespace larder::handlers
