#pragma once

// What each kind of call does to the pipeline, when its turn has come.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint_file.h"
#include "engine/exec/pipeline.h"
#include "engine/ledger/memory_ledger.h"
#include "engine/serve/call.h"
#include "engine/serve/checkpoint_pins.h"
#include "engine/serve/parameter_reader.h"
#include "engine/serve/training_state.h"

namespace penstock {

// What a run of the training order left.
struct Executed {
  RunOutcome run;
  std::shared_ptr<Graph> graph;
  std::optional<CheckpointInfo> checkpoint;
  // Of a save that has copied the state: writes the copy, with which it goes. Called once, on any thread, while later
  // calls of the training order run but those of checkpoints. Null: there is nothing left to do.
  std::function<absl::StatusOr<CheckpointInfo>()> write;
  std::shared_ptr<const ParameterSnapshot> snapshot;
  CompactedJournal compacted;
  bool replaced_state = false;  // restored, written, or to be learnt otherwise: as good as a step for graphs and tokens
};

// What checkpoints say of where they come from.
struct CheckpointOrigin {
  // What stands behind a blank, an exported program's digest, must be that of a checkpoint which is restored or copied.
  std::string spec_digest = {};
  // Returns the bytes that a checkpoint keeps of the specification as it is at the save. Null: it keeps none.
  std::function<std::string(const Pipeline&)> describe = {};
  std::string restored_from = {};  // one of the pipeline's own, which no rotation deletes; empty: none
  std::string life = {};           // in the order of whose calls its checkpoints stand; empty: they have no place there
};

// Turns calls into calls on the Pipeline and the CheckpointFolder.
//
// Owns:      the copies of parameters that are read, with their readers. Pipeline, folder and ledger outlive it.
// Threads:   Run() from the training thread, SaveState() too; the others from any, for calls that are theirs.
// Fails:     as the Pipeline and the folder; TENSOR_SIGNATURE, WRONG_TYPE, reasons of handles for inputs;
//            PARAMETER_NOT_FOUND; MODEL_MISMATCH for a checkpoint of another model file; as ParameterReader;
//            CHECKPOINT_IN_USE for one that is published, where it would be deleted or replaced.
class CallRunner {
 public:
  // `pins`: of the checkpoints that stay. `memory`: where copies of the parameters are reserved; null: nobody counts them.
  CallRunner(std::string name, CheckpointOrigin origin, Pipeline* pipeline, CheckpointFolder* checkpoints,
             CheckpointPins* pins, MemoryLedger* memory)
      : name_(name),
        origin_(std::move(origin)),
        pipeline_(pipeline),
        checkpoints_(checkpoints),
        pins_(pins),
        memory_(memory),
        reader_(std::move(name), pipeline, memory) {}

  // Checks inputs and target against the signature, once they are there, and counts the rows.
  absl::Status CheckTensors(Call& call) const;
  // Of the outputs that were asked for; 0 while inputs are missing.
  int64_t ExpectedOutputBytes(const Call& call) const;

  // A call of the training order. A failure has had no effect.
  absl::StatusOr<Executed> Run(Call& call);
  // Copies the state as it is, with what calls since the last step have left, and `state`, so that a replay goes on from
  // it. Between calls. What it returns writes the copy, whatever the quota and in the place of any of that name, on any
  // thread.
  using WriteState = std::function<absl::StatusOr<CheckpointInfo>(const CancelToken* cancel)>;
  absl::StatusOr<WriteState> CopyState(const std::string& id, CheckpointPlace place, TrainingState::Saved state);
  // What checkpoints keep of the specification from now on. Returns what described it before. While no save is written.
  using Describe = std::function<std::string(const Pipeline&)>;
  Describe SetDescribe(Describe describe) { return std::exchange(origin_.describe, std::move(describe)); }
  int64_t snapshot_bytes() const { return reader_.bytes(); }  // of copies that somebody reads
  // Starts an inference or evaluation; `done` comes once, as the pipeline's callbacks do.
  void StartInference(Call& call, std::function<void(absl::StatusOr<RunOutcome>)> done) const;
  // The same of inferences of one batch_key as one run, in micro-batches of so many rows, with the priority and turn of
  // the first; `done` comes once, with an outcome for each. Fails: as a run; HOST_MEMORY; AreInseparable().
  using BatchDone = std::function<void(absl::StatusOr<std::vector<RunOutcome>>)>;
  void StartBatch(const std::vector<CallPointer>& calls, int64_t micro_batch_rows, BatchDone done) const;

