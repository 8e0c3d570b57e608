#pragma once

// The content of checkpoints, for those who want it without a pipeline.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/base/job_thread.h"
#include "engine/checkpoint/checkpoint_file.h"
#include "engine/serve/calls.h"

namespace penstock {

class CancelToken;
class MemoryLedger;

// Loads checkpoints and hands out their tensors.
//
// Owns:      the thread `ps-checkpoint-reads`, which loads one after the other. MemoryLedger, which may be null,
//            outlives all that was read.
// Threads:   Read() from any thread. Callbacks come on the thread of the reader, and must not call Close().
// Lifecycle: Close() does what was asked before.
// Fails:     as CheckpointFolder::Load; PARAMETER_NOT_FOUND; HOST_MEMORY: twice a checkpoint's size is reserved while
//            it is loaded, and then what is left of it, until the last reader lets go; CANCELLED / WORK_CANCELLED.
class CheckpointReader {
 public:
  explicit CheckpointReader(MemoryLedger* memory) : memory_(memory) {}

  // Of a read, the content is with or without the optimizer's state; gradients are in no checkpoint.
  void Read(std::shared_ptr<CheckpointFolder> folder, std::string id, std::string caller, ReadCall read,
            std::shared_ptr<const CancelToken> cancel);
  void Close() { jobs_.Close(); }

 private:
  absl::StatusOr<std::shared_ptr<const ParameterSnapshot>> Load(CheckpointFolder& folder, const std::string& id,
                                                                const std::string& caller, const ReadCall& read) const;

  MemoryLedger* const memory_;
  JobThread jobs_{"ps-checkpoint-reads"};
};

}  // namespace penstock
