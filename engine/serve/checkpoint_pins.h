#pragma once

// Which checkpoints of a pipeline must stay, and which are about to change.

#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace penstock {

// Keeps a checkpoint that is published, or about to be, from being deleted or replaced.
//
// Model:     two counts per identifier, of those who need it as it is and of those who remove or replace it; never both.
// Threads:   any method from any thread. What is returned may outlive this, and ends its hold when it goes.
// Fails:     FAILED_PRECONDITION / CHECKPOINT_IN_USE, naming the checkpoint.
class CheckpointPins {
 public:
  using Hold = std::shared_ptr<const void>;

  // The checkpoint stays as it is for as long as the hold lives. Whether it is there is not looked at.
  absl::StatusOr<Hold> Pin(const std::string& id) { return Take(id, /*change=*/false); }
  // It may be removed or replaced for as long as the hold lives.
  absl::StatusOr<Hold> Change(const std::string& id) { return Take(id, /*change=*/true); }
  bool IsPinned(const std::string& id) const;

 private:
  struct Counts {
    int pins = 0;
    int changes = 0;
  };
  struct Pinned {
    absl::Mutex mu;
    std::map<std::string, Counts> counts ABSL_GUARDED_BY(mu);  // of those that somebody holds
  };
  absl::StatusOr<Hold> Take(const std::string& id, bool change);

  const std::shared_ptr<Pinned> pinned_ = std::make_shared<Pinned>();
};

}  // namespace penstock