 private:
  int64_t OutputBytes(const NamedValues& inputs, const Call& call) const;
  // What an inference runs on.
  Pipeline& EngineOf(const Call& call) const;
  absl::StatusOr<ForwardRequest> Complete(ForwardRequest request, Call& call) const;
  absl::StatusOr<ContributionRequest> Complete(const ContributionCall& contribution, Call& call) const;

  absl::StatusOr<Executed> Run(const InferCall& infer, Call& call) const;
  absl::StatusOr<Executed> Run(const EvaluateCall& evaluate, Call& call) const;
  absl::StatusOr<Executed> Run(const ForwardCall& forward, Call& call) const;
  absl::StatusOr<Executed> Run(const BackwardCall& backward, Call& call) const;
  absl::StatusOr<Executed> Run(const ContributionCall& contribution, Call& call) const;
  absl::StatusOr<Executed> Run(const TrainStepCall& step, Call& call) const;
  absl::StatusOr<Executed> Run(const StepCall& step, Call& call) const;
  absl::StatusOr<Executed> Run(const ExpireCall& expire, Call& call) const;
  absl::StatusOr<Executed> Run(const SaveCall& save, Call& call);
  absl::StatusOr<Executed> Run(const CopyCall& copy, Call& call) const;
  absl::StatusOr<Executed> Run(const RestoreCall& restore, Call& call);
  absl::StatusOr<Executed> Run(const WriteCall& write, Call& call) const;
  absl::StatusOr<Executed> Run(const DeleteCall& remove, Call& call) const;
  absl::StatusOr<Executed> Run(const ReadCall& read, Call& call) const;
  absl::StatusOr<Executed> Run(const UpdateOptimizerCall& update, Call& call) const;
  absl::StatusOr<Executed> Run(const CompactCall& compact, Call& call) const;
  absl::StatusOr<Executed> Run(const UpdateCall& update, Call& call) const;
  absl::StatusOr<Executed> Discard() const;
  // Room for so many bytes of a copy of the state, or of a checkpoint.
  absl::StatusOr<MemoryReservation> HoldState(const Call& call, int64_t bytes) const;
  // The bytes of the specification now; checkpoints of one specification share them.
  std::shared_ptr<const std::string> Specification();
  // Where what is saved by the call stands in the order of calls.
  CheckpointPlace PlaceOf(const Call& call) const;
  // What the call has saved before a crash.
  std::optional<CheckpointInfo> SavedBy(const Call& call, const std::string& id) const;
  // Fails: CHECKPOINT_IN_USE for one that a replay may begin from.
  absl::Status CheckUnused(const std::string& id) const;
  // The right to delete or replace one. Fails: CHECKPOINT_IN_USE.
  absl::StatusOr<CheckpointPins::Hold> Change(const std::string& id) const;
  // Deletes the oldest of the rotating checkpoints beyond `keep`; `saved` is one. What can't be deleted is logged.
  void Rotate(int keep, const std::string& saved) const;
  // Puts the state in the place of the pipeline's; gradients of the weights that are gone go too.
  absl::StatusOr<Executed> Replace(const NamedTensors& state, int64_t step) const;

  const std::string name_;
  // The training thread changes what it was restored from, while no save is being written.
  CheckpointOrigin origin_;
  std::shared_ptr<const std::string> specification_;  // of the last save
  Pipeline* const pipeline_;
  CheckpointFolder* const checkpoints_;
  CheckpointPins* const pins_;
  MemoryLedger* const memory_;
  const ParameterReader reader_;
};

}  // namespace penstock
