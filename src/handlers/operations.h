// operations.h - THE table: every operation of the protocol, its number or name in each release,
// its lane, handler and refusal.
//
// Adding an operation is one row here and one handler; adding a release is one column. The request
// counters and the table in docs/protocol.md are made by walking it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "base/result.h"
#include "handlers/operation.h"

namespace larder::handlers {

std::span<const Operation> operations();

// How a request names its operation.
using OperationId = std::variant<std::int64_t, std::string_view>;

// Of the second frame, which the name points into. kMalformed unless it is one int or one string.
Result<OperationId> read_operation_id(protocol::Frame frame);

// nullptr: the release has no such operation. Releases that send names also find by name what they
// have a number for, as their servers do.
const Operation* find_operation(const OperationId& id, protocol::Release release);

// The operations, and what their requests and replies are in each release, as Markdown tables.
std::string render_operations();

}  // namespace larder::handlers
