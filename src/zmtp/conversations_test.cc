// Goal: what libzmq's own clients and hand-written peers sent is read as libzmq's ROUTER reads it,
// or refused where we mean to be stricter, however the bytes are cut.
// Method: every recorded conversation (tests/fixtures/zmtp_conversations.txt) whole, byte by byte,
// and cut in two at every place; all that end well one after the other on one connection.
#include <gtest/gtest.h>

#include "zmtp/test_conversations.h"

namespace larder::zmtp {
namespace {

// Cuts of the long ones: everywhere near their ends, and in between at steps.
constexpr std::size_t kCutsAtBothEnds = 600;
constexpr std::size_t kCutStep = 4099;

Reading expected(const Conversation& conversation) {
  return {conversation.messages, conversation.pongs, conversation.refused};
}

DecoderLimits limits_of(const Conversation& conversation) {
  return {.message_bytes_max = conversation.message_bytes_max, .frames_max = 16};
}

class RecordedConversation : public testing::TestWithParam<Conversation> {
 protected:
  ReceiveMemory memory_;
};

TEST_P(RecordedConversation, IsReadWhole) {
  Feeder feeder(memory_, limits_of(GetParam()));
  feeder.feed(GetParam().client);
  EXPECT_EQ(feeder.reading(), expected(GetParam()));
}

TEST_P(RecordedConversation, IsReadByteByByte) {
  Feeder feeder(memory_, limits_of(GetParam()));
  for (const char byte : GetParam().client) {
    if (!feeder.feed(std::string_view(&byte, 1))) {
      break;
    }
    feeder.decoder().rest();
  }
  EXPECT_EQ(feeder.reading(), expected(GetParam()));
}

TEST_P(RecordedConversation, IsReadCutInTwoAnywhere) {
  const std::string_view bytes = GetParam().client;
  for (std::size_t cut = 1; cut < bytes.size(); ++cut) {
    const bool is_near_an_end = cut < kCutsAtBothEnds || bytes.size() - cut < kCutsAtBothEnds;
    if (!is_near_an_end && cut % kCutStep != 0) {
      continue;
    }
    Feeder feeder(memory_, limits_of(GetParam()));
    if (feeder.feed(bytes.substr(0, cut))) {
      feeder.decoder().rest();
      feeder.feed(bytes.substr(cut));
    }
    ASSERT_EQ(feeder.reading(), expected(GetParam())) << "cut at " << cut;
  }
}

INSTANTIATE_TEST_SUITE_P(All,
                         RecordedConversation,
                         testing::ValuesIn(recorded_conversations()),
                         [](const auto& one) {
                           std::string name = one.param.name;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

TEST(RecordedConversations, ArePresent) {
  EXPECT_EQ(recorded_conversations().size(), 117U);
}

// What follows the handshake of each, on one connection.
TEST(RecordedConversations, CanFollowEachOther) {
  const std::size_t hello_bytes = dealer_hello().size();
  std::string all = dealer_hello();
  Reading reading;
  for (const Conversation& one : recorded_conversations()) {
    // Those with a hello of the usual length, and that leave nothing unfinished.
    if (one.refused.empty() && one.client.size() > hello_bytes &&
        one.client.substr(kGreetingBytes, hello_bytes - kGreetingBytes) ==
            dealer_hello().substr(kGreetingBytes) &&
        one.name != "close_inside_message") {
      all += one.client.substr(hello_bytes);
      reading.messages.insert(reading.messages.end(), one.messages.begin(), one.messages.end());
      reading.pongs += one.pongs;
    }
  }
  ASSERT_GT(reading.messages.size(), 50U);
  ReceiveMemory memory;
  Feeder feeder(memory);
  EXPECT_TRUE(feeder.feed(all));
  EXPECT_EQ(feeder.reading(), reading);
}

}  // namespace
}  // namespace larder::zmtp
