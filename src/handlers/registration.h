// registration.h - what both kinds of registration have in common.
#pragma once

#include <cstdint>
#include <string>

#include "handlers/services.h"
#include "sessions/instance.h"

namespace larder::handlers {

// kInvalid: names and numbers that no object key can be made of.
Result<void> check_model(const std::string& model_name, std::int64_t world_size);

// Registers the instance and says so in the log. kTooLarge when there are too many.
Result<void> add_instance(Services& services,
                          const Caller& caller,
                          std::uint64_t instance_id,
                          const sessions::Registration& registration);

}  // namespace larder::handlers
