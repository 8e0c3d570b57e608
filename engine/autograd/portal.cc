#include "engine/autograd/portal.h"

#include "engine/base/error.h"
#include "engine/device/torch_status.h"

namespace penstock {

const Batch& Portal::Look() const {
  if (life_ == 0) ThrowStatus(Error(absl::StatusCode::kInternal, "BUG", "tensor in portal has been removed"));
  return values_;
}

Batch Portal::Use() {
  (void)Look();
  if (--life_ > 0) return values_;
  return std::exchange(values_, Batch());
}

void Portal::PutGradient(Batch gradient) {
  gradient_ = std::move(gradient);
  has_gradient_ = true;
}

Batch Portal::TakeGradient() {
  if (!std::exchange(has_gradient_, false)) {
    ThrowStatus(Error(absl::StatusCode::kInternal, "BUG", "grad in portal has been removed or never set"));
  }
  return std::exchange(gradient_, Batch());
}

}  // namespace penstock
