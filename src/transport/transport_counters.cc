#include "transport/transport_counters.h"

#include <string>

namespace larder::transport {
namespace {

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
    : messages(registry.counter("larder_transport_messages_total",
                                "Messages received on the request port")),
      messages_too_long(dropped_message(registry, "frames")),
      messages_old_protocol(dropped_message(registry, "old_protocol")),
      messages_no_memory(dropped_message(registry, "no_memory")),
      messages_failed(dropped_message(registry, "failed")),
      requests_refused(
          registry.counter("larder_transport_requests_refused_total",
                           "Requests refused because their connection had too much waiting")),
      requests_cut_off(registry.counter("larder_transport_requests_cut_off_total",
                                        "Requests still waiting when the server stopped")),
      replies(registry.counter("larder_transport_replies_total", "Replies handed to the socket")),
      replies_peer_gone(dropped_reply(registry, "peer_gone")),
      replies_peer_slow(dropped_reply(registry, "peer_slow")),
      replies_no_memory(dropped_reply(registry, "no_memory")) {}

}  // namespace larder::transport
