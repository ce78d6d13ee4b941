// The operation table against what each real release declares: numbers and names, how many
// payloads, whether there is a reply.
#include "handlers/operations.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "codec/msgpack_writer.h"
#include "protocol/golden_json.h"

namespace larder::handlers {
namespace {

using protocol::golden::Json;
using protocol::golden::row_name;

class TableOfEveryVersion : public testing::TestWithParam<std::string> {
 protected:
  protocol::Release release() const { return *protocol::release_of_version(GetParam()); }

  // What the release itself declares: our names, with its declarations.
  std::map<std::string, Json> declared() const {
    std::map<std::string, Json> operations;
    const Json golden = protocol::golden::load_version(GetParam());
    for (const auto& [name, operation] : golden["operations"].items()) {
      operations[row_name(name, release())] = operation;
    }
    return operations;
  }
};

OperationId id_of(const Json& wire) {
  return wire.is_string() ? OperationId(std::string_view(wire.get_ref<const std::string&>()))
                          : OperationId(wire.get<std::int64_t>());
}

TEST_P(TableOfEveryVersion, HasItsOperationsUnderTheirNumbersAndNames) {
  const std::map<std::string, Json> operations = declared();
  ASSERT_FALSE(operations.empty());
  for (const auto& [name, operation] : operations) {
    const Operation* const found = find_operation(id_of(operation["wire"]), release());
    ASSERT_NE(found, nullptr) << name;
    EXPECT_EQ(found->name, name);
    EXPECT_EQ(found->payloads(release()).size(), operation["payloads"].size()) << name;
    const bool has_reply = !operation["response"].is_null() && name != "SUBSCRIBE_KV_EVENTS";
    EXPECT_EQ(found->reply(release()) != "none", has_reply) << name;
  }
}

TEST_P(TableOfEveryVersion, HasNoOtherOperations) {
  const std::map<std::string, Json> operations = declared();
  for (const Operation& operation : handlers::operations()) {
    const bool is_known = operation.ids[column_of(release())] != kAbsent;
    EXPECT_EQ(is_known, operations.contains(std::string(operation.name))) << operation.name;
  }
  for (const std::int64_t number : {-2, -1, 0, 63, 64, 200}) {
    EXPECT_EQ(find_operation(number, release()), nullptr) << number;
  }
}

INSTANTIATE_TEST_SUITE_P(Recorded,
                         TableOfEveryVersion,
                         testing::ValuesIn(protocol::golden::recorded_versions()),
                         protocol::golden::name_of_version);

TEST(OperationTable, FindsNumberedOperationsByNameWhereNamesAreSent) {
  const OperationId ping = std::string_view("ping");
  EXPECT_NE(find_operation(ping, protocol::Release::k056), nullptr);
  EXPECT_EQ(find_operation(ping, protocol::Release::k055), nullptr);
  EXPECT_EQ(find_operation(std::string_view("PING"), protocol::Release::k056), nullptr);
}

TEST(OperationTable, OnlyQuestionsWithoutStateRunOnTheWireThread) {
  for (const Operation& operation : operations()) {
    const bool quick = operation.name == "GET_CHUNK_SIZE" || operation.name == "PING" ||
                       operation.name == "NOOP" || operation.name == "GET_EXPERIMENTAL" ||
                       operation.name == "NEGOTIATE_CHUNK_SIZE" ||
                       operation.name == "CB_PROTOCOL_HANDSHAKE";
    EXPECT_EQ(operation.lane == transport::Lane::kWire, quick) << operation.name;
  }
}

TEST(OperationTable, WhatRunsOnTheWireThreadHasNoPayloadThatTakesTimeToRead) {
  for (const Operation& operation : operations()) {
    for (const protocol::Release release : protocol::kReleases) {
      if (operation.lane == transport::Lane::kWire &&
          operation.ids[column_of(release)] != kAbsent) {
        for (const protocol::PayloadKind kind : operation.payloads(release)) {
          EXPECT_TRUE(kind == protocol::PayloadKind::kInt ||
                      kind == protocol::PayloadKind::kOptionalInt)
              << operation.name;
        }
      }
    }
  }
}

TEST(OperationTable, AnOperationFrameLongerThanAnyNameIsNoOperation) {
  codec::Bytes bytes;
  codec::MsgpackWriter(bytes).write_string(std::string(200, 'x'));
  EXPECT_TRUE(read_operation_id(bytes).has_value());
  bytes.clear();
  codec::MsgpackWriter(bytes).write_string(std::string(300, 'x'));
  EXPECT_FALSE(read_operation_id(bytes).has_value());
}

// docs/protocol.md shows this very table. To renew it: LARDER_RENEW_DOCS=1 handlers_test.
TEST(OperationTable, IsTheOneInTheDocumentation) {
  constexpr std::string_view kBegin = "<!-- operations: begin -->\n";
  constexpr std::string_view kEnd = "<!-- operations: end -->\n";
  const std::string path = std::string(LARDER_FIXTURES) + "/../../docs/protocol.md";
  std::stringstream content;
  content << std::ifstream(path).rdbuf();
  std::string page = content.str();
  const std::size_t begin = page.find(kBegin);
  const std::size_t end = page.find(kEnd);
  ASSERT_TRUE(begin != std::string::npos && end != std::string::npos) << path;
  const std::size_t first = begin + kBegin.size();
  const std::string table = "\n" + render_operations() + "\n";
  if (std::getenv("LARDER_RENEW_DOCS") != nullptr) {
    std::ofstream(path) << page.replace(first, end - first, table);
    return;
  }
  EXPECT_EQ(page.substr(first, end - first), table)
      << "stale: run LARDER_RENEW_DOCS=1 handlers_test and commit docs/protocol.md";
}

}  // namespace
}  // namespace larder::handlers
