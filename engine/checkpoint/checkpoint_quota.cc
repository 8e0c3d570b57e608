#include "engine/checkpoint/checkpoint_quota.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/caller_share.h"
#include "engine/base/error.h"

namespace penstock {
namespace {

constexpr size_t kNamedPipelines = 3;

}  // namespace

void CheckpointQuota::Set(const std::string& pipeline, int64_t bytes) {
  absl::MutexLock lock(&mu_);
  held_[pipeline] = bytes;
}

void CheckpointQuota::SetOwner(const std::string& pipeline, std::string owner) {
  absl::MutexLock lock(&mu_);
  owners_[pipeline] = std::move(owner);
}

absl::Status CheckpointQuota::CheckRoom(const std::string& pipeline, int64_t bytes) const {
  absl::MutexLock lock(&mu_);
  return Room(pipeline, bytes);
}

absl::Status CheckpointQuota::Take(const std::string& pipeline, int64_t bytes, bool beyond) {
  absl::MutexLock lock(&mu_);
  if (absl::Status room = Room(pipeline, bytes); !room.ok() && !beyond) return room;
  held_[pipeline] += bytes;
  return absl::OkStatus();
}

absl::Status CheckpointQuota::Share(const std::string& owner, int64_t bytes) const {
  int64_t own = 0;
  int64_t others = 0;
  for (const auto& [name, held] : held_) {
    const auto owned = owners_.find(name);
    if (owned != owners_.end()) (owned->second == owner ? own : others) += held;
  }
  const int64_t share = CallerShare(limit_bytes_, /*others=*/true);
  if (others == 0 || bytes <= share - own) return absl::OkStatus();
  return Error(absl::StatusCode::kResourceExhausted, "CALLER_QUOTA",
               absl::StrCat("the checkpoints of one caller's pipelines may have a quarter of --checkpoint-bytes, ",
                            share, ", while another has some, and have ", own, ": delete some, got ", bytes, " more"))
      .With("limit", "checkpoint-bytes")
      .With("limit_value", std::to_string(share))
      .With("value", std::to_string(bytes));
}

absl::Status CheckpointQuota::Room(const std::string& pipeline, int64_t bytes) const {
  if (const auto owned = owners_.find(pipeline); owned != owners_.end()) {
    if (absl::Status share = Share(owned->second, bytes); !share.ok()) return share;
  }
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
