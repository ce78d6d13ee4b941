// Which release a connection speaks, message by message.
//
// Goal: every collision of numbers between releases is read as a real client means it, or not at
// all, and CLEAR never runs by mistake. Method: messages are the golden frames that real clients of
// every release sent. A property test opens a connection with each plausible first message of each
// release, goes on with random traffic of that release, and looks whether any message was ever read
// as something else.
#include "handlers/release_detector.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <utility>

#include "base/test_random.h"
#include "handlers/test_services.h"
#include "protocol/golden_json.h"

namespace larder::handlers {
namespace {

using protocol::Release;
using protocol::ReleaseSet;
using protocol::golden::Json;
using protocol::golden::row_name;

using Bytes = std::vector<std::byte>;

// Frames of one message, which can be sent again under another uid.
class Message {
 public:
  Message(std::int64_t uid, std::vector<Bytes> frames) : frames_(std::move(frames)) {
    frames_.insert(frames_.begin(), packed_int(uid));
    views_.assign(frames_.begin(), frames_.end());
  }

  protocol::Frames frames() const { return views_; }

 private:
  std::vector<Bytes> frames_;
  std::vector<protocol::Frame> views_;
};

struct Sample {
  std::string operation;      // the row's name
  std::vector<Bytes> frames;  // operation and payloads
};

std::vector<Sample> samples_of(const std::string& version) {
  const Release release = *protocol::release_of_version(version);
  std::vector<Sample> samples;
  const Json golden = protocol::golden::load_version(version);
  for (const Json& vector : golden["vectors"]) {
    Sample sample{row_name(vector["op"], release), {}};
    for (std::size_t i = 1; i < vector["request"].size(); ++i) {
      sample.frames.push_back(protocol::golden::from_hex(vector["request"][i]));
    }
    samples.push_back(std::move(sample));
  }
  return samples;
}

const std::vector<Sample>& samples(const std::string& version) {
  static std::map<std::string, std::vector<Sample>> kept;
  const auto [place, is_new] = kept.try_emplace(version);
  if (is_new) {
    place->second = samples_of(version);
  }
  return place->second;
}

const Sample& sample(const std::string& version, const std::string& operation) {
  for (const Sample& candidate : samples(version)) {
    if (candidate.operation == operation) {
      return candidate;
    }
  }
  ADD_FAILURE() << version << " has no " << operation;
  return samples(version).front();
}

class Connection {
 public:
  explicit Connection(ReleaseDetector& detector) : detector_(detector) {}

  Reading say(std::int64_t uid, const Sample& said) {
    const Message message(uid, said.frames);
    return detector_.read(dialect_, message.frames());
  }

  Reading say(std::int64_t uid, const std::string& version, const std::string& operation) {
    return say(uid, sample(version, operation));
  }

  const Dialect& dialect() const { return dialect_; }

