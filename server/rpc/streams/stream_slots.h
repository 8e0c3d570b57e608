#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error.h"

namespace penstock {

// Bounds how many streams of one kind are open at a time.
//
// Threads:   any method from any thread; a slot is free again when its last share is dropped, which may be after the
//            end of this.
// Fails:     RESOURCE_EXHAUSTED / STREAM_LIMIT naming the kind and the limit.
class StreamSlots {
 public:
  using Slot = std::shared_ptr<void>;

  // `kind` names them in errors: "trace_exports".
  StreamSlots(std::string kind, int most) : kind_(std::move(kind)), most_(most) {}

  absl::StatusOr<Slot> Take() {
    const bool room = ++*open_ <= most_;
    Slot slot(open_.get(),
              [open = open_](void*) { --*open; });  // not null, so that a caller can test whether it has a slot
    if (room) return slot;
    return Error(absl::StatusCode::kResourceExhausted, "STREAM_LIMIT",
                 absl::StrCat("at most ", most_, " ", kind_, " may be open at once"))
        .With("limit", kind_)
        .With("limit_value", absl::StrCat(most_))
        .With("retry_after_ms", "1000");
  }

 private:
  const std::string kind_;
  const int most_;
  const std::shared_ptr<std::atomic<int>> open_ = std::make_shared<std::atomic<int>>(0);
};

}  // namespace penstock
