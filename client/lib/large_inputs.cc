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

// The tensors of the message inside of a value.
void AddTensorHolders(v1::Value* value, std::vector<v1::Value*>* holders) {
  if (value->has_tensor()) holders->push_back(value);
  if (value->has_list()) {
    for (v1::Value& item : *value->mutable_list()->mutable_items()) AddTensorHolders(&item, holders);
  }
  if (value->has_tuple()) {
    for (v1::Value& item : *value->mutable_tuple()->mutable_items()) AddTensorHolders(&item, holders);
  }
  if (value->has_dict()) {
    for (v1::NamedValue& entry : *value->mutable_dict()->mutable_entries()) {
      AddTensorHolders(entry.mutable_value(), holders);
    }
  }
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
  std::vector<HostTensor> tensors;
  std::vector<std::function<v1::HandleTensor*()>> moved;
  const auto move = [&](auto* holder) -> absl::Status {
    PENSTOCK_ASSIGN_OR_RETURN(HostTensor tensor, HostTensor::FromMessage(holder->tensor()));
    // Names must differ within the handle; those of the inputs need not (an input and the target may share one).
    tensor.set_name(absl::StrCat("input_", tensors.size()));
    tensors.push_back(std::move(tensor));
    moved.emplace_back([holder] { return holder->mutable_handle(); });
    return absl::OkStatus();
  };
  for (v1::Input* input : inputs) {
    if (input->has_tensor()) PENSTOCK_RETURN_IF_ERROR(move(input));
    if (!input->has_value()) continue;
    std::vector<v1::Value*> holders;
    AddTensorHolders(input->mutable_value(), &holders);
    for (v1::Value* holder : holders) PENSTOCK_RETURN_IF_ERROR(move(holder));
  }
  if (moved.empty()) return std::string();
  PENSTOCK_ASSIGN_OR_RETURN(std::string handle, put(tensors));
  for (size_t i = 0; i < moved.size(); ++i) {
    v1::HandleTensor* reference = moved[i]();
    reference->set_handle(handle);
    reference->set_tensor(tensors[i].name());
  }
  return handle;
}

}  // namespace penstock
