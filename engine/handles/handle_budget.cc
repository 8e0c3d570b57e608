#include "engine/handles/handle_budget.h"

#include <string_view>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

absl::Status Refusal(std::string_view limit_name, int64_t limit, int64_t used, int64_t asked) {
  return Error(absl::StatusCode::kResourceExhausted, "HANDLE_BUDGET",
               absl::StrCat("the budget of handles is full: ", absl::string_view(limit_name.data(), limit_name.size()),
                            " is ", limit, ", in use ", used, ", asked for ", asked,
                            "; release handles, or let their leases end"))
      .With("limit", limit_name)
      .With("limit_value", std::to_string(limit))
      .With("used", std::to_string(used))
      .With("value", std::to_string(asked))
      .With("retry_after_ms", "1000");
}

}  // namespace

absl::Status HandleBudget::Check(const std::string& owner, int64_t handles, int64_t bytes) const {
  PENSTOCK_CHECK(handles >= 0 && bytes >= 0);
  const Use owned = OfOwner(owner);
  if (handles > limits_.handles_per_owner - owned.handles) {
    return Refusal("handles_per_owner", limits_.handles_per_owner, owned.handles, handles);
  }
  if (handles > limits_.handles - total_.handles) {
    return Refusal("handles", limits_.handles, total_.handles, handles);
  }
  if (bytes > limits_.bytes_per_owner - owned.bytes) {
    return Refusal("bytes_per_owner", limits_.bytes_per_owner, owned.bytes, bytes);
  }
  if (bytes > limits_.bytes - total_.bytes) {
    return Refusal("bytes", limits_.bytes, total_.bytes, bytes);
  }
  return absl::OkStatus();
}

absl::Status HandleBudget::Charge(const std::string& owner, int64_t handles, int64_t bytes) {
  PENSTOCK_RETURN_IF_ERROR(Check(owner, handles, bytes));
  Use& owned = owners_[owner];
  owned.handles += handles;
  owned.bytes += bytes;
  total_.handles += handles;
  total_.bytes += bytes;
  return absl::OkStatus();
}

void HandleBudget::Refund(const std::string& owner, int64_t handles, int64_t bytes) {
  auto found = owners_.find(owner);
  if (found == owners_.end()) {
    PENSTOCK_CHECK(handles == 0 && bytes == 0);
    return;
  }
  Use& owned = found->second;
  PENSTOCK_CHECK(owned.handles >= handles && owned.bytes >= bytes);
  owned.handles -= handles;
  owned.bytes -= bytes;
  total_.handles -= handles;
  total_.bytes -= bytes;
  if (owned.handles == 0 && owned.bytes == 0) owners_.erase(found);
}

HandleBudget::Use HandleBudget::OfOwner(const std::string& owner) const {
  auto found = owners_.find(owner);
  return found == owners_.end() ? Use{} : found->second;
}

}  // namespace penstock
