// Goal: an event that an engine may still open is neither destroyed nor recorded for another copy.
// Method: thousands of exports from the fake driver, by age and by what was given back.
#include "devices/cuda_events.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "devices/test_cuda.h"

namespace larder::devices {
namespace {

class ExportedEventsTest : public testing::Test {
 protected:
  ExportedEventsTest() : driver_(fake_driver()), fake_(LARDER_FAKE_CUDA) {
    EXPECT_EQ(driver_.primary_context_retain(&context_, 0), kCuSuccess);
    EXPECT_EQ(driver_.context_set_current(context_), kCuSuccess);
  }

  ~ExportedEventsTest() override {
    EXPECT_EQ(fake_.counts().events, 0U);
    EXPECT_EQ(fake_.counts().violations, 0U);
    driver_.context_set_current(nullptr);
    driver_.primary_context_release(0);
  }

  CudaDriver driver_;
  const FakeLibrary fake_;
  CuContext context_ = nullptr;
};

TEST_F(ExportedEventsTest, AreNotUsedAgainBeforeTwoThousandOthers) {
  ExportedEvents events(driver_);
  std::map<CuEvent, std::uint64_t> last_export;
  std::size_t reused = 0;
  for (std::uint64_t number = 1; number <= 3 * ExportedEvents::kReuseAge; ++number) {
    const auto exported = events.take();
    ASSERT_TRUE(exported.has_value());
    const auto before = last_export.find(exported->event);
    if (before != last_export.end()) {
      reused += 1;
      ASSERT_GE(number - before->second, ExportedEvents::kReuseAge);
    }
    last_export[exported->event] = number;
    events.give_back(*exported);
  }
  EXPECT_GT(reused, 0U);
  EXPECT_LE(events.size(), ExportedEvents::kReuseAge + 1);
}

TEST_F(ExportedEventsTest, AreNotUsedAgainWhileTheirCopyRuns) {
  ExportedEvents events(driver_);
  const auto running = events.take();
  ASSERT_TRUE(running.has_value());
  for (std::uint64_t number = 0; number < 3 * ExportedEvents::kReuseAge; ++number) {
    const auto exported = events.take();
    ASSERT_TRUE(exported.has_value());
    ASSERT_NE(exported->event, running->event);
    events.give_back(*exported);
  }
}

TEST_F(ExportedEventsTest, AreBounded) {
  ExportedEvents events(driver_);
  for (std::size_t number = 0; number < ExportedEvents::kEventsMax; ++number) {
    ASSERT_TRUE(events.take().has_value());
  }
  const auto beyond = events.take();
  ASSERT_FALSE(beyond.has_value());
  EXPECT_EQ(beyond.error().code, Code::kNoSpace);
}

TEST_F(ExportedEventsTest, ThatCannotBeExportedAreDestroyed) {
  ExportedEvents events(driver_);
  fake_.fail("cuIpcGetEventHandle", 0, 2);
  const auto failed = events.take();
  ASSERT_FALSE(failed.has_value());
  EXPECT_EQ(failed.error().detail, "cuIpcGetEventHandle: CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_EQ(fake_.counts().events, 0U);
  EXPECT_TRUE(events.take().has_value());
}

}  // namespace
}  // namespace larder::devices
