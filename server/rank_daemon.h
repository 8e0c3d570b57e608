#pragma once

// A daemon that does not lead: it lends its devices to the group, and serves nobody.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/base/clock.h"
#include "server/daemon_options.h"

namespace penstock {

// Joins the leader, again and again, and holds the stages that pipelines have here.
//
// Model:     devices, the way to the leader, stages, probes. It keeps nothing on disk: what it holds, the leader can build
//            again.
// Owns:      all of them; the Clock outlives it.
// Threads:   any method from any thread.
// Lifecycle: Create() returns when it looks for its leader, who may come later. The destructor leaves the group.
// Fails:     Create(): addresses, devices and credentials, as Daemon::Create.
class RankDaemon {
 public:
  static absl::StatusOr<std::unique_ptr<RankDaemon>> Create(const DaemonOptions& options, Clock* clock);
  ~RankDaemon();

  bool live() const;
  // Whether the leader still works, or saves, with what this rank lends: `asked_nanos` ago it was asked to stop. A leader
  // that is stopped at the same time has a moment to say so.
  bool needed(int64_t asked_nanos) const;

 private:
  class Parts;
  explicit RankDaemon(std::unique_ptr<Parts> parts);
  const std::unique_ptr<Parts> parts_;
};

}  // namespace penstock
