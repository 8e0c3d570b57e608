#include "engine/checkpoint/checkpoint_quota.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"

namespace penstock {
namespace {

constexpr size_t kNamedPipelines = 3;

}  // namespace

void CheckpointQuota::Set(const std::string& pipeline, int64_t bytes) {
  absl::MutexLock lock(&mu_);
  held_[pipeline] = bytes;
}

absl::Status CheckpointQuota::CheckRoom(int64_t bytes) const {
  absl::MutexLock lock(&mu_);
  return Room(bytes);
}

absl::Status CheckpointQuota::Take(const std::string& pipeline, int64_t bytes, bool beyond) {
  absl::MutexLock lock(&mu_);
  if (absl::Status room = Room(bytes); !room.ok() && !beyond) return room;
  held_[pipeline] += bytes;
  return absl::OkStatus();
}

absl::Status CheckpointQuota::Room(int64_t bytes) const {
  int64_t total = 0;
  for (const auto& [name, held] : held_) total += held;
  if (total <= limit_bytes_ && bytes <= limit_bytes_ - total) return absl::OkStatus();
  std::vector<std::pair<int64_t, std::string>> most;
  for (const auto& [name, held] : held_) {
    if (held > 0) most.emplace_back(-held, name);
  }
  std::sort(most.begin(), most.end());
  std::string holders;
  for (size_t i = 0; i < std::min(most.size(), kNamedPipelines); ++i) {
    absl::StrAppend(&holders, holders.empty() ? "" : ", ", most[i].second, " ", -most[i].first);
  }
  return Error(absl::StatusCode::kResourceExhausted, "STORAGE_FULL",
               absl::StrCat("all checkpoints together may have --checkpoint-bytes, ", limit_bytes_, ", and have ",
                            total, holders.empty() ? "" : absl::StrCat(" (", holders, ")"), ": delete some, got ",
                            bytes, " more"))
      .With("limit", "checkpoint-bytes")
      .With("limit_value", std::to_string(limit_bytes_))
      .With("value", std::to_string(bytes));
}

void CheckpointQuota::Return(const std::string& pipeline, int64_t bytes) {
  absl::MutexLock lock(&mu_);
  held_[pipeline] -= bytes;
}

}  // namespace penstock
