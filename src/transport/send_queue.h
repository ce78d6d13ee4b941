// send_queue.h - what waits to be written to one connection, and the writing of it.
//
// Replies are written by gather: headers and short values from the queue's own bytes, long values
// from where they lie, under their owner. A write may end anywhere. Short replies that meet in the
// queue leave in one piece. A PONG goes in front of the next reply that has not begun. Wire thread
// only.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "transport/dispatcher.h"
#include "transport/unsent_bytes.h"

namespace larder::transport {

// One reply as the bytes of its frames: `head`, then the spans. See reply_encoder.h.
struct OutgoingMessage {
  std::vector<std::byte> head;
  std::vector<Frame> spans;
  std::shared_ptr<void> owner;  // of the spans; shared with whoever made them
  Charge charge;
};

class SendQueue {
 public:
  enum class Outcome : std::uint8_t {
    kEmpty,    // everything is written
    kMore,     // the budget is spent and the kernel would take more
    kBlocked,  // the kernel takes no more now
    kBroken,   // the connection does not take anything any more
  };

  void push(OutgoingMessage message);
  void push_pong(std::span<const std::byte> context, const std::shared_ptr<UnsentBytes>& unsent);

  bool is_empty() const { return segments_.empty(); }

  Outcome write_to(int socket, std::size_t budget);

  // Bytes written so far: how the owner sees progress.
  std::uint64_t written_bytes() const { return written_bytes_; }

  void clear();

 private:
  // Bytes that are written without a PONG in between.
  struct Segment {
    std::vector<std::byte> bytes;
    std::vector<Frame> spans;
    std::shared_ptr<void> owner;
    Charge charge;
    bool is_pong = false;

    Frame piece(std::size_t index) const { return index == 0 ? Frame(bytes) : spans[index - 1]; }

    std::size_t piece_count() const { return spans.size() + 1; }
  };

  bool has_begun() const { return piece_ > 0 || piece_sent_ > 0; }

  std::size_t gather(std::span<iovec> pieces, std::size_t budget, std::size_t& bytes) const;
  void advance(std::size_t bytes);

  std::deque<Segment> segments_;
  std::size_t piece_ = 0;       // of the first segment: the piece being written,
  std::size_t piece_sent_ = 0;  // and how far it is
  std::uint64_t written_bytes_ = 0;
};

}  // namespace larder::transport
