#include "engine/handles/handle_budget.h"

#include <string_view>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/error.h"

namespace penstock {
namespace {

absl::Status Refusal(std::string_view limit_name, int64_t limit, int64_t used) {
  return Error(
             absl::StatusCode::kResourceExhausted, "HANDLE_BUDGET",
             absl::StrCat("the budget of handles is full: ", absl::string_view(limit_name.data(), limit_name.size()),
                          " is ", limit, ", in use ", used, ", asked for 1; release handles, or let their leases end"))
      .With("limit", limit_name)
      .With("limit_value", std::to_string(limit))
      .With("used", std::to_string(used))
      .With("value", "1")
      .With("retry_after_ms", "1000");
}

}  // namespace

absl::Status HandleBudget::Charge(const std::string& owner) {
  const auto found = owners_.find(owner);
  const int64_t owned = found == owners_.end() ? 0 : found->second;
  if (owned >= limits_.handles_per_owner) return Refusal("handles_per_owner", limits_.handles_per_owner, owned);
  if (total_ >= limits_.handles) return Refusal("handles", limits_.handles, total_);
  ++owners_[owner];
  ++total_;
  return absl::OkStatus();
}

void HandleBudget::Refund(const std::string& owner) {
  const auto found = owners_.find(owner);
  PENSTOCK_CHECK(found != owners_.end());
  --total_;
  if (--found->second == 0) owners_.erase(found);
}

MemoryPool HandlePool(const HandleBudget::Limits& limits) {
  return {.classes = {MemoryClass::kHandles, MemoryClass::kUploads},
          .flag = "handle-bytes",
          .identity_flag = "handle-bytes-per-caller",
          .reason = "HANDLE_BUDGET",
          .limit_bytes = limits.bytes,
          .identity_bytes = limits.bytes_per_owner,
          .kept_bytes = limits.bytes};
}

}  // namespace penstock
