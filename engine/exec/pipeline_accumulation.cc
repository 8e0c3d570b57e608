// What is accumulated for the next step, copied out and put back.

#include <utility>

#include "engine/base/status_macros.h"
#include "engine/exec/pipeline_impl.h"

namespace penstock {

absl::StatusOr<NamedTensors> PipelineImpl::ExportGradients() const {
  PENSTOCK_RETURN_IF_ERROR(health());
  if (!accumulating_) return NotNow("ACCUMULATION_EMPTY", "no gradients were accumulated");
  return CopyToHost([&] { return ranks_.Gradients(ties_); });
}

absl::StatusOr<Accumulation> PipelineImpl::ExportAccumulation() const {
  PENSTOCK_RETURN_IF_ERROR(health());
  Accumulation accumulation{.open = accumulating_, .next_micro_batch = next_micro_batch_, .loss_finite = loss_finite_};
  PENSTOCK_ASSIGN_OR_RETURN(accumulation.tensors, CopyToHost([&] { return ranks_.Accumulated(); }));
  return accumulation;
}

int64_t PipelineImpl::AccumulationBytes() const {
  const absl::StatusOr<NamedTensors> views = ranks_.Accumulated();
  return views.ok() ? ByteSize(*views) : 0;
}

absl::Status PipelineImpl::ImportAccumulation(const Accumulation& accumulation) {
  if (absl::Status put = ranks_.SetAccumulated(accumulation.tensors); !put.ok()) {
    DiscardGradients();
    return put;
  }
  accumulating_ = accumulation.open;
  next_micro_batch_ = accumulation.next_micro_batch;
  loss_finite_ = accumulation.loss_finite;
  return absl::OkStatus();
}

}  // namespace penstock
