// operations.h - THE table: every operation of the protocol, its number in each release, its lane,
// handler and refusal.
//
// Adding an operation is one row here and one handler. The request counters are made by walking it.
#pragma once

#include <cstdint>
#include <span>

#include "handlers/operation.h"

namespace larder::handlers {

std::span<const Operation> operations();

// nullptr: the release has no such operation.
const Operation* find_operation(std::int64_t wire_id, protocol::Release release);

}  // namespace larder::handlers
