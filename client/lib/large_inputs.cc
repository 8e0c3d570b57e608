#include "client/lib/large_inputs.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/wire/tensor_header.h"

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

// A tensor of the message, and what refers to it instead once it is moved; the tensor goes with the first use of `handle`.
struct Holder {
  const v1::Tensor* tensor;
  std::function<v1::HandleTensor*()> handle;
};

template <typename Message>
void AddHolder(Message* message, std::vector<Holder>* holders) {
  if (message->has_tensor()) holders->push_back({&message->tensor(), [message] { return message->mutable_handle(); }});
}

void AddHolders(v1::Value* value, std::vector<Holder>* holders) {
  AddHolder(value, holders);
  if (value->has_list()) {
    for (v1::Value& item : *value->mutable_list()->mutable_items()) AddHolders(&item, holders);
  }
  if (value->has_tuple()) {
    for (v1::Value& item : *value->mutable_tuple()->mutable_items()) AddHolders(&item, holders);
  }
  if (value->has_dict()) {
    for (v1::NamedValue& entry : *value->mutable_dict()->mutable_entries()) {
      AddHolders(entry.mutable_value(), holders);
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

absl::Status MoveToHandles(std::span<v1::Input* const> inputs,
                           const std::function<absl::StatusOr<std::string>(std::span<const HostTensor>)>& put,
                           std::vector<std::string>* handles) {
  std::vector<Holder> holders;
  for (v1::Input* input : inputs) {
    AddHolder(input, &holders);
    if (input->has_value()) AddHolders(input->mutable_value(), &holders);
  }
  constexpr auto kTogether = static_cast<size_t>(WireLimits().max_tensors);
  for (size_t first = 0; first < holders.size(); first += kTogether) {
    const size_t end = std::min(first + kTogether, holders.size());
    std::vector<HostTensor> tensors;
    for (size_t i = first; i < end; ++i) {
      PENSTOCK_ASSIGN_OR_RETURN(HostTensor tensor, HostTensor::FromMessage(*holders[i].tensor));
      // Names must differ within the handle; those of the inputs need not (an input and the target may share one).
      tensor.set_name(absl::StrCat("input_", i));
      tensors.push_back(std::move(tensor));
    }
    PENSTOCK_ASSIGN_OR_RETURN(std::string handle, put(tensors));
    handles->push_back(std::move(handle));
    for (size_t i = first; i < end; ++i) {
      v1::HandleTensor* reference = holders[i].handle();
      reference->set_handle(handles->back());
      reference->set_tensor(tensors[i - first].name());
    }
  }
  return absl::OkStatus();
}

}  // namespace penstock
