// dispatch.h - from a received message to the row of the operation table, and from its reply to
// frames.
//
// route() runs on the wire thread and only reads the operation frame; decoding happens where the
// request runs. A message whose operation cannot be read or is unknown is dropped and counted;
// every other one gets an answer.
//
// The number of CLEAR is GET_CHUNK_SIZE in another release, and clients start with that: a
// connection's first message never clears.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_set>
#include <vector>

#include "handlers/operation.h"
#include "handlers/services.h"
#include "transport/dispatcher.h"

namespace larder::handlers {

class Dispatch final : public transport::Dispatcher {
 public:
  explicit Dispatch(Services& services);

  std::optional<transport::Route> route(const transport::Request& request) override;
  transport::Reply run(const transport::Request& request) noexcept override;
  transport::Reply refuse(const transport::Request& request) noexcept override;
  void connection_opened(transport::ConnectionId connection) override;
  void connection_closed(transport::ConnectionId connection) override;

 private:
  bool is_first_message(transport::ConnectionId connection);
  RunResult run_guarded(const Operation& operation, const transport::Request& request) noexcept;

  Services& services_;
  std::vector<metrics::Counter*> requests_;  // by row
  std::unordered_set<std::uint64_t> heard_;  // connections that sent a message; wire thread only
};

}  // namespace larder::handlers
