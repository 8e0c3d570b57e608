#include "engine/serve/checkpoint_pins.h"

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"

namespace penstock {

absl::StatusOr<CheckpointPins::Hold> CheckpointPins::Take(const std::string& id, bool change) {
  // The hold comes first: without memory for it nothing is counted.
  struct Held {
    ~Held() {
      absl::MutexLock lock(&pinned->mu);
      if (!counted) return;
      const auto found = pinned->counts.find(id);
      --(change ? found->second.changes : found->second.pins);
      if (found->second.pins == 0 && found->second.changes == 0) pinned->counts.erase(found);
    }
    const std::shared_ptr<Pinned> pinned;
    const std::string id;
    const bool change;
    bool counted = false;
  };
  const std::shared_ptr<Held> held(new Held{pinned_, id, change});
  absl::MutexLock lock(&pinned_->mu);
  const auto found = pinned_->counts.find(id);
  const bool refused = found != pinned_->counts.end() && (change ? found->second.pins : found->second.changes) > 0;
  if (refused) {
    return Error(absl::StatusCode::kFailedPrecondition, "CHECKPOINT_IN_USE",
                 change
                     ? absl::StrCat("checkpoint ", id, " is published: publish another one, or the live weights, first")
                     : absl::StrCat("checkpoint ", id, " is being deleted or replaced"))
        .With("checkpoint", id);
  }
  Counts& counts = pinned_->counts[id];
  ++(change ? counts.changes : counts.pins);
  held->counted = true;
  return Hold(held);
}

bool CheckpointPins::IsPinned(const std::string& id) const {
  absl::MutexLock lock(&pinned_->mu);
  const auto found = pinned_->counts.find(id);
  return found != pinned_->counts.end() && found->second.pins > 0;
}

}  // namespace penstock
