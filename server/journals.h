#pragma once

// What makes the daemon's pipelines outlive its process, put together.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/journal/daemon_journal.h"
#include "engine/serve/pipeline_builder.h"
#include "server/daemon_options.h"
#include "server/rpc/convert/call_record_convert.h"

namespace penstock {

class CheckpointStore;
class Clock;

// The journals of the state folder.
//
//   STATE/journal/daemon.db              which pipelines there are
//   STATE/journal/LIFE/journal.db …      the calls of one
//
// Owns:      the daemon's journal. CheckpointStore and Clock must outlive it, and it the pipelines.
class Journals {
 public:
  // Fails:     as DaemonJournal::Open().
  static absl::StatusOr<std::unique_ptr<Journals>> Open(const DaemonOptions& options,
                                                        const CheckpointStore* checkpoints, Clock* clock);

  DaemonJournal* daemon() { return daemon_.get(); }
  JournalSetup* setup() { return &setup_; }
  // Of this build on this machine: what a result can depend on by a rounding.
  static std::string Fingerprint();

 private:
  explicit Journals(const CheckpointStore* checkpoints) : records_(checkpoints) {}

  const WireCallRecords records_;
  std::unique_ptr<DaemonJournal> daemon_;
  JournalSetup setup_;
};

}  // namespace penstock
