#include "handlers/release_detector.h"

#include "base/check.h"
#include "codec/msgpack_reader.h"

namespace larder::handlers {
namespace {

using protocol::Release;
using protocol::ReleaseSet;

constexpr std::size_t kUidFrame = 0;
constexpr std::size_t kOperationFrame = 1;
constexpr std::size_t kFirstPayload = 2;
constexpr std::size_t kStreamControlFrames = 3;  // uid, an empty frame, "ack" or "cancel"

constexpr std::string_view kClear = "CLEAR";
constexpr std::string_view kGetChunkSize = "GET_CHUNK_SIZE";
constexpr std::string_view kLookup = "LOOKUP";
constexpr std::string_view kNoop = "NOOP";
constexpr std::string_view kPing = "PING";
constexpr std::string_view kPoll = "QUERY_PREFETCH_STATUS";
constexpr std::string_view kNoReply = "none";

// A poll names a request; no client ends a session twice in a row, let alone three times.
constexpr std::size_t kPollBytesMax = 2048;
constexpr std::uint32_t kRepeatsOfPoll = 2;

constexpr std::string_view kAmbiguous = "ambiguous";

constexpr std::byte kTrue{0xc3};

bool is_zero(protocol::Frame frame) {
  codec::MsgpackReader reader(frame);
  const Result<std::int64_t> uid = reader.read_int64();
  return uid.has_value() && *uid == 0 && reader.at_end();
}

Reading dropped(std::string_view why) {
  return {Treatment::kDrop, nullptr, Release::k045, why};
}

}  // namespace

// One message under the releases it could be of.
class ReleaseDetector::Message {
 public:
  Message(OperationId id, protocol::Frames frames)
      : id_(id),
        operation_(frames[kOperationFrame]),
        payloads_(frames.subspan(kFirstPayload)),
        is_first_(is_zero(frames[kUidFrame])) {}

  // Its client counts uids from 0.
  bool is_first() const { return is_first_; }

  bool has_payloads() const { return !payloads_.empty(); }

  // Counts how often it came in a row.
  void note_in(Dialect& dialect) const {
    const bool is_short = payloads_.size() == 1 && payloads_[0].size() <= kPollBytesMax;
    std::vector<std::byte> said;
    if (is_short) {
      said.assign(operation_.begin(), operation_.end());
      said.insert(said.end(), payloads_[0].begin(), payloads_[0].end());
    }
    dialect.repeats = is_short && said == dialect.last ? dialect.repeats + 1 : 0;
    dialect.last = std::move(said);
  }

  ReleaseSet known_to(ReleaseSet releases) const {
    return releases.where([this](Release release) { return under(release) != nullptr; });
  }

  ReleaseSet fitting(ReleaseSet releases) const {
    return releases.where([this](Release release) {
      const Operation* const operation = under(release);
      return operation != nullptr &&
             protocol::fits(payloads_, operation->payloads(release), release);
    });
  }

  // The functions below REQUIRE that all these releases know the operation.

  ReleaseSet read_as(std::string_view name, ReleaseSet releases) const {
    return releases.where([&](Release release) { return under(release)->name == name; });
  }

  // One operation, one form of reply.
  bool is_agreed(ReleaseSet releases) const {
    const Operation& operation = *under(releases.oldest());
    const std::string_view reply = operation.reply(releases.oldest());
    return releases == releases.where([&](Release release) {
      return under(release) == &operation && operation.reply(release) == reply;
    });
  }

  // Their replies are all of one form.
  bool is_replied_alike(ReleaseSet releases) const {
    const std::string_view reply = reply_of(releases.oldest());
    return releases == releases.where([&](Release release) { return reply_of(release) == reply; });
  }

  // Two frames are an answer to each of them.
  bool may_be_none(ReleaseSet releases) const {
    return releases ==
           releases.where([this](Release release) { return under(release)->reply_may_be_none; });
  }

  bool is_silent(ReleaseSet releases) const {
    return releases ==
           releases.where([this](Release release) { return reply_of(release) == kNoReply; });
  }

  // The release whose safe negative all of them can read, if there is one.
  std::optional<Release> common_refusal(ReleaseSet releases) const {
    const ReleaseSet truths = releases.where([this](Release release) { return is_truth(release); });
    ReleaseSet others = releases.where([&](Release release) { return !truths.contains(release); });
    if (others.empty()) {
      others = truths;
    } else if (!truths.empty() && !is_map(refusal_of(others.oldest()))) {
      return std::nullopt;
    }
    const protocol::EncodedReply refusal = refusal_of(others.oldest());
    const bool is_same = others == others.where([&](Release release) {
      const protocol::EncodedReply other = refusal_of(release);
      return other.send == refusal.send && other.has_value == refusal.has_value &&
             other.value == refusal.value;
    });
    return is_same ? std::optional(others.oldest()) : std::nullopt;
  }

