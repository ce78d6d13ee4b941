#include "transport/send_queue.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "zmtp/command.h"

namespace larder::transport {
namespace {

// Short replies are collected up to here; a PONG then waits behind no more than this.
constexpr std::size_t kSegmentBytesMax = 16U << 10;

constexpr std::size_t kPiecesPerWrite = 64;

}  // namespace

void SendQueue::push(OutgoingMessage message) {
  if (message.spans.empty() && !segments_.empty()) {
    Segment& last = segments_.back();
    if (!last.is_pong && last.spans.empty() &&
        last.bytes.size() + message.head.size() <= kSegmentBytesMax) {
      last.bytes.insert(last.bytes.end(), message.head.begin(), message.head.end());
      last.charge.absorb(std::move(message.charge));
      return;
    }
  }
  segments_.push_back({std::move(message.head),
                       std::move(message.spans),
                       std::move(message.owner),
                       std::move(message.charge)});
}

void SendQueue::push_pong(std::span<const std::byte> context,
                          const std::shared_ptr<UnsentBytes>& unsent) {
  std::vector<std::byte> pong;
  zmtp::append_pong(context, pong);
  Charge charge(unsent, pong.size());
  const std::size_t place = has_begun() ? 1 : 0;
  if (place < segments_.size() && segments_[place].is_pong) {
    Segment& earlier = segments_[place];
    earlier.bytes.insert(earlier.bytes.end(), pong.begin(), pong.end());
    earlier.charge.absorb(std::move(charge));
    return;
  }
  Segment segment;
  segment.bytes = std::move(pong);
  segment.charge = std::move(charge);
  segment.is_pong = true;
  segments_.insert(segments_.begin() + static_cast<std::ptrdiff_t>(place), std::move(segment));
}

std::size_t SendQueue::gather(std::span<iovec> pieces,
                              std::size_t budget,
                              std::size_t& bytes) const {
  std::size_t count = 0;
  std::size_t piece = piece_;
  std::size_t skipped = piece_sent_;
  for (const Segment& segment : segments_) {
    for (; piece < segment.piece_count(); ++piece, skipped = 0) {
      if (count == pieces.size() || bytes == budget) {
        return count;
      }
      const Frame rest = segment.piece(piece).subspan(skipped);
      if (rest.empty()) {
        continue;
      }
      const Frame taken = rest.first(std::min(rest.size(), budget - bytes));
      // The kernel only reads what it sends; its interface lacks the const.
      auto* const base =
          const_cast<std::byte*>(taken.data());  // NOLINT(cppcoreguidelines-pro-type-const-cast)
      pieces[count++] = {base, taken.size()};
      bytes += taken.size();
    }
    piece = 0;
  }
  return count;
}

void SendQueue::advance(std::size_t bytes) {
  written_bytes_ += bytes;
  while (!segments_.empty()) {
    const Segment& first = segments_.front();
    const std::size_t left = first.piece(piece_).size() - piece_sent_;
    if (bytes < left) {
      piece_sent_ += bytes;
      return;
    }
    bytes -= left;
    piece_sent_ = 0;
    if (++piece_ == first.piece_count()) {
      piece_ = 0;
      segments_.pop_front();
    }
  }
}

SendQueue::Outcome SendQueue::write_to(int socket, std::size_t budget) {
  while (!segments_.empty()) {
    if (budget == 0) {
      return Outcome::kMore;
    }
    std::array<iovec, kPiecesPerWrite> pieces{};
    std::size_t gathered = 0;
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = gather(pieces, budget, gathered);
    const ssize_t written = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (written < 0) {
      if (errno == EINTR) {
        continue;
      }
      return errno == EAGAIN ? Outcome::kBlocked : Outcome::kBroken;
    }
    const auto bytes = static_cast<std::size_t>(written);
    advance(bytes);
    budget -= bytes;
    if (bytes < gathered) {
      return Outcome::kBlocked;
    }
  }
  return Outcome::kEmpty;
}

void SendQueue::clear() {
  // Charges call back when they go, possibly into this queue's owner.
  const std::deque<Segment> dropped = std::exchange(segments_, {});
  piece_ = 0;
  piece_sent_ = 0;
}

}  // namespace larder::transport
