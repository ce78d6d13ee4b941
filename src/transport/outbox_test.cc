// Goal: what is pushed is taken once and in order, every wait ends, and nothing is kept after the
// wire thread has left. Method: a hand-driven consumer, then producers against a consuming thread.
#include "transport/outbox.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>

#include "transport/poller.h"
#include "transport/test_gate.h"

namespace larder::transport {
namespace {

using std::chrono::milliseconds;

std::unique_ptr<Outbox> make_outbox() {
  Result<std::unique_ptr<Outbox>> outbox = Outbox::create();
  return outbox.has_value() ? std::move(*outbox) : nullptr;
}

// Sees the outbox as the wire thread does: an edge for every wake-up.
class Edges {
 public:
  explicit Edges(const Outbox& outbox) : poller_(*Poller::create()) {
    EXPECT_TRUE(poller_.add(outbox.descriptor(), EPOLLIN | EPOLLET, watched_));
  }

  bool has_one() { return !poller_.wait(Duration::zero()).empty(); }

 private:
  Watched watched_{Watched::Kind::kOutbox};
  Poller poller_;
};

Answer answer_for(std::uint64_t connection) {
  Answer answer;
  answer.connection = ConnectionId{connection};
  return answer;
}

TEST(Outbox, WakesForAnswersAndBringsThemInOrder) {
  const std::unique_ptr<Outbox> outbox = make_outbox();
  Edges edges(*outbox);
  EXPECT_FALSE(edges.has_one());
  EXPECT_TRUE(outbox->take().answers.empty());
  for (std::uint64_t i = 1; i <= 3; ++i) {
    outbox->push(answer_for(i));
  }
  EXPECT_TRUE(edges.has_one());
  const Outbox::Batch batch = outbox->take();
  ASSERT_EQ(batch.answers.size(), 3U);
  EXPECT_EQ(batch.answers[0].connection, ConnectionId{1});
  EXPECT_EQ(batch.answers[2].connection, ConnectionId{3});
  EXPECT_FALSE(batch.is_awaited);
  EXPECT_FALSE(edges.has_one());
  EXPECT_TRUE(outbox->take().answers.empty());
  outbox->push(answer_for(4));
  EXPECT_TRUE(edges.has_one());
}

TEST(Outbox, AProbeIsTrueOnlyWhenTheWireThreadCameRound) {
  const std::unique_ptr<Outbox> outbox = make_outbox();
  EXPECT_FALSE(outbox->probe(milliseconds(5)));
  std::thread wire([&] {
    Edges edges(*outbox);
    EXPECT_TRUE(eventually([&] { return edges.has_one(); }));
    Outbox::Batch batch = outbox->take();
    EXPECT_TRUE(batch.is_awaited);
    outbox->acknowledge(batch);
  });
  wire.join();  // answers the probe that gave up
  EXPECT_FALSE(outbox->probe(milliseconds(5)));
}

TEST(Outbox, ManyProducersLoseNothing) {
  constexpr std::uint64_t kProducers = 4;
  constexpr int kAnswers = 2000;
  const std::unique_ptr<Outbox> outbox = make_outbox();
  std::array<int, kProducers + 1> taken{};
  std::thread wire([&] {
    for (Phase phase = Phase::kServe; phase != Phase::kLeave;) {
      Outbox::Batch batch = outbox->take();
      for (const Answer& answer : batch.answers) {
        ++taken.at(static_cast<std::uint64_t>(answer.connection));
      }
      phase = batch.phase;
      if (batch.is_awaited) {
        outbox->acknowledge(batch);
      }
    }
  });
  std::vector<std::thread> producers;
  for (std::uint64_t producer = 1; producer <= kProducers; ++producer) {
    producers.emplace_back([&, producer] {
      for (int i = 0; i < kAnswers; ++i) {
        outbox->push(answer_for(producer));
        if (i % 500 == 0) {
          EXPECT_TRUE(outbox->probe(kPatience));
        }
      }
    });
  }
  for (std::thread& producer : producers) {
    producer.join();
  }
  outbox->wind_down(Phase::kDrain);
  outbox->wind_down(Phase::kLeave);
  wire.join();
  for (std::uint64_t producer = 1; producer <= kProducers; ++producer) {
    EXPECT_EQ(taken.at(producer), kAnswers);
  }
}

TEST(Outbox, KeepsNothingOnceTheWireThreadHasLeft) {
  const std::unique_ptr<Outbox> outbox = make_outbox();
  const auto unsent = std::make_shared<UnsentBytes>(10, std::make_shared<UnsentHeap>());
  outbox->push(answer_for(1));
  Outbox::Batch batch;
  batch.phase = Phase::kLeave;
  outbox->acknowledge(batch);
  Answer late = answer_for(2);
  late.message.emplace();
  late.message->charge = Charge(unsent, 100);
  outbox->push(std::move(late));
  EXPECT_EQ(unsent->value(), 0U);
  EXPECT_TRUE(outbox->take().answers.empty());
  EXPECT_FALSE(outbox->probe(kPatience));
}

}  // namespace
}  // namespace larder::transport