  const Operation& operation_under(Release release) const { return *under(release); }

  // Expects true, and takes a map for it.
  bool is_truth(Release release) const {
    const protocol::EncodedReply refusal = refusal_of(release);
    return release >= Release::k047 && refusal.value.size() == 1 && refusal.value[0] == kTrue;
  }

  Reading as(Treatment treatment, ReleaseSet releases, std::string_view why = {}) const {
    return {treatment, under(releases.oldest()), releases.oldest(), why};
  }

  Reading undecided(ReleaseSet releases) const {
    const ReleaseSet lookups = read_as(kLookup, releases);
    if (!lookups.empty() && is_replied_alike(releases)) {
      return as(Treatment::kRun, lookups);
    }
    if (may_be_none(releases)) {
      return as(Treatment::kAnswerEmpty, releases, kAmbiguous);
    }
    const std::optional<Release> answer = common_refusal(releases);
    return answer ? as(Treatment::kRefuse, {*answer}, kAmbiguous) : dropped(kAmbiguous);
  }

 private:
  const Operation* under(Release release) const { return find_operation(id_, release); }

  std::string_view reply_of(Release release) const { return under(release)->reply(release); }

  static bool is_map(const protocol::EncodedReply& reply) {
    codec::MsgpackReader reader(reply.value);
    const Result<codec::MsgpackType> type = reader.peek();
    return type.has_value() && *type == codec::MsgpackType::kMap;
  }

  protocol::EncodedReply refusal_of(Release release) const {
    return under(release)->refusal(payloads_, release);
  }

