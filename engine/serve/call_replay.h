#pragma once

// The calls of a journal, made again after a restart.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/serve/call_journal.h"
#include "engine/serve/call_preparation.h"
#include "engine/serve/served_calls.h"
#include "engine/serve/settlement.h"
#include "engine/serve/training_loop.h"

namespace penstock {

class HandleStore;

// What a replay has done.
struct ReplayReport {
  int64_t repeated = 0;   // calls that had ended well
  int64_t finished = 0;   // calls that were accepted and had no outcome
  int64_t differing = 0;  // of those repeated, with another outcome than before
};

// Makes the calls behind a checkpoint again, in their order.
//
// Model:     a call that had ended well is made again where the checkpoint is older, and its outcome compared; one that
//            had failed or was cancelled had no effect, and is left out; one without an outcome is made now, and its
//            outcome recorded. Saves, copies and deletions of checkpoints are made only where they have no outcome. Every
//            Forward is made again, for its draws count; its graph is kept as long as a Backward of the journal, or a
//            retry, can ask for it. When it is over, no handle is left of it.
// Threads:   one, before the pipeline accepts anything.
// Fails:     JOURNAL_CORRUPT; a call that ended well and fails now fails the replay, naming its sequence: the state
//            could not be what was told. WORK_CANCELLED where `wanted` says no.
class CallReplay {
 public:
  struct Parts {
    std::string pipeline;
    HandleStore* handles = nullptr;
    const CallPreparation* preparation = nullptr;
    ServedCalls* calls = nullptr;
    Settlement* settlement = nullptr;
    TrainingLoop* training = nullptr;
    CallJournal* journal = nullptr;
    size_t kept_forwards = 16;
    std::function<bool()> wanted;  // asked between calls; null: always
  };
  explicit CallReplay(Parts parts) : parts_(std::move(parts)) {}

  // `from`: the last sequence whose effect the state has.
  absl::StatusOr<ReplayReport> Run(int64_t from);

 private:
  absl::Status FindUses();
  absl::Status Repeat(CallRow row, int64_t from);
  struct Made {
    CallPointer call;
    CallResults results;
  };
  absl::StatusOr<Made> Make(const CallRow& row);
  absl::Status BindHandles(const CallRow& row, RepeatedCall& repeated);
  absl::StatusOr<HandleName> Reserve(const std::string& owner, HandleKind kind, const char* method,
                                     int64_t bytes) const;
  absl::Status Finish(const Made& made, const absl::StatusOr<Executed>& executed);
  // Of a call that can't be made for want of what it asks for.
  absl::Status FinishRow(const CallRow& row, const absl::Status& error);
  absl::Status AwaitRecorded(const std::function<void(PipelineJournal::Done)>& record) const;
  absl::Status Compare(const CallRow& row, const CallPointer& call, const absl::StatusOr<Executed>& executed);
  // Keeps what a Forward has given. The handle of its graph stays only where a call of the journal goes on from it.
  void KeepForward(const CallRow& row, const CallPointer& call, const absl::StatusOr<Executed>& executed);
  // No call behind this one goes on from the graph that it has used.
  void LetGo(const CallRow& row);

  const Parts parts_;
  std::map<int64_t, int64_t> last_use_;   // of a graph, by the sequence of its Forward
  std::map<int64_t, HandleName> graphs_;  // with uses to come, by the sequence of their Forwards
  ReplayReport report_;
};

}  // namespace penstock
