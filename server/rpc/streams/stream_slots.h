#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/caller_share.h"
#include "engine/base/error.h"

namespace penstock {

// Bounds how many streams of one kind are open at a time, of all and of each who opens them.
//
// Threads:   any method from any thread; a slot is free again when its last share is dropped, which may be after the
//            end of this.
// Fails:     RESOURCE_EXHAUSTED / STREAM_LIMIT naming the kind and the limit; CALLER_QUOTA beyond the share (CallerShare)
//            of `owner`.
class StreamSlots {
 public:
  using Slot = std::shared_ptr<void>;  // not null, so that a caller can test whether it has a slot

  // `kind` names them in errors: "trace_exports".
  StreamSlots(std::string kind, int most) : kind_(std::move(kind)), most_(most) {}

  absl::StatusOr<Slot> Take(const std::string& owner) {
    auto give_back = [open = open_, owner = std::string(owner)](void*) { open->Leave(owner); };
    int64_t limit = most_;
    bool full;
    {
      absl::MutexLock lock(&open_->mu);
      full = open_->all >= most_;
      int64_t& own = open_->of[owner];
      if (!full) limit = CallerShare(most_, /*others=*/own < open_->all);
      // The first of each needs room only.
      if (!full && (own == 0 || own < limit)) {
        ++own;
        ++open_->all;
        limit = 0;
      } else if (own == 0) {
        open_->of.erase(owner);
      }
    }
    if (limit == 0) return Slot(static_cast<void*>(open_.get()), std::move(give_back));  // gives it back if it throws
    return Error(absl::StatusCode::kResourceExhausted, full ? "STREAM_LIMIT" : "CALLER_QUOTA",
                 absl::StrCat("at most ", limit, " ", kind_, " may be open at once", full ? "" : " for one caller"))
        .With("limit", kind_)
        .With("limit_value", absl::StrCat(limit))
        .With("retry_after_ms", "1000");
  }

 private:
  struct Open {
    void Leave(const std::string& owner) ABSL_LOCKS_EXCLUDED(mu) {
      absl::MutexLock lock(&mu);
      --all;
      const auto own = of.find(owner);
      if (--own->second == 0) of.erase(own);
    }

    absl::Mutex mu;
    int64_t all ABSL_GUARDED_BY(mu) = 0;
    std::map<std::string, int64_t> of ABSL_GUARDED_BY(mu);  // by owner; those that have any
  };

  const std::string kind_;
  const int64_t most_;
  const std::shared_ptr<Open> open_ = std::make_shared<Open>();
};

}  // namespace penstock
