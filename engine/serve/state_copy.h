#pragma once

// A copy of all that makes a daemon's pipelines outlive it, from which another daemon can go on.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint_file.h"
#include "engine/journal/daemon_journal.h"
#include "engine/journal/pipeline_journal.h"

namespace penstock {

class CallRecords;
class CancelToken;
class CheckpointStore;
class Clock;
class PipelineTable;
class ServedPipeline;

// What stands in the copy.
struct CopiedState {
  struct Copied {
    std::string pipeline;
    int64_t sequence = 0;     // of the last call that the copy has
    int64_t checkpoints = 0;  // of it
  };
  struct LeftOut {
    std::string pipeline;
    absl::Status error;  // why it could not be made again
  };
  std::vector<Copied> pipelines = {};
  std::vector<LeftOut> left_out = {};
};

// Copies a state folder in use: the daemon's journal, the pipelines' journals, the checkpoints that a replay begins
// from, and those that are published.
//
// Model:     The daemon's journal comes first: it says which pipelines the copy has. A pipeline that is deleted
//            meanwhile is taken out of it again. Of each pipeline the journal comes first, then the checkpoints that it
//            reaches back to; while that lasts, neither is cut nor rotated. A checkpoint that came meanwhile and is newer than
//            the copied journal is left out, for the calls that it holds would not be known. So each pipeline of the copy has the
//            state after some call that was accepted while the copy was made. The copy is opened and verified, and gets
//            its name when it is whole.
// Threads:   one that may wait for the disk. Pipelines go on.
// Fails:     FIELD_INVALID naming `folder`; PIPELINE_NOT_READY while a pipeline of the journal is being made;
//            JOURNAL_CORRUPT, CHECKPOINT_CORRUPT naming the pipeline; STORAGE_FULL; WORK_CANCELLED; what the disk
//            refuses. Then nothing is left of it.
class StateCopy {
 public:
  // All of it outlives this.
  struct Parts {
    const PipelineTable* pipelines = nullptr;
    DaemonJournal* journal = nullptr;
    const CheckpointStore* checkpoints = nullptr;
    const CallRecords* records = nullptr;
    Clock* clock = nullptr;
    std::string state_dir = {};
    PipelineJournal::Options options = {};  // of the pipelines' journals
  };
  // `named`: also the checkpoints that callers have saved, of living and deleted pipelines. `cancel`: gives it up
  // between two files.
  StateCopy(Parts parts, std::string folder, bool named, std::shared_ptr<CancelToken> cancel)
      : parts_(std::move(parts)),
        folder_(std::move(folder)),
        unfinished_(folder_ + ".unfinished"),
        named_(named),
        cancel_(std::move(cancel)) {}

  absl::StatusOr<CopiedState> Run();

 private:
  absl::Status CheckFolder() const;
  absl::Status CheckWanted() const;
  absl::StatusOr<CopiedState> CopyAll() const;
  // `published`: its checkpoint that inference sees; empty: none.
  absl::Status CopyOne(const JournalledPipeline& row, const std::string& published, DaemonJournal* copy,
                       CopiedState* state) const;
  absl::StatusOr<CopiedState::Copied> CopyPipeline(const JournalledPipeline& row, const std::string& published,
                                                   const ServedPipeline& pipeline) const;
  absl::StatusOr<CopiedState::Copied> CopyUnloaded(const JournalledPipeline& row, const std::string& published) const;
  // `stood`: those that stood before the journal is copied.
  absl::StatusOr<CopiedState::Copied> CopyJournal(const JournalledPipeline& row, const std::string& published,
                                                  const std::vector<CheckpointInfo>& stood,
                                                  PipelineJournal& journal) const;
  absl::StatusOr<int64_t> CopyCheckpoints(const JournalledPipeline& row, PipelineJournal& journal,
                                          const std::vector<CheckpointInfo>& stood, const std::string& published) const;
  // Those that calls of the journal restore.
  absl::StatusOr<std::vector<std::string>> Restored(PipelineJournal& journal) const;
  absl::Status CopyNamed(const CopiedState& state) const;
  absl::StatusOr<std::string> MakeCheckpoints(const std::string& pipeline) const;

  const Parts parts_;
  const std::string folder_;
  const std::string unfinished_;
  const bool named_;
  const std::shared_ptr<CancelToken> cancel_;
};

}  // namespace penstock
