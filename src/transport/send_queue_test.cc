// Goal: whatever the kernel takes at a time, the peer gets every reply whole and in order; a PONG
// never lands inside one; and what was not sent is let go.
// Method: one end of a socket pair with a small buffer, budgets of any size, the bytes at the other
// end compared; an owner that counts its life.
#include "transport/send_queue.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <random>
#include <string>

#include "base/test_random.h"
#include "transport/descriptor.h"
#include "transport/test_gate.h"
#include "transport/test_peer.h"

namespace larder::transport {
namespace {

using Outcome = SendQueue::Outcome;

class SendQueueTest : public testing::Test {
 protected:
  SendQueueTest() {
    std::array<int, 2> ends{};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()), 0);
    ours_ = Descriptor(ends[0]);
    theirs_ = Descriptor(ends[1]);
    const int small = 4096;
    setsockopt(ours_.get(), SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
  }

  OutgoingMessage short_message(std::string_view text) {
    OutgoingMessage message;
    message.head = bytes_of(text);
    message.charge = Charge(unsent_, text.size());
    return message;
  }

  // The head and then the text in so many pieces, owned by the message.
  OutgoingMessage long_message(std::string_view head, std::string text, std::size_t pieces) {
    auto owner = std::make_shared<std::string>(std::move(text));
    OutgoingMessage message = short_message(head);
    const auto bytes = std::as_bytes(std::span(*owner));
    for (std::size_t i = 0; i < pieces; ++i) {
      const std::size_t begin = bytes.size() * i / pieces;
      message.spans.push_back(bytes.subspan(begin, bytes.size() * (i + 1) / pieces - begin));
    }
    message.charge.absorb(Charge(unsent_, bytes.size()));
    last_owner_ = owner;
    message.owner = std::move(owner);
    return message;
  }

  std::string read_available() {
    std::string all;
    std::array<char, 4096> bytes{};
    for (ssize_t count = 0; (count = recv(theirs_.get(), bytes.data(), bytes.size(), 0)) > 0;) {
      all.append(bytes.data(), static_cast<std::size_t>(count));
    }
    return all;
  }

  // Writes until the queue is empty, with budgets up to so many bytes.
  std::string send_all(std::size_t budget_max) {
    std::string got;
    while (queue_.write_to(ours_.get(), 1 + random_() % budget_max) != Outcome::kEmpty) {
      got += read_available();
    }
    return got + read_available();
  }

  static std::string pong(std::string_view context) {
    return "\x04" + std::string(1, static_cast<char>(5 + context.size())) + "\x04PONG" +
           std::string(context);
  }

  void push_pong(std::string_view context) {
    queue_.push_pong(std::as_bytes(std::span(context)), unsent_);
  }

  std::mt19937_64 random_{7};
  Descriptor ours_;
  Descriptor theirs_;
  std::shared_ptr<UnsentBytes> unsent_ =
      std::make_shared<UnsentBytes>(1U << 30, std::make_shared<UnsentHeap>());
  std::weak_ptr<std::string> last_owner_;
  SendQueue queue_;
};

TEST_F(SendQueueTest, EverythingArrivesInOrderWhateverTheKernelTakes) {
  const std::uint64_t seed = test_seed();
  random_.seed(seed);
  for (const std::size_t budget_max : {std::size_t{3}, std::size_t{5000}, std::size_t{1} << 20}) {
    std::string expected;
    for (int i = 0; i < 60; ++i) {
      const std::string head(1 + random_() % 40, static_cast<char>('a' + i % 26));
      expected += head;
      if (random_() % 2 == 0) {
        queue_.push(short_message(head));
        continue;
      }
      const std::string text(random_() % (budget_max == 3 ? 300 : 30'000), 'L');
      expected += text;
      queue_.push(long_message(head, text, 1 + random_() % 100));
    }
    EXPECT_EQ(unsent_->value(), expected.size());
    ASSERT_EQ(send_all(budget_max), expected);
    EXPECT_TRUE(queue_.is_empty());
    EXPECT_EQ(unsent_->value(), 0U);
    EXPECT_TRUE(last_owner_.expired());
  }
}

TEST_F(SendQueueTest, ABlockedQueueTellsSoAndKeepsTheOwner) {
  queue_.push(long_message("head", std::string(1'000'000, 'x'), 1));
  EXPECT_EQ(queue_.write_to(ours_.get(), 1U << 30), Outcome::kBlocked);
  const std::uint64_t written = queue_.written_bytes();
  EXPECT_GT(written, 0U);
  EXPECT_EQ(queue_.write_to(ours_.get(), 1U << 30), Outcome::kBlocked);
  EXPECT_EQ(queue_.written_bytes(), written);
  EXPECT_FALSE(last_owner_.expired());
  queue_.clear();
  EXPECT_TRUE(last_owner_.expired());
  EXPECT_EQ(unsent_->value(), 0U);
}

TEST_F(SendQueueTest, TheBudgetEndsATurn) {
  queue_.push(long_message("", std::string(1000, 'x'), 3));
  EXPECT_EQ(queue_.write_to(ours_.get(), 100), Outcome::kMore);
  EXPECT_EQ(read_available().size(), 100U);
}

TEST_F(SendQueueTest, APongGoesBeforeWhatHasNotBegun) {
  queue_.push(long_message("first", std::string(1000, '1'), 2));
  queue_.push(short_message("second"));
  EXPECT_EQ(queue_.write_to(ours_.get(), 10), Outcome::kMore);
  push_pong("a");
  push_pong("bc");
  EXPECT_EQ(send_all(1000), "first" + std::string(1000, '1') + pong("a") + pong("bc") + "second");
}

TEST_F(SendQueueTest, PongsKeepTheirOrderAmongReplies) {
  push_pong("a");
  queue_.push(short_message("reply"));
  push_pong("b");
  EXPECT_EQ(send_all(1000), pong("a") + pong("b") + "reply");
  push_pong("0123456789abcdef");
  EXPECT_EQ(send_all(2), pong("0123456789abcdef"));
}

TEST_F(SendQueueTest, AGoneReaderIsBroken) {
  theirs_.close();
  queue_.push(short_message("lost"));
  EXPECT_EQ(queue_.write_to(ours_.get(), 100), Outcome::kBroken);
}

}  // namespace
}  // namespace larder::transport
