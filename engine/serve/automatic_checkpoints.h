#pragma once

// The checkpoints that keep a journal short, and those from which its replay begins.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/checkpoint/checkpoint_file.h"
#include "engine/serve/call.h"
#include "engine/serve/call_journal.h"
#include "engine/serve/call_runner.h"
#include "engine/serve/served_calls.h"

namespace penstock {

class CancelToken;
class Clock;

// Saves a pipeline by itself, and takes from the journal what the checkpoint holds.
//
// Model:     Before the first call that changes the state, the state as it was made: weights never depend on how a build
//            draws them. Later, once a replay would read or take too much, and after a restore, so that no call in the
//            journal needs a checkpoint that may be deleted. It holds what is accumulated, and for whom (OpenTraining),
//            but no graph: while a Backward can use one, none is made. Its effect is in it for all calls up to its
//            sequence, whose outcomes are durable before the state is copied. So many newest ones are kept.
// Threads:   the training thread, but for After() while nothing is being written; a Write on any, one at a time.
// Fails:     BeforeFirst(): as CheckpointFolder::Save(); what After() begins logs what fails, and is tried again after
//            the next call. Compact(): also GRAPH_OPEN; JOURNAL_BUSY while held; as PipelineJournal::Cut().
class AutomaticCheckpoints {
 public:
  struct Limits {
    int64_t replay_bytes = int64_t{16} << 30;
    int64_t replay_nanos = int64_t{60} * 1'000'000'000;
    size_t kept = 3;
  };
  // `life`: of the pipeline.
  AutomaticCheckpoints(std::string name, std::string life, Limits limits, CallJournal* journal, CallRunner* runner,
                       CheckpointFolder* checkpoints, ServedCalls* calls, Clock* clock)
      : name_(std::move(name)),
        life_(std::move(life)),
        limits_(limits),
        journal_(journal),
        runner_(runner),
        checkpoints_(checkpoints),
        calls_(calls),
        clock_(clock),
        begun_(HasOne(*checkpoints, life_)) {}

  // The name that one has: nobody else gives such names.
  static std::string IdOf(int64_t sequence);
  static bool IsId(const std::string& id);

  // Removes those of a life that is over: nothing is replayed from them any more.
  static void RemoveAll(CheckpointFolder& checkpoints, const std::string& life);

  absl::Status BeforeFirst(const Call& call) ABSL_LOCKS_EXCLUDED(calls_->mu);
  // The same before any call.
  absl::Status SaveFirst() { return begun_ ? absl::OkStatus() : SaveBegin({}); }
  // Whether it is time to save, and none is being written; then what was copied is left to write, beside the calls
  // behind. Null: nothing is.
  using Write = std::function<void()>;
  Write After(const Call& call) ABSL_LOCKS_EXCLUDED(calls_->mu, held_mu_);
  // A call of the journal that restores a checkpoint was made again.
  void NoteRestored() { restored_ = true; }
  // Before a call that may delete checkpoints: saves one if a replay would need one that a call has restored. Fails:
  // CHECKPOINT_IN_USE.
  absl::Status BeforeDeletion(const Call& call) ABSL_LOCKS_EXCLUDED(calls_->mu);
  // The same at once, and returns when the calls have gone; their checkpoint, or none if none went.
  struct Compacted {
    CompactedJournal gone;
    std::optional<CheckpointInfo> checkpoint;
  };
  // `cancel` gives the save up; null: nothing does.
  absl::StatusOr<Compacted> Compact(const CancelToken* cancel) ABSL_LOCKS_EXCLUDED(calls_->mu, held_mu_);
  // The same though no call would go: a replay begins with the specification of now, once it returns OK, whether the calls
  // before it have gone or not.
  absl::Status SaveNow(const CancelToken* cancel) ABSL_LOCKS_EXCLUDED(calls_->mu, held_mu_);
  // The same if there is none yet: then the weights depend on how a build draws them.
  absl::Status SaveIfFirst(const CancelToken* cancel) ABSL_LOCKS_EXCLUDED(calls_->mu, held_mu_) {
    return begun_ ? absl::OkStatus() : SaveNow(cancel);
  }
  // What would keep Compact() from it now. Any thread.
  absl::Status CheckCompact() const ABSL_LOCKS_EXCLUDED(calls_->mu, held_mu_);

  // While held, nothing goes from the journal, nor an automatic checkpoint: somebody copies them. Any thread; the first
  // waits for a save that has begun.
  void Hold() ABSL_LOCKS_EXCLUDED(held_mu_);
  void Release() ABSL_LOCKS_EXCLUDED(held_mu_);

 private:
  // Writes what was copied, and takes from the journal what it holds: for what follows, a replay has nothing to do.
  // `cut`: comes when the calls have gone.
  using WriteAndCut = std::function<absl::StatusOr<Compacted>(const CancelToken* cancel, PipelineJournal::Done cut)>;
  // If the state allows it. Until what it returns has gone, nobody copies the journal.
  absl::StatusOr<WriteAndCut> Copy() ABSL_LOCKS_EXCLUDED(calls_->mu, held_mu_);
  absl::StatusOr<Compacted> WriteCopy(const CallRunner::WriteState& write, int64_t sequence, const CancelToken* cancel,
                                      PipelineJournal::Done cut);
  // Returns when the calls have gone, or why they have not is in `cut`.
  absl::StatusOr<Compacted> SaveAndCut(const CancelToken* cancel, absl::Status* cut)
      ABSL_LOCKS_EXCLUDED(calls_->mu, held_mu_);
  // A cut that fails is logged.
  absl::Status CutLater(const WriteAndCut& write) const;
  static bool HasOne(const CheckpointFolder& checkpoints, const std::string& life);
  // The training that is saved, as its calls have left it.
  struct Point {
    int64_t sequence = 0;
    int64_t version = 0;
    TrainingState::Saved state = {};
  };
  absl::Status SaveBegin(Point point);
  absl::StatusOr<CallRunner::WriteState> CopyAs(Point point);
  static void RemoveBeyond(CheckpointFolder& checkpoints, const std::string& life, size_t kept);

  const std::string name_;
  const std::string life_;
  const Limits limits_;
  CallJournal* const journal_;
  CallRunner* const runner_;
  CheckpointFolder* const checkpoints_;
  ServedCalls* const calls_;
  Clock* const clock_;
  bool begun_;             // there is one
  bool restored_ = false;  // a call that is not in a checkpoint has restored one

  mutable absl::Mutex held_mu_;
  int holds_ ABSL_GUARDED_BY(held_mu_) = 0;
  bool saving_ ABSL_GUARDED_BY(held_mu_) = false;
};

}  // namespace penstock
