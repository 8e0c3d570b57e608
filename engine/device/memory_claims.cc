#include "engine/device/memory_claims.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/device/device.h"

namespace penstock {
namespace {

constexpr size_t kNamedHolders = 3;

}  // namespace

int64_t DefaultMemoryLimit() { return MachineMemoryBytes() / 10 * 9; }

MemoryClaims::Claim::~Claim() {
  absl::MutexLock lock(&claims_->mu_);
  const auto own = claims_->claims_.find(this);
  if (own == claims_->claims_.end()) return;
  claims_->claimed_ -= own->second;
  claims_->claims_.erase(own);
  if (claims_->changed_) claims_->changed_(claims_->claimed_);
}

absl::Status MemoryClaims::Claim::Resize(int64_t bytes) { return claims_->Set(this, bytes); }

absl::StatusOr<std::unique_ptr<MemoryClaims::Claim>> MemoryClaims::Take(std::string holder, int64_t bytes) {
  std::unique_ptr<Claim> claim(new Claim(this, std::move(holder)));
  PENSTOCK_RETURN_IF_ERROR(Set(claim.get(), bytes));
  return claim;
}

absl::Status MemoryClaims::Set(const Claim* claim, int64_t bytes) {
  absl::MutexLock lock(&mu_);
  const auto own = claims_.find(claim);
  const int64_t before = own == claims_.end() ? 0 : own->second;
  if (bytes > before && bytes - before > limit_bytes_ - claimed_) return Refusal(*claim, bytes);
  claims_[claim] = bytes;
  claimed_ += bytes - before;
  if (changed_) changed_(claimed_);
  return absl::OkStatus();
}

absl::Status MemoryClaims::Refusal(const Claim& claim, int64_t bytes) const {
  std::vector<std::pair<int64_t, std::string>> others;
  int64_t taken = 0;
  for (const auto& [other, held] : claims_) {
    if (other == &claim) continue;
    taken += held;
    if (held > 0) others.emplace_back(-held, other->holder_);
  }
  std::sort(others.begin(), others.end());
  std::string holders;
  for (size_t i = 0; i < std::min(others.size(), kNamedHolders); ++i) {
    absl::StrAppend(&holders, holders.empty() ? "" : ", ", others[i].second, " ", -others[i].first);
  }
  return Error(absl::StatusCode::kResourceExhausted, "HOST_MEMORY",
               absl::StrCat(claim.holder_, " needs ", bytes, " bytes of the host's memory; of ", limit_bytes_,
                            " (--memory-limit) ", taken, " are claimed", holders.empty() ? "" : " (", holders,
                            holders.empty() ? "" : ")", " and ", limit_bytes_ - taken, " are left"))
      .With("limit", "memory-limit")
      .With("limit_value", absl::StrCat(limit_bytes_))
      .With("value", absl::StrCat(bytes));
}

int64_t MemoryClaims::claimed_bytes() const {
  absl::MutexLock lock(&mu_);
  return claimed_;
}

}  // namespace penstock