  OperationId id_;
  protocol::Frame operation_;
  protocol::Frames payloads_;
  bool is_first_;
};

std::string_view name_of(DecidedBy decided_by) {
  switch (decided_by) {
    case DecidedBy::kNothing:
      return "nothing";
    case DecidedBy::kMessages:
      return "messages";
    case DecidedBy::kChunkSize:
      return "chunk_size";
    case DecidedBy::kHeartbeat:
      return "heartbeat";
    case DecidedBy::kPoll:
      return "poll";
    case DecidedBy::kPrior:
      return "prior";
    case DecidedBy::kDefault:
      return "default";
  }
  LARDER_UNREACHABLE();
}

Reading ReleaseDetector::read(Dialect& dialect, protocol::Frames frames) {
  if (frames.size() < kFirstPayload) {
    return dropped("too few frames");
  }
  const protocol::Frame operation = frames[kOperationFrame];
  if (operation.empty() && frames.size() == kStreamControlFrames) {
    return dropped(kStreamControl);
  }
  const Result<OperationId> id = read_operation_id(operation);
  if (!id) {
    return dropped("operation is neither a number nor a name");
  }
  const Message message(*id, frames);
  if (!dialect.has_spoken) {
    dialect.has_spoken = true;
    dialect.is_reconnect = !message.is_first();
  }
  return read_message(dialect, message);
}

// What speaks against what was guessed: a poll, or a heartbeat where otherwise somebody would ask
// for the chunk size in the middle of things.
bool ReleaseDetector::contradicts_guess(const Dialect& dialect,
                                        const Message& message,
                                        ReleaseSet fitting,
                                        ReleaseSet fitting_possible) {
  if (dialect.possible == dialect.spoken) {
    return false;
  }
  const bool is_poll = dialect.repeats >= kRepeatsOfPoll &&
                       message.read_as(kPoll, fitting).empty() &&
                       !message.read_as(kPoll, fitting_possible).empty();
  const bool follows_others =
      dialect.decided_by == DecidedBy::kPrior || dialect.decided_by == DecidedBy::kDefault;
  const bool is_ping = follows_others && !message.read_as(kGetChunkSize, fitting).empty() &&
                       !message.read_as(kPing, fitting_possible).empty();
  return is_poll || is_ping;
}

Reading ReleaseDetector::read_message(Dialect& dialect, const Message& message) {
  const ReleaseSet fitting_possible = message.fitting(dialect.possible);
  ReleaseSet fitting = fitting_possible & dialect.spoken;
  if (fitting_possible.empty()) {
    return misfit(dialect, message);
  }
  if (!(dialect.possible == dialect.spoken) || !dialect.is_settled()) {
    message.note_in(dialect);
  }
  if (fitting.empty() || contradicts_guess(dialect, message, fitting, fitting_possible)) {
    fitting = fitting_possible;
    dialect.spoken = dialect.possible;
    dialect.decided_by = DecidedBy::kNothing;
  }
  if (dialect.decided_by == DecidedBy::kPrior && !message.read_as(kPoll, fitting).empty() &&
      !(message.read_as(kPoll, fitting_possible) == fitting_possible)) {
    if (dialect.repeats < kRepeatsOfPoll) {
      return message.undecided(fitting_possible);  // see like_others()
    }
    dialect.decided_by = DecidedBy::kPoll;
  }
  const ReleaseSet spoken_before = dialect.spoken;
  const bool was_settled = dialect.is_settled();
  dialect.possible = fitting_possible;
  dialect.spoken = fitting;
  if (!message.is_agreed(fitting)) {
    const Choice choice = choose(dialect, message, fitting);
    if (choice.releases.empty()) {
      return message.undecided(fitting);
    }
    dialect.spoken = choice.releases;
    dialect.decided_by = choice.decided_by;
    if (choice.is_certain) {
      dialect.possible = choice.releases;
    }
  } else if (dialect.is_settled() && dialect.decided_by == DecidedBy::kNothing) {
    dialect.decided_by = DecidedBy::kMessages;
  }
  note_prior(dialect, spoken_before);
  const bool may_clear =
      was_settled && message.read_as(kClear, fitting_possible) == fitting_possible;
  if (!may_clear && !message.read_as(kClear, dialect.spoken).empty()) {
    return message.as(Treatment::kRefuse, dialect.spoken, "CLEAR before the release is known");
  }
  Reading reading = message.as(Treatment::kRun, dialect.spoken);
  if (message.is_truth(reading.release) && !message.is_agreed(fitting_possible)) {
    if (const auto answer = message.common_refusal(fitting_possible)) {
      reading.answers_as = &message.operation_under(*answer);
    }
  }
  return reading;
}

Reading ReleaseDetector::misfit(const Dialect& dialect, const Message& message) {
  const ReleaseSet known = message.known_to(dialect.spoken);
  if (known.empty()) {
    return dropped("unknown operation");
  }
  // Running it fails to decode, or finds what was only written unlike any client.
  return dialect.is_settled() ? message.as(Treatment::kRun, known) : message.undecided(known);
}

ReleaseDetector::Choice ReleaseDetector::choose(const Dialect& dialect,
                                                const Message& message,
                                                ReleaseSet fitting) const {
  const ReleaseSet asking = message.read_as(kGetChunkSize, fitting);
  const bool is_first_question = message.is_first() && !message.has_payloads();
  const ReleaseSet noop = message.read_as(kNoop, fitting);
  const bool is_noop_otherwise = fitting == fitting.where([&](Release release) {
    return asking.contains(release) || noop.contains(release);
  });
  if (!asking.empty() && (is_first_question || is_noop_otherwise)) {
    return {asking, DecidedBy::kChunkSize, message.is_first()};
  }
  if (const ReleaseSet pings = message.read_as(kPing, fitting); !pings.empty()) {
    return {pings, DecidedBy::kHeartbeat, false};
  }
  if (const ReleaseSet polls = message.read_as(kPoll, fitting);
      !polls.empty() && dialect.repeats >= kRepeatsOfPoll) {
    return {polls, DecidedBy::kPoll, false};
  }
  if (const ReleaseSet followed = like_others(message, fitting); !followed.empty()) {
    return {followed, DecidedBy::kPrior, false};
  }
  const ReleaseSet by_default = fitting & default_;
  if (!by_default.empty() && message.is_agreed(by_default)) {
    return {by_default, DecidedBy::kDefault, false};
  }
  return {};
}

// What other connections' releases make of it. A poll is never read into a message by that, as it
// will be repeated anyway. Where several of these families could say it, only what has no reply, or
// the same in every reading, is.
ReleaseSet ReleaseDetector::like_others(const Message& message, ReleaseSet fitting) const {
  const ReleaseSet known = fitting & seen_;
  const bool is_only_one = is_one_family(known);
  const ReleaseSet followed = is_only_one ? known : known & prior_;
  if (followed.empty() || !message.is_agreed(followed) ||
      !message.read_as(kPoll, followed).empty()) {
    return {};
  }
  const bool is_safe = is_only_one || message.is_replied_alike(fitting) ||
                       (message.is_silent(followed) && message.may_be_none(fitting));
  return is_safe ? followed : ReleaseSet{};
}

void ReleaseDetector::note_prior(const Dialect& dialect, ReleaseSet spoken_before) {
  const bool is_news = dialect.is_settled() && !(dialect.spoken == spoken_before);
  if (!is_news || dialect.decided_by == DecidedBy::kPrior ||
      dialect.decided_by == DecidedBy::kDefault) {
    return;
  }
  prior_ = protocol::family_of(dialect.spoken.oldest());
  for (const Release release : protocol::kReleases) {
    if (prior_.contains(release)) {
      seen_.insert(release);
    }
  }
}

}  // namespace larder::handlers
