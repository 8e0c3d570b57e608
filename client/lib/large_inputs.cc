#include "client/lib/large_inputs.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

template <typename Inputs>
std::vector<v1::Input*> Pointers(Inputs* inputs) {
  return {inputs->pointer_begin(), inputs->pointer_end()};
}

template <typename Request>
std::vector<v1::Input*> WithLoss(Request& request) {
  std::vector<v1::Input*> inputs = Pointers(request.mutable_inputs());
  if (request.has_target()) inputs.push_back(request.mutable_target());
  if (request.has_weights()) inputs.push_back(request.mutable_weights());
  return inputs;
}

}  // namespace

std::vector<v1::Input*> InputsOf(v1::InferRequest& request) { return Pointers(request.mutable_inputs()); }
std::vector<v1::Input*> InputsOf(v1::EvaluateRequest& request) { return WithLoss(request); }
std::vector<v1::Input*> InputsOf(v1::ForwardRequest& request) { return Pointers(request.mutable_inputs()); }
std::vector<v1::Input*> InputsOf(v1::BackwardRequest& request) { return Pointers(request.mutable_gradients()); }
std::vector<v1::Input*> InputsOf(v1::ForwardBackwardRequest& request) { return WithLoss(request); }
std::vector<v1::Input*> InputsOf(v1::OptimizerStepRequest&) { return {}; }
std::vector<v1::Input*> InputsOf(v1::TrainStepRequest& request) { return WithLoss(request); }

absl::StatusOr<std::string> MoveToHandle(
    std::span<v1::Input* const> inputs,
    const std::function<absl::StatusOr<std::string>(std::span<const HostTensor>)>& put) {
  std::vector<v1::Input*> moved;
  std::vector<HostTensor> tensors;
  for (v1::Input* input : inputs) {
    if (!input->has_tensor()) continue;
    PENSTOCK_ASSIGN_OR_RETURN(HostTensor tensor, HostTensor::FromMessage(input->tensor()));
    // Names must differ within the handle; those of the inputs need not (an input and the target may share one).
    tensor.set_name(absl::StrCat("input_", tensors.size()));
    tensors.push_back(std::move(tensor));
    moved.push_back(input);
  }
  if (moved.empty()) return std::string();
  PENSTOCK_ASSIGN_OR_RETURN(std::string handle, put(tensors));
  for (size_t i = 0; i < moved.size(); ++i) {
    moved[i]->mutable_handle()->set_handle(handle);
    moved[i]->mutable_handle()->set_tensor(tensors[i].name());
  }
  return handle;
}

}  // namespace penstock
