// The operation table against the reference's own: numbers of every operation the real release
// declares.
#include "handlers/operations.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "protocol/golden_json.h"

namespace larder::handlers {
namespace {

std::map<std::string, std::int64_t> numbers_in(const std::string& fixture) {
  std::map<std::string, std::int64_t> numbers;
  const protocol::golden::Json golden = protocol::golden::load(fixture);
  for (const auto& [name, operation] : golden["operations"].items()) {
    numbers[name] = operation["wire"];
  }
  return numbers;
}

TEST(OperationTable, HasEveryOperationOfRelease052UnderItsNumber) {
  const std::map<std::string, std::int64_t> declared = numbers_in("wire_052.json");
  ASSERT_FALSE(declared.empty());
  for (const auto& [name, number] : declared) {
    const Operation* const found = find_operation(number, protocol::Release::k050);
    ASSERT_NE(found, nullptr) << name;
    EXPECT_EQ(found->name, name);
  }
}

TEST(OperationTable, KnowsNothingThatRelease052DoesNot) {
  const std::map<std::string, std::int64_t> declared = numbers_in("wire_052.json");
  for (std::int64_t number = -2; number < 300; ++number) {
    const Operation* const found = find_operation(number, protocol::Release::k050);
    if (found != nullptr) {
      EXPECT_TRUE(declared.contains(std::string(found->name))) << found->name;
    }
  }
}

TEST(OperationTable, OnlyQuestionsWithoutStateRunOnTheWireThread) {
  for (const Operation& operation : operations()) {
    const bool quick = operation.name == "GET_CHUNK_SIZE" || operation.name == "PING" ||
                       operation.name == "NOOP" || operation.name == "GET_EXPERIMENTAL";
    EXPECT_EQ(operation.lane == transport::Lane::kWire, quick) << operation.name;
  }
}

}  // namespace
}  // namespace larder::handlers
