#pragma once

// The journals of a state folder, opened without a daemon.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/state_lock.h"
#include "engine/journal/daemon_journal.h"
#include "engine/journal/pipeline_journal.h"

namespace penstock {

class Clock;

// Opens journals while no daemon runs.
//
// Owns:      the lock of the state folder, so that no daemon starts meanwhile. The Clock must outlive it.
// Threads:   one at a time.
// Fails:     FIELD_INVALID for a folder that has no journals; STATE_IN_USE while a daemon runs; PIPELINE_NOT_FOUND; as
//            DaemonJournal::Open() and PipelineJournal::Open(), which verify what they open.
class StateJournals {
 public:
  static absl::StatusOr<StateJournals> Open(const std::string& state_dir, Clock* clock);

  const std::vector<JournalledPipeline>& pipelines() const { return pipelines_; }
  absl::StatusOr<std::unique_ptr<PipelineJournal>> OpenPipeline(const std::string& name) const;

 private:
  StateJournals(std::unique_ptr<StateLock> lock, std::string folder, Clock* clock)
      : lock_(std::move(lock)), folder_(std::move(folder)), clock_(clock) {}

  std::unique_ptr<StateLock> lock_;
  std::string folder_;
  Clock* clock_;
  std::vector<JournalledPipeline> pipelines_;
};

}  // namespace penstock
