#pragma once

// Where those who want the daemon to end, or to go on, meet it.

#include <functional>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/drain_signal.h"

namespace penstock {

// The drain that was asked for: by a signal, or by a call.
//
// Model:     At most one at a time; whoever asks for another joins it. After an abort there is none, once it has ended.
// Owns:      a share of the DrainSignal. It outlives the daemon.
// Threads:   Any. `wake` is called on that of the call and must not block.
class DrainControl {
 public:
  // `wake`: tells who runs the daemon that a drain was asked for.
  explicit DrainControl(std::function<void()> wake) : wake_(std::move(wake)) {}

  struct Order {
    bool for_upgrade = false;
    bool final = false;  // nobody may abort it
  };
  // Begins a drain, or joins the one there is.
  // Fails:     FAILED_PRECONDITION / DRAIN_FINAL if that is saving and not for an upgrade; UNAVAILABLE / DRAINING while an
  //            abort is under way.
  absl::Status Ask(Order order) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends it, if there is one. Fails: FAILED_PRECONDITION / DRAIN_FINAL.
  absl::Status Abort() ABSL_LOCKS_EXCLUDED(mu_);

  struct Asked {
    std::shared_ptr<DrainSignal> signal;
    absl::Time since;
  };
  // Nothing: nobody has asked, or it was aborted.
  std::optional<Asked> asked() const ABSL_LOCKS_EXCLUDED(mu_);
  // The abort is through: the daemon serves again.
  void Forget() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const std::function<void()> wake_;

  mutable absl::Mutex mu_;
  std::optional<Asked> asked_ ABSL_GUARDED_BY(mu_);
};

}  // namespace penstock
