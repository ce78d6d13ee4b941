// dispatch.h - from a received message to the row of the operation table, and from its reply to
// frames.
//
// route() runs on the wire thread: it finds out which release the connection speaks and what its
// message means in it (dialects.h); decoding happens where the request runs. A message whose
// operation cannot be read, is unknown, or may be one of several is dropped and counted; every
// other one gets an answer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "handlers/dialects.h"
#include "handlers/landing.h"
#include "handlers/operation.h"
#include "handlers/services.h"
#include "transport/dispatcher.h"

namespace larder::handlers {

// Runs one request. Whatever it throws ends as its refusal: a peer's request must not end the
// server, not even through a bug of ours.
RunResult run_guarded(const Operation& operation,
                      Services& services,
                      const Caller& caller,
                      protocol::Frames payloads,
                      protocol::Release release) noexcept;

class Dispatch final : public transport::Dispatcher {
 public:
  Dispatch(Services& services, Dialects& dialects);

  std::optional<transport::Route> route(const transport::Request& request) override;
  std::unique_ptr<transport::FrameSink> place(transport::ConnectionId connection,
                                              std::span<const transport::Frame> begun,
                                              std::uint64_t frame_bytes) override;
  transport::Reply run(const transport::Request& request) noexcept override;
  transport::Reply refuse(const transport::Request& request) noexcept override;
  void connection_opened(transport::ConnectionId connection,
                         const transport::PeerName& peer) override;
  void connection_closed(transport::ConnectionId connection, transport::ConnectionEnd how) override;

  const Landings& landings() const { return landings_; }

 private:
  Services& services_;
  Dialects& dialects_;
  std::vector<metrics::Counter*> requests_;  // by row
  Landings landings_;
};

}  // namespace larder::handlers
