#include "engine/exec/in_place_guard.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/device/torch_status.h"

namespace penstock {
namespace {

[[noreturn]] void ThrowChanged(const std::string& layer, const std::string& detail) {
  ThrowStatus(Error(absl::StatusCode::kInvalidArgument, "WRONG_TYPE",
                    absl::StrCat("layer ", layer,
                                 " has changed an input of its stage in place; a recomputation would start from "
                                 "something else",
                                 detail))
                  .With("field", layer)
                  .With("value", "an in-place operation"));
}

}  // namespace

void InPlaceGuard::Note(const Batch& batch) {
  for (const at::Tensor& tensor : batch.AllTensors()) given_.emplace_back(tensor, tensor._version());
}

void InPlaceGuard::CheckUnchanged(const std::string& layer) const {
  for (const auto& [tensor, version] : given_) {
    if (static_cast<int64_t>(tensor._version()) != version) ThrowChanged(layer, "");
  }
}

void InPlaceGuard::ThrowFailure(const std::string& layer, const absl::Status& status) const {
  const bool learns =
      std::any_of(given_.begin(), given_.end(), [](const auto& one) { return one.first.requires_grad(); });
  if (learns && ReasonOf(status) == "WRONG_TYPE" && absl::StrContains(status.message(), "in-place operation")) {
    ThrowChanged(layer, absl::StrCat(": ", std::string(status.message())));
  }
  const absl::Status named = WithPrefix(status, absl::StrCat("layer ", layer, ": "));
  if (ReasonOf(status) == "LAYER_FAILED") ThrowStatus(WithValue(named, "field", layer));
  ThrowStatus(absl::IsInternal(status) ? named : status);
}

}  // namespace penstock
