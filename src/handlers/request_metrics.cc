#include "handlers/request_metrics.h"

namespace larder::handlers {
namespace {

metrics::Labels model_and_salt(const std::string& model, const std::string& salt) {
  return {{"model_name", model}, {"cache_salt", salt}};
}

}  // namespace

RequestMetrics::RequestMetrics(metrics::Registry& registry, const Clock& clock)
    : copy_mode_bytes_in(
          registry.counter_family("larder_copy_mode_bytes_total", "Bytes moved inside messages")
              .with({{"direction", "store"}})),
      copy_mode_bytes_landed(
          registry.counter("larder_copy_mode_landed_bytes_total",
                           "Bytes of stores in messages that were received in the pool")),
      copy_mode_bytes_out(
          registry.counter_family("larder_copy_mode_bytes_total", "Bytes moved inside messages")
              .with({{"direction", "retrieve"}})),
      sent_both_forms(registry.counter(
          "larder_retrieves_in_both_forms_total",
          "Retrieves answered with slots and data, as the client's kind is not known")),
      clock_(clock),
      requests_(registry.counter_family("larder_requests_total", "Requests by operation")),
      refused_(registry.counter_family("larder_requests_refused_total",
                                       "Requests answered with their safe negative")),
      unreadable_(registry.counter_family(
          "larder_messages_unreadable_total",
          "Messages dropped because their operation cannot be read or is unknown")),
      unanswered_(registry.counter_family("larder_requests_unanswered_total",
                                          "Requests that no answer exists for")),
      stream_controls_(registry.counter("larder_stream_controls_total",
                                        "Words of clients to event streams that have ended")),
      requested_tokens_(registry.counter_family("lmcache_mp_lookup_requested_tokens_total",
                                                "Tokens in whole chunks that lookups asked for")),
      hit_tokens_(registry.counter_family("lmcache_mp_lookup_hit_tokens_total",
                                          "Tokens that lookups found")),
      loaded_chunks_(registry.counter_family("lmcache_mp_num_chunks_loaded_total",
                                             "Chunks handed to engines")),
      read_chunks_(
          registry.counter_family("lmcache_mp_l1_read_chunks_total", "Chunks read from L1")),
      no_room_chunks_(registry.counter_family("lmcache_mp_l1_allocation_failure_chunks_total",
                                              "Chunks not stored because L1 was full")),
      failed_reads_(
          registry.counter_family("lmcache_mp_l1_read_failure_chunks_total",
                                  "Chunks an engine wanted to retrieve and did not get")) {}

metrics::Counter& RequestMetrics::requests_of(std::string_view operation) {
  return requests_.with({{"operation", std::string(operation)}});
}

void RequestMetrics::refused(std::string_view operation, const Error& error) {
  refused_
      .with({{"operation", std::string(operation)}, {"reason", std::string(to_string(error.code))}})
      .add();
  if (const auto turn = refused_lines_.take_turn(clock_.now())) {
    log::warning("{} refused: {} ({}; {} more refusals since the last such line)",
                 operation,
                 error.detail,
                 to_string(error.code),
                 turn.held_back);
  }
}

void RequestMetrics::unreadable(std::string_view reason) {
  unreadable_.with({{"reason", std::string(reason)}}).add();
  if (const auto turn = unreadable_lines_.take_turn(clock_.now())) {
    log::warning(
        "dropped a message: {} ({} more since the last such line)", reason, turn.held_back);
  }
}

void RequestMetrics::chunk_size_unsuitable(std::uint32_t chunk_tokens,
                                           std::int64_t alignment_tokens) {
  refused_.with({{"operation", "NEGOTIATE_CHUNK_SIZE"}, {"reason", "invalid"}}).add();
  if (const auto turn = chunk_size_lines_.take_turn(clock_.now())) {
    log::warning(
        "an engine wants chunks that are a multiple of {} tokens, and chunks of {} are not: start "
        "the server with another --chunk-size ({} more such requests since the last such line)",
        alignment_tokens,
        chunk_tokens,
        turn.held_back);
  }
}

void RequestMetrics::unanswered(std::string_view operation) {
  unanswered_.with({{"operation", std::string(operation)}}).add();
}

void RequestMetrics::lookup_answered(const std::string& model,
                                     const std::string& salt,
                                     std::uint64_t requested_tokens,
                                     std::uint64_t hit_tokens) {
  requested_tokens_.with(model_and_salt(model, salt)).add(requested_tokens);
  hit_tokens_.with(model_and_salt(model, salt)).add(hit_tokens);
}

void RequestMetrics::chunks_loaded(std::uint32_t worker,
                                   const std::string& model,
                                   const std::string& salt,
                                   std::uint64_t chunks) {
  loaded_chunks_
      .with({{"worker_id", std::to_string(worker)}, {"model_name", model}, {"cache_salt", salt}})
      .add(chunks);
  read_chunks_.with(salt.empty() ? metrics::Labels{} : metrics::Labels{{"cache_salt", salt}})
      .add(chunks);
}

void RequestMetrics::no_room(const std::string& model, std::uint64_t chunks) {
  no_room_chunks_.with({{"during", "l1_store"}, {"model_name", model}}).add(chunks);
  if (const auto turn = no_room_lines_.take_turn(clock_.now())) {
    log::warning(
        "no room for {} chunks of {}: the pool is full of data in use ({} more since the last such "
        "line); "
        "a larger pool is set with --l1-size-gb",
        chunks,
        model,
        turn.held_back);
  }
}

void RequestMetrics::read_failed(const std::string& model, std::uint64_t chunks, Code reason) {
  failed_reads_
      .with({{"during", "l1_retrieve"},
             {"reason", reason == Code::kMismatch ? "corrupted" : "not_found"},
             {"model_name", model}})
      .add(chunks);
}

void RequestMetrics::corrupted(const std::string& model,
                               std::uint64_t chunks,
                               std::size_t first_offset) {
  if (const auto turn = corrupted_lines_.take_turn(clock_.now())) {
    log::error(
        "CORRUPTED DATA: {} stored chunks of {} have changed since they were stored, the first at "
        "byte {} of the pool; they are dropped and computed again ({} more such retrieves since "
        "the last such line). The machine's memory is faulty, or a process writes into the pool "
        "where it must not",
        chunks,
        model,
        first_offset,
        turn.held_back);
  }
}

}  // namespace larder::handlers
