#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/ids.h"
#include "engine/exec/rank_commands.h"
#include "server/peer/membership.h"
#include "server/ranks/rank_convert.h"

namespace penstock {

// What the leader and another rank say to each other of one pipeline.
//
// Model:     Each command is one message; a question has a number, which its answer repeats. A rank that is lost answers
//            every question with the loss, and is told nothing more.
// Owns:      a share of the line to the rank.
// Threads:   any method from any thread. Answers and events come on the thread that brings the report.
// Lifecycle: Close() says `last`, also to a rank that is lost for this pipeline only, and to which its line still leads;
//            it waits until the events have what is being told, and the questions are answered with CANCELLED; not
//            from a call of either.
class RankConversation {
 public:
  struct Arrived {
    const peer::v1::Report& report;
    IncomingTensors tensors;
  };
  using Answer = std::function<void(absl::StatusOr<Arrived*>)>;

  RankConversation(Rank rank, uint64_t pipeline, std::shared_ptr<MemberLine> line, RankEvents* events)
      : rank_(rank), pipeline_(pipeline), line_(std::move(line)), events_(events) {}

  Rank rank() const { return rank_; }

  void Say(OutgoingCommand command) ABSL_LOCKS_EXCLUDED(mu_);
  void Ask(OutgoingCommand command, Answer answer) ABSL_LOCKS_EXCLUDED(mu_);
  // A message for Close().
  std::vector<MessagePart> Prepare(OutgoingCommand command) const;

  // What the rank has said. Fails: RANK_MESSAGE; then the rank must be given up.
  absl::Status OnReport(const peer::v1::Report& report, NamedTensors tensors) ABSL_LOCKS_EXCLUDED(mu_);
  void OnLost(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  void Close(std::vector<MessagePart> last = {}) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Status TellEvent(Arrived& arrived, RankEvents& events) const;
  // Calls it with the events, unless they are closed.
  absl::Status WithEvents(const std::function<absl::Status(RankEvents&)>& call) ABSL_LOCKS_EXCLUDED(mu_);

  const Rank rank_;
  const uint64_t pipeline_;
  const std::shared_ptr<MemberLine> line_;

  absl::Mutex mu_;
  RankEvents* events_ ABSL_GUARDED_BY(mu_);  // null: nothing is told any more
  int telling_ ABSL_GUARDED_BY(mu_) = 0;     // calls of it that run
  std::map<uint64_t, Answer> questions_ ABSL_GUARDED_BY(mu_);
  uint64_t asked_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status lost_ ABSL_GUARDED_BY(mu_);  // or closed
};

}  // namespace penstock
