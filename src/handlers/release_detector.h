// release_detector.h - which release a connection speaks, from what it says.
//
// The protocol has no version exchange, and the numbers of operations moved: one message may be
// GET_CHUNK_SIZE of one release and CLEAR of another. So each connection has a set of releases
// under which everything it said makes sense (wire.md section 8). A message
//   * drops the releases that do not know its operation or whose clients would write it otherwise;
//   * runs when the releases left agree on the operation and on the form of its reply. Releases of
//     one family agree on nearly everything and may stay together for good;
//   * is decided, when they do not agree, by the first rule that can: a client's first message
//     (uid 0) without payload asks for the chunk size, and so does what else could only be NOOP; a
//     message that could be a heartbeat is one; one that comes a third time in a row is a poll;
//     then the only one of the families recognised on other connections that could say this, or
//     the one recognised last; then the default release.
// What no rule decides is run as a LOOKUP where that is one reading and none has a reply (the
// others only give locks back), answered with two frames where every reading takes that for
// "nothing yet", with the safe negative where one suits all readings, and dropped otherwise.
//
// A reply that a client cannot read ends its receive loop for good. Since 0.4.7 clients take any
// value for a bool, a map for true. So where one reading of a guess expects true and the others a
// structure, the structure's safe negative is sent.
// CLEAR never runs before the connection is settled, that is, down to one family, nor while a
// guess could be wrong about it.
//
// All but the rule for first messages are guesses. A later message that makes no sense under a
// guess, but does under a release that was guessed away, takes it back.
//
// Pure: no lock, no clock, no log. One thread, the one that receives.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "handlers/operations.h"
#include "protocol/release.h"

namespace larder::handlers {

enum class DecidedBy : std::uint8_t {
  kNothing,    // not settled
  kMessages,   // no other release would say this
  kChunkSize,  // asked for it
  kHeartbeat,  // what repeats after a reconnect
  kPoll,       // asked again and again
  kPrior,      // the release last recognised on another connection
  kDefault,    // --default-release, or 0.5.0-0.5.2 without it
};

std::string_view name_of(DecidedBy decided_by);  // "messages", "chunk_size", ...

// What is known of one connection.
struct Dialect {
  // Everything it said makes sense under these, decisions that are certain included.
  protocol::ReleaseSet possible = protocol::ReleaseSet::all();
  // Those of them that guesses left.
  protocol::ReleaseSet spoken = protocol::ReleaseSet::all();
  DecidedBy decided_by = DecidedBy::kNothing;
  bool has_spoken = false;
  bool is_reconnect = false;  // its client had spoken before, over another connection

  // The last message, if it is short, and how often it came in a row.
  std::vector<std::byte> last;
  std::uint32_t repeats = 0;

  bool is_settled() const { return protocol::is_one_family(spoken); }
};

// The reason of a drop that is part of the protocol: what a client says to a stream that has ended.
inline constexpr std::string_view kStreamControl = "control of an ended stream";

enum class Treatment : std::uint8_t {
  kRun,
  kRefuse,       // answer the operation's safe negative
  kAnswerEmpty,  // answer two frames
  kDrop,
};

// What to do with a message.
struct Reading {
  Treatment treatment = Treatment::kDrop;
  const Operation* operation = nullptr;  // nullptr when dropped
  protocol::Release release{};           // whose decoder and encoder to use
  std::string_view why;                  // of kRefuse and kDrop; a metric label
  bool is_reconnect = false;             // as the dialect says

  // What to answer instead of the operation's own reply: this one's safe negative.
  const Operation* answers_as = nullptr;
};

class ReleaseDetector {
 public:
  // nullopt: 0.5.0-0.5.2, where that is possible.
  explicit ReleaseDetector(std::optional<protocol::Release> default_release)
      : default_(protocol::family_of(default_release.value_or(protocol::Release::k052))) {}

  // Takes a message's frames (uid, operation, payloads; any number of them) and narrows the
  // dialect.
  Reading read(Dialect& dialect, protocol::Frames frames);

  // The family of the connection that was settled last, other than by this.
  protocol::ReleaseSet prior() const { return prior_; }

 private:
  class Message;

  struct Choice {
    protocol::ReleaseSet releases;  // empty: no rule decides
    DecidedBy decided_by = DecidedBy::kNothing;
    bool is_certain = false;
  };

  Reading read_message(Dialect& dialect, const Message& message);
  static bool contradicts_guess(const Dialect& dialect,
                                const Message& message,
                                protocol::ReleaseSet fitting,
                                protocol::ReleaseSet fitting_possible);
  static Reading misfit(const Dialect& dialect, const Message& message);
  Choice choose(const Dialect& dialect, const Message& message, protocol::ReleaseSet fitting) const;
  protocol::ReleaseSet like_others(const Message& message, protocol::ReleaseSet fitting) const;
  void note_prior(const Dialect& dialect, protocol::ReleaseSet spoken_before);

  const protocol::ReleaseSet default_;
  protocol::ReleaseSet prior_;  // the family recognised last; empty: none yet
  protocol::ReleaseSet seen_;   // all families recognised so far
};

}  // namespace larder::handlers
