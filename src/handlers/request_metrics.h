// request_metrics.h - what requests count, and the log lines that a peer could repeat at will, at a
// limited rate.
//
// Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/log.h"
#include "base/result.h"
#include "metrics/metrics.h"

namespace larder::handlers {

class RequestMetrics {
 public:
  RequestMetrics(metrics::Registry& registry, const Clock& clock);

  // Kept by the dispatcher, one per row of the operation table.
  metrics::Counter& requests_of(std::string_view operation);

  // A request that got its safe negative (or none): counted, and logged at a limited rate.
  void refused(std::string_view operation, const Error& error);

  // A message whose operation cannot be read or is unknown: dropped.
  void unreadable(std::string_view reason);

  // A client that cannot work with the chunk size has asked for it.
  void chunk_size_unsuitable(std::uint32_t chunk_tokens, std::int64_t alignment_tokens);

  // What a client says to a stream that has ended: part of the protocol, counted only.
  void stream_control() { stream_controls_.add(); }

  void unanswered(std::string_view operation);

  void lookup_answered(const std::string& model,
                       const std::string& salt,
                       std::uint64_t requested_tokens,
                       std::uint64_t hit_tokens);
  void chunks_loaded(std::uint32_t worker,
                     const std::string& model,
                     const std::string& salt,
                     std::uint64_t chunks);
  void no_room(const std::string& model, std::uint64_t chunks);
  void read_failed(const std::string& model, std::uint64_t chunks, Code reason);

  // Stored bytes that have changed; the first of them lie at this offset of the pool.
  void corrupted(const std::string& model, std::uint64_t chunks, std::size_t first_offset);

  metrics::Counter& copy_mode_bytes_in;
  metrics::Counter& copy_mode_bytes_landed;
  metrics::Counter& copy_mode_bytes_out;
  metrics::Counter& sent_both_forms;

 private:
  const Clock& clock_;
  metrics::CounterFamily& requests_;
  metrics::CounterFamily& refused_;
  metrics::CounterFamily& unreadable_;
  metrics::CounterFamily& unanswered_;
  metrics::Counter& stream_controls_;
  metrics::CounterFamily& requested_tokens_;
  metrics::CounterFamily& hit_tokens_;
  metrics::CounterFamily& loaded_chunks_;
  metrics::CounterFamily& read_chunks_;
  metrics::CounterFamily& no_room_chunks_;
  metrics::CounterFamily& failed_reads_;
  log::LogLimiter refused_lines_;
  log::LogLimiter unreadable_lines_;
  log::LogLimiter no_room_lines_;
  log::LogLimiter chunk_size_lines_;
  log::LogLimiter corrupted_lines_;
};

}  // namespace larder::handlers