 private:
  ReleaseDetector& detector_;
  Dialect dialect_;
};

std::string ran(const Reading& reading) {
  return reading.treatment == Treatment::kRun ? std::string(reading.operation->name) : "";
}

Release release_of(const std::string& version) {
  return *protocol::release_of_version(version);
}

ReleaseSet family(const std::string& version) {
  return protocol::family_of(release_of(version));
}

class DetectionOfEveryVersion : public testing::TestWithParam<std::string> {};

TEST_P(DetectionOfEveryVersion, IsRecognisedByItsFirstQuestion) {
  ReleaseDetector detector(std::nullopt);
  Connection connection(detector);
  EXPECT_EQ(ran(connection.say(0, GetParam(), "GET_CHUNK_SIZE")), "GET_CHUNK_SIZE");
  EXPECT_TRUE(connection.dialect().is_settled());
  EXPECT_TRUE(family(GetParam()).contains(connection.dialect().spoken));
  EXPECT_TRUE(connection.dialect().spoken.contains(release_of(GetParam())));
  EXPECT_EQ(detector.prior(), family(GetParam()));
}

// After a reconnect no chunk size is asked for; what repeats is the heartbeat.
TEST_P(DetectionOfEveryVersion, IsRecognisedByAHeartbeatAfterAReconnect) {
  ReleaseDetector detector(std::nullopt);
  Connection connection(detector);
  EXPECT_EQ(ran(connection.say(500, GetParam(), "PING")), "PING");
  EXPECT_TRUE(family(GetParam()).contains(connection.dialect().spoken));
}

TEST_P(DetectionOfEveryVersion, ReadsEveryMessageOfASettledConnectionRight) {
  ReleaseDetector detector(std::nullopt);
  for (const Sample& said : samples(GetParam())) {
    Connection connection(detector);
    connection.say(0, GetParam(), "GET_CHUNK_SIZE");
    const Reading reading = connection.say(1, said);
    const bool is_of_blend =
        said.operation.starts_with("CB_") || said.operation.starts_with("P2P_");
    if (is_of_blend && reading.treatment != Treatment::kRun) {
      continue;  // 0.5.3 and 0.5.5 differ above 24, and nothing told them apart yet
    }
    EXPECT_EQ(ran(reading), said.operation);
    EXPECT_TRUE(connection.dialect().spoken.contains(release_of(GetParam()))) << said.operation;
  }
}

TEST_P(DetectionOfEveryVersion, ClearsOnlyOnceItIsRecognised) {
  ReleaseDetector detector(std::nullopt);
  for (const std::int64_t uid : {0, 7}) {
    Connection stranger(detector);
    EXPECT_NE(ran(stranger.say(uid, GetParam(), "CLEAR")), "CLEAR") << uid;
  }
  Connection known(detector);
  known.say(0, GetParam(), "GET_CHUNK_SIZE");
  EXPECT_EQ(ran(known.say(1, GetParam(), "CLEAR")), "CLEAR");
}

TEST_P(DetectionOfEveryVersion, NeverClearsWithAPriorOrADefaultOfItsOwn) {
  ReleaseDetector detector(release_of(GetParam()));
  Connection other(detector);
  other.say(0, GetParam(), "GET_CHUNK_SIZE");
  for (const std::string& version : protocol::golden::recorded_versions()) {
    for (const std::int64_t uid : {0, 7}) {
      for (const Sample& said : samples(version)) {
        Connection stranger(detector);
        EXPECT_NE(ran(stranger.say(uid, said)), "CLEAR") << version << " " << said.operation;
      }
    }
  }
}

// Engines ask for the chunk size first or not at all, and never say the other two. On a connection
// that is recognised all three are understood.
bool is_said_by_strangers(const Sample& said) {
  return said.operation != "GET_CHUNK_SIZE" && said.operation != "NOOP" &&
         said.operation != "CLEAR";
}

// One random life of a client: a first message, then anything its release can say.
void live(ReleaseDetector& detector,
          const std::string& version,
          const std::pair<std::string, std::int64_t>& first,
          std::mt19937& random) {
  Connection connection(detector);
  SCOPED_TRACE(version + " begins with " + first.first);
  const Reading opening = connection.say(first.second, version, first.first);
  if (opening.treatment == Treatment::kRun) {
    ASSERT_EQ(opening.operation->name, first.first);
  }
  const std::vector<Sample>& vocabulary = samples(version);
  std::string last = first.first;
  for (std::int64_t uid = first.second + 1; uid < first.second + 60; ++uid) {
    const Sample& said = vocabulary[random() % vocabulary.size()];
    if (std::exchange(last, said.operation) == "END_SESSION" && last == "END_SESSION") {
      continue;  // what comes again and again is a poll, and nobody ends a session twice
    }
    const Dialect& dialect = connection.dialect();
    const bool is_known = dialect.is_settled() && dialect.possible == dialect.spoken;
    if (!is_known && !is_said_by_strangers(said)) {
      continue;
    }
    const Reading reading = connection.say(uid, said);
    if (reading.treatment == Treatment::kRun) {
      ASSERT_EQ(reading.operation->name, said.operation);
    }
    ASSERT_TRUE(connection.dialect().spoken.contains(release_of(version))) << said.operation;
  }
  EXPECT_TRUE(connection.dialect().is_settled());
}

TEST_P(DetectionOfEveryVersion, IsNeverMisreadWhateverItsClientsSay) {
  std::mt19937 random(static_cast<std::uint32_t>(test_seed()));
  const bool has_register = release_of(GetParam()) >= Release::k046;
  for (int round = 0; round < 150; ++round) {
    ReleaseDetector detector(std::nullopt);
    live(detector, GetParam(), {"GET_CHUNK_SIZE", 0}, random);
    live(detector, GetParam(), {"PING", 900}, random);
    live(detector, GetParam(), {"LOOKUP", 901}, random);  // the family is known by now
    live(detector, GetParam(), {"END_SESSION", 902}, random);
    if (has_register) {
      live(detector, GetParam(), {"PREPARE_STORE", 903}, random);
      live(detector, GetParam(), {"PREPARE_RETRIEVE", 904}, random);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Recorded,
                         DetectionOfEveryVersion,
                         testing::ValuesIn(protocol::golden::recorded_versions()),
                         protocol::golden::name_of_version);

struct Collision {
  std::string sent_by;
  std::string operation;
  std::int64_t uid;
  std::string default_release;  // "": none
  std::string prior;            // a version that another connection spoke; "": none
  std::string read_as;          // "": not run
};

// The rows of wire.md section 8, and what decides each.
std::vector<Collision> collisions() {
  return {
      // 16: GET_CHUNK_SIZE of 0.4.6, CLEAR of 0.4.7.
      {"0.4.6", "GET_CHUNK_SIZE", 0, "", "", "GET_CHUNK_SIZE"},
      {"0.4.6", "GET_CHUNK_SIZE", 5, "", "0.4.6", "GET_CHUNK_SIZE"},
      {"0.4.7", "CLEAR", 5, "", "0.4.7", ""},
      // 17: PING, GET_CHUNK_SIZE, CLEAR.
      {"0.4.6", "PING", 5, "", "", "PING"},
      {"0.4.7", "GET_CHUNK_SIZE", 0, "", "", "GET_CHUNK_SIZE"},
      {"0.5.2", "CLEAR", 5, "", "0.5.2", "PING"},
      // 18: PING, GET_CHUNK_SIZE.
      {"0.4.7", "PING", 5, "", "", "PING"},
      {"0.5.2", "GET_CHUNK_SIZE", 0, "", "", "GET_CHUNK_SIZE"},
      // 20: NOOP, CLEAR.
      {"0.4.7", "NOOP", 5, "", "0.4.7", "NOOP"},
      {"0.5.4", "CLEAR", 5, "", "0.5.4", ""},
      // 21: NOOP, GET_CHUNK_SIZE: no client says NOOP.
      {"0.5.4", "GET_CHUNK_SIZE", 0, "", "", "GET_CHUNK_SIZE"},
      {"0.5.6", "GET_CHUNK_SIZE", 40, "", "0.5.2", "GET_CHUNK_SIZE"},
      // 8: FREE_LOOKUP_LOCKS, LOOKUP.
      {"0.4.7", "FREE_LOOKUP_LOCKS", 5, "", "0.4.7", "FREE_LOOKUP_LOCKS"},
      {"0.5.4", "LOOKUP", 5, "", "0.5.4", "LOOKUP"},
      {"0.5.4", "LOOKUP", 5, "0.5.4", "", "LOOKUP"},
      {"0.5.4", "LOOKUP", 5, "", "", "LOOKUP"},  // and the other reading only gives locks back
      {"0.5.6", "LOOKUP", 5, "", "0.4.7", "LOOKUP"},
      {"0.5.7rc3", "LOOKUP", 5, "", "0.4.7", "LOOKUP"},
      // 9: END_SESSION, QUERY_PREFETCH_STATUS.
      {"0.4.5", "END_SESSION", 5, "0.4.5", "", "END_SESSION"},
      {"0.4.7", "END_SESSION", 5, "", "0.4.7", "END_SESSION"},
      {"0.5.6", "QUERY_PREFETCH_STATUS", 5, "0.5.6", "", "QUERY_PREFETCH_STATUS"},
      {"0.5.6", "QUERY_PREFETCH_STATUS", 5, "", "0.5.6", ""},  // it will be asked again
      {"0.5.6", "QUERY_PREFETCH_STATUS", 5, "", "", ""},
      // 12: PREPARE_STORE, FREE_LOOKUP_LOCKS.
      {"0.4.7", "PREPARE_STORE", 5, "", "0.4.7", "PREPARE_STORE"},
      {"0.5.4", "FREE_LOOKUP_LOCKS", 5, "", "0.5.4", "FREE_LOOKUP_LOCKS"},
      {"0.5.4", "FREE_LOOKUP_LOCKS", 5, "", "", "FREE_LOOKUP_LOCKS"},  // its key names no worker
      {"0.5.4", "FREE_LOOKUP_LOCKS", 5, "", "0.4.7", "FREE_LOOKUP_LOCKS"},
      {"0.4.7", "PREPARE_STORE", 5, "", "0.5.4", "PREPARE_STORE"},
      // 13: PREPARE_RETRIEVE, PREPARE_STORE.
      {"0.5.2", "PREPARE_STORE", 5, "", "", "PREPARE_STORE"},
      {"0.4.6", "PREPARE_RETRIEVE", 5, "", "0.4.6", "PREPARE_RETRIEVE"},
      // 14, 15: COMMIT_RETRIEVE, PREPARE_RETRIEVE.
      {"0.4.7", "PREPARE_RETRIEVE", 5, "", "0.4.7", "PREPARE_RETRIEVE"},
      {"0.5.2", "PREPARE_RETRIEVE", 5, "", "", "PREPARE_RETRIEVE"},
      // 16: COMMIT_RETRIEVE, PREPARE_STORE.
      {"0.5.2", "COMMIT_RETRIEVE", 5, "", "", "COMMIT_RETRIEVE"},
      {"0.5.4", "PREPARE_STORE", 5, "", "0.5.4", "PREPARE_STORE"},
      {"0.5.6", "PREPARE_STORE", 5, "", "0.5.2", "PREPARE_STORE"},
      // 22: CB_UNREGISTER_KV_CACHE, PING.
      {"0.5.2", "PING", 5, "", "0.4.7", "PING"},
      // 26, 30: blend of 0.5.3 and of 0.5.5.
      {"0.5.4", "CB_UNREGISTER_KV_CACHE", 5, "", "", ""},
      {"0.5.6", "CB_UNREGISTER_ROPE", 5, "", "", ""},
  };
}

TEST(Collisions, AreReadAsTheClientMeansOrNotAtAll) {
  for (const Collision& collision : collisions()) {
    SCOPED_TRACE(collision.sent_by + " " + collision.operation + " uid " +
                 std::to_string(collision.uid) + " prior " + collision.prior + " default " +
                 collision.default_release);
    ReleaseDetector detector(protocol::release_of_version(collision.default_release));
    if (!collision.prior.empty()) {
      Connection other(detector);
      other.say(0, collision.prior, "GET_CHUNK_SIZE");
    }
    Connection connection(detector);
    EXPECT_EQ(ran(connection.say(collision.uid, collision.sent_by, collision.operation)),
              collision.read_as);
  }
}

TEST(Undecided, IsAnsweredWithNothingWhereNobodyMinds) {
  ReleaseDetector detector(std::nullopt);
  Connection connection(detector);
  // END_SESSION to some, a question that may be asked again to others.
  EXPECT_EQ(connection.say(5, "0.4.7", "END_SESSION").treatment, Treatment::kAnswerEmpty);
  EXPECT_EQ(ran(connection.say(6, "0.4.7", "FREE_LOOKUP_LOCKS")), "LOOKUP");  // neither has a reply
  EXPECT_EQ(connection.say(7, "0.4.7", "PING").treatment, Treatment::kRun);
  EXPECT_EQ(ran(connection.say(8, "0.4.7", "END_SESSION")), "END_SESSION");
}

TEST(Undecided, IsDroppedWhereAnyAnswerCouldBeUnreadable) {
  ReleaseDetector detector(std::nullopt);
  Connection connection(detector);
  EXPECT_EQ(connection.say(5, "0.4.6", "COMMIT_RETRIEVE").treatment, Treatment::kDrop);
  EXPECT_EQ(connection.dialect().decided_by, DecidedBy::kNothing);
}

// The answer to a message that could be of two releases is one that both can read.
TEST(Undecided, IsAnsweredWithWhatEveryReadingCanBe) {
  for (const auto& others : std::vector<std::vector<std::string>>{
           {}, {"0.5.2"}, {"0.5.2", "0.5.4"}, {"0.5.4", "0.5.2"}, {"0.4.7", "0.5.4", "0.5.2"}}) {
    SCOPED_TRACE(testing::PrintToString(others));
    ReleaseDetector detector(std::nullopt);
    for (const std::string& version : others) {
      Connection other(detector);
      other.say(0, version, "GET_CHUNK_SIZE");
    }
    // COMMIT_RETRIEVE of 0.5.2, which takes a map for true.
    Connection connection(detector);
    const Reading reading = connection.say(5, "0.5.4", "PREPARE_STORE");
    ASSERT_NE(reading.treatment, Treatment::kDrop);
    const Operation* const answer =
        reading.answers_as != nullptr ? reading.answers_as : reading.operation;
    EXPECT_EQ(answer->name, "PREPARE_STORE");
    EXPECT_EQ(ran(connection.say(6, "0.5.4", "PING")), "PING");
  }
}

TEST(Undecided, IsWhatTheOnlyFamilySeenThatCouldSayItMeans) {
  ReleaseDetector detector(std::nullopt);
  for (const char* const version : {"0.4.7", "0.5.2", "0.5.4"}) {
    Connection other(detector);
    other.say(0, version, "GET_CHUNK_SIZE");
  }
  Connection connection(detector);  // COMMIT_RETRIEVE of 0.4.6
  EXPECT_EQ(ran(connection.say(5, "0.4.7", "PREPARE_RETRIEVE")), "PREPARE_RETRIEVE");
}

TEST(Guesses, YieldToAHeartbeat) {
  ReleaseDetector detector(std::nullopt);
  Connection connection(detector);
  connection.say(5, "0.4.7", "COMMIT_RETRIEVE");
  EXPECT_EQ(ran(connection.say(6, "0.4.7", "PING")), "PING");  // GET_CHUNK_SIZE of 0.5.2
}

TEST(Guesses, AreTakenBackWhenLaterMessagesMakeNoSenseUnderThem) {
  ReleaseDetector detector(Release::k053);
  Connection connection(detector);
  EXPECT_EQ(ran(connection.say(5, "0.4.7", "END_SESSION")), "QUERY_PREFETCH_STATUS");
  EXPECT_EQ(connection.dialect().decided_by, DecidedBy::kDefault);
  EXPECT_EQ(ran(connection.say(6, "0.4.7", "LOOKUP")), "LOOKUP");  // 5 is none of 0.5.4's
  EXPECT_EQ(ran(connection.say(7, "0.4.7", "PREPARE_STORE")), "PREPARE_STORE");
  EXPECT_EQ(connection.dialect().decided_by, DecidedBy::kMessages);
  EXPECT_EQ(ran(connection.say(9, "0.4.7", "END_SESSION")), "END_SESSION");
}

// A scheduler of 0.5.4 sends no heartbeats: after a restart it looks up and asks for the result.
TEST(Polls, TellThemselvesByBeingRepeated) {
  for (const char* const prior : {"", "0.4.7", "0.5.4"}) {
    SCOPED_TRACE(prior);
    ReleaseDetector detector(std::nullopt);
    if (*prior != '\0') {
      Connection other(detector);
      other.say(0, prior, "GET_CHUNK_SIZE");
    }
    Connection connection(detector);
    connection.say(700, "0.5.4", "LOOKUP");
    for (int time = 0; time < 2; ++time) {
      // Nothing that a client of 0.4.x could not read as the end of its session.
      const Reading reading = connection.say(701 + time, "0.5.4", "QUERY_PREFETCH_STATUS");
      EXPECT_TRUE(reading.treatment == Treatment::kAnswerEmpty || ran(reading) == "END_SESSION");
    }
    EXPECT_EQ(ran(connection.say(703, "0.5.4", "QUERY_PREFETCH_STATUS")), "QUERY_PREFETCH_STATUS");
    EXPECT_EQ(connection.dialect().decided_by, DecidedBy::kPoll);
    EXPECT_EQ(ran(connection.say(704, "0.5.4", "FREE_LOOKUP_LOCKS")), "FREE_LOOKUP_LOCKS");
  }
}

TEST(MixedFleets, DecideNothingThatAnotherReleaseCouldNotRead) {
  ReleaseDetector detector(std::nullopt);
  for (const char* const version : {"0.5.4", "0.4.7"}) {
    Connection other(detector);
    other.say(0, version, "GET_CHUNK_SIZE");
  }
  Connection worker(detector);  // FREE_LOOKUP_LOCKS to others, but its key names a worker
  EXPECT_EQ(ran(worker.say(5, "0.4.7", "PREPARE_STORE")), "PREPARE_STORE");
  Connection scheduler(detector);
  EXPECT_EQ(ran(scheduler.say(5, "0.4.7", "END_SESSION")), "END_SESSION");
}

TEST(Connections, AreKnownAsReconnectsByTheirFirstUid) {
  ReleaseDetector detector(std::nullopt);
  Connection fresh(detector);
  fresh.say(0, "0.4.7", "GET_CHUNK_SIZE");
  fresh.say(9, "0.4.7", "PING");
  EXPECT_FALSE(fresh.dialect().is_reconnect);
  Connection reconnect(detector);
  reconnect.say(9, "0.4.7", "PING");
  EXPECT_TRUE(reconnect.dialect().is_reconnect);
}

TEST(Guesses, DoNotBecomeThePriorOfOthers) {
  ReleaseDetector detector(std::nullopt);
  Connection first(detector);
  first.say(0, "0.5.4", "GET_CHUNK_SIZE");
  Connection second(detector);
  second.say(5, "0.5.4", "LOOKUP");
  EXPECT_EQ(second.dialect().decided_by, DecidedBy::kPrior);
  Connection third(detector);
  third.say(0, "0.4.7", "GET_CHUNK_SIZE");
  second.say(6, "0.5.4", "END_SESSION");
  EXPECT_EQ(detector.prior(), family("0.4.7"));
}

TEST(Families, StayTogetherUntilAMessageTellsThemApart) {
  ReleaseDetector detector(std::nullopt);
  Connection connection(detector);
  connection.say(0, "0.5.6", "GET_CHUNK_SIZE");
  EXPECT_EQ(connection.dialect().spoken, ReleaseSet::since(Release::k053));
  connection.say(1, "0.5.6", "GET_EXPERIMENTAL");
  EXPECT_EQ(connection.dialect().spoken, ReleaseSet::since(Release::k055));
  connection.say(2, "0.5.6", "LOOKUP");
  EXPECT_EQ(connection.dialect().spoken, (ReleaseSet{Release::k055, Release::k056}));
  EXPECT_EQ(ran(connection.say(3, "0.5.6", "CLEAR")), "CLEAR");
  EXPECT_EQ(connection.dialect().spoken, ReleaseSet{Release::k056});
}

TEST(Families, AreToldApartByTheFormOfTheirKeys) {
  const std::map<std::string, ReleaseSet> expected{
      {"0.5.4", {Release::k053}},
      {"0.5.5", {Release::k055, Release::k056}},
      {"0.5.6", {Release::k055, Release::k056}},
      {"0.5.7rc3", {Release::k057rc3}},
  };
  for (const auto& [version, releases] : expected) {
    ReleaseDetector detector(std::nullopt);
    Connection connection(detector);
    connection.say(0, version, "GET_CHUNK_SIZE");
    connection.say(1, version, "LOOKUP");
    EXPECT_EQ(connection.dialect().spoken, releases) << version;
  }
}

TEST(Families, AreToldApartByTheirRegistrations) {
  const std::map<std::string, ReleaseSet> expected{
      {"0.5.5", {Release::k055, Release::k056}},
      {"0.5.6", {Release::k055, Release::k056}},
      {"0.5.7rc3", {Release::k057rc3}},
  };
  for (const auto& [version, releases] : expected) {
    ReleaseDetector detector(std::nullopt);
    Connection connection(detector);
    connection.say(0, version, "GET_CHUNK_SIZE");
    EXPECT_EQ(ran(connection.say(1, version, "REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT")),
              "REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT");
    EXPECT_EQ(connection.dialect().spoken, releases) << version;
  }
}

TEST(Names, AreOperationsOfTheNewestReleasesOnly) {
  ReleaseDetector detector(std::nullopt);
  Connection connection(detector);
  EXPECT_EQ(ran(connection.say(0, "0.5.7rc3", "NEGOTIATE_CHUNK_SIZE")), "NEGOTIATE_CHUNK_SIZE");
  EXPECT_EQ(connection.dialect().spoken, ReleaseSet{Release::k057rc3});
  Connection older(detector);
  EXPECT_EQ(ran(older.say(0, "0.5.6", "SERVER_MODULE_CALL")), "SERVER_MODULE_CALL");
  EXPECT_EQ(older.dialect().spoken, ReleaseSet::since(Release::k056));
}

TEST(Misfits, OfASettledConnectionReachTheirHandler) {
  ReleaseDetector detector(std::nullopt);
  Connection connection(detector);
  connection.say(0, "0.5.2", "GET_CHUNK_SIZE");
  const Sample broken{"LOOKUP", {packed_int(5), packed_int(1)}};
  EXPECT_EQ(ran(connection.say(1, broken)), "LOOKUP");
  EXPECT_EQ(connection.dialect().spoken, family("0.5.2"));
}

TEST(Misfits, OfAStrangerAreAnsweredOnlyIfAllReadingsAgree) {
  ReleaseDetector detector(std::nullopt);
  Connection connection(detector);
  const Sample unregister{"UNREGISTER_KV_CACHE", {packed_int(2), packed_int(1), packed_int(1)}};
  EXPECT_EQ(connection.say(0, unregister).treatment, Treatment::kAnswerEmpty);
  const Sample five{"LOOKUP", {packed_int(5), packed_int(1)}};  // or STORE_Q
  EXPECT_EQ(connection.say(1, five).treatment, Treatment::kDrop);
}

TEST(Streams, ThatHaveEndedMayBeSpokenTo) {
  ReleaseDetector detector(std::nullopt);
  Connection connection(detector);
  connection.say(0, "0.5.6", "GET_CHUNK_SIZE");
  const Sample cancel{"", {{}, {std::byte{'c'}, std::byte{'a'}}}};
  const Reading reading = connection.say(1, cancel);
  EXPECT_EQ(reading.treatment, Treatment::kDrop);
  EXPECT_EQ(reading.why, kStreamControl);
}

}  // namespace
}  // namespace larder::handlers
