#include "transport/transport_counters.h"

#include <string>

namespace larder::transport {
namespace {

constexpr auto kPauseNames = std::to_array<const char*>({
    "requests",
    "request_bytes",
    "unread",
    "memory",
});
static_assert(kPauseNames.size() == kPauseCount);

metrics::Counter& dropped_message(metrics::Registry& registry, const char* reason) {
  return registry
      .counter_family(
          "larder_transport_messages_dropped_total",
          "Messages of peers that were dropped unanswered before the dispatcher saw them")
      .with({{"reason", reason}});
}

metrics::Counter& dropped_reply(metrics::Registry& registry, const char* reason) {
  return registry
      .counter_family("larder_transport_replies_dropped_total",
                      "Replies that could not be handed to their peer")
      .with({{"reason", reason}});
}

}  // namespace

TransportCounters::TransportCounters(metrics::Registry& registry)
    : accepted(registry.counter("larder_transport_accepted_total",
                                "Connections accepted on the request port, probes included")),
      accept_failures(registry.counter(
          "larder_transport_accept_failures_total",
          "Times a peer had to wait because there was no descriptor or memory for it")),
      commands_ignored(registry.counter("larder_transport_commands_ignored_total",
                                        "Commands of ZMTP that mean nothing to this server")),
      messages(registry.counter("larder_transport_messages_total",
                                "Messages received on the request port")),
      messages_echo_too_long(dropped_message(registry, "echo_bytes")),
      messages_no_memory(dropped_message(registry, "no_memory")),
      messages_failed(dropped_message(registry, "failed")),
      requests_refused(
          registry.counter("larder_transport_requests_refused_total",
                           "Requests refused because there was no memory to queue them")),
      requests_cut_off(registry.counter("larder_transport_requests_cut_off_total",
                                        "Requests still waiting when the server stopped")),
      replies(registry.counter("larder_transport_replies_total", "Replies handed to the socket")),
      replies_peer_gone(dropped_reply(registry, "peer_gone")),
      replies_no_memory(dropped_reply(registry, "no_memory")) {
  metrics::CounterFamily& closed = registry.counter_family(
      "larder_transport_connections_closed_total", "Connections of the request port that ended");
  for (std::size_t i = 0; i < closed_.size(); ++i) {
    closed_[i] =
        &closed.with({{"reason", std::string(zmtp::to_string(static_cast<zmtp::CloseReason>(i)))}});
  }
  metrics::CounterFamily& paused = registry.counter_family(
      "larder_transport_reading_paused_total",
      "Times a connection was not read for a while because its peer has to wait");
  for (std::size_t i = 0; i < paused_.size(); ++i) {
    paused_[i] = &paused.with({{"reason", kPauseNames[i]}});
  }
}

}  // namespace larder::transport
