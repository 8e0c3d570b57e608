#include "engine/serve/call_inputs.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

absl::Status NoSuchTensor(const std::string& field, const HandleName& handle, const std::string& tensor, size_t count) {
  const std::string problem = tensor.empty() ? absl::StrCat("must name one of the handle's ", count, " tensors")
                                             : std::string("names a tensor that the handle does not hold");
  return Error(absl::StatusCode::kInvalidArgument, "TENSOR_SIGNATURE",
               absl::StrCat(field, ".handle.tensor ", problem, ", got \"", Shortened(tensor), "\""))
      .With("field", field + ".handle.tensor")
      .With("value", Shortened(tensor))
      .With("handle", ToString(handle));
}

Value TensorValue(const at::Tensor& tensor, bool whole) { return whole ? Value(WholeTensor{tensor}) : Value(tensor); }

}  // namespace

absl::StatusOr<CallInputs> CallInputs::Make(HandleStore* store, const std::string& caller,
                                            std::vector<InputSource> sources, const std::string& field) {
  CallInputs made;
  for (size_t i = 0; i < sources.size(); ++i) {
    Input input{
        .name = std::move(sources[i].name), .field = absl::StrCat(field, "[", i, "]"), .whole = sources[i].whole};
    if (auto* tensor = std::get_if<at::Tensor>(&sources[i].source)) {
      made.inline_bytes_ += ByteSize(NamedTensors{{input.name, *tensor}});
      input.value = TensorValue(*tensor, input.whole);
    } else if (auto* value = std::get_if<Value>(&sources[i].source)) {
      input.value = std::move(*value);
    } else {
      HandleTensor& from = std::get<HandleTensor>(sources[i].source);
      absl::StatusOr<HandlePin> pin = store->Pin(caller, from.handle);
      if (!pin.ok()) return WithValue(pin.status(), "field", input.field + ".handle");
      if (pin->kind() != HandleKind::kValue) {
        return WithValue(pin->tensors().status(), "field", input.field + ".handle");
      }
      input.tensor_name = std::move(from.tensor);
      input.pin = static_cast<int>(made.pins_.size());
      made.pins_.push_back(*std::move(pin));
    }
    made.inputs_.push_back(std::move(input));
  }
  return made;
}

void CallInputs::Append(CallInputs more) {
  for (Input& input : more.inputs_) {
    if (input.pin >= 0) input.pin += static_cast<int>(pins_.size());
    inputs_.push_back(std::move(input));
  }
  for (HandlePin& pin : more.pins_) pins_.push_back(std::move(pin));
  inline_bytes_ += more.inline_bytes_;
}

int CallInputs::AddPin(HandlePin pin) {
  pins_.push_back(std::move(pin));
  return static_cast<int>(pins_.size()) - 1;
}

bool CallInputs::ready() const {
  for (const HandlePin& pin : pins_) {
    if (!pin.settled()) return false;
  }
  return true;
}

void CallInputs::OnReady(HandleStore* store, std::function<void()> callback) const {
  store->OnContents(pins_, std::move(callback));
}

absl::StatusOr<NamedValues> CallInputs::Take() const {
  NamedValues taken;
  for (const Input& input : inputs_) {
    if (input.pin < 0) {
      taken.push_back({input.name, input.value});
      continue;
    }
    const HandlePin& pin = pins_[input.pin];
    absl::StatusOr<NamedTensors> tensors = pin.tensors();
    if (!tensors.ok()) return WithValue(tensors.status(), "field", input.field + ".handle");
    const NamedTensor* found = nullptr;
    for (const NamedTensor& tensor : *tensors) {
      if (input.tensor_name.empty() ? tensors->size() == 1 : tensor.name == input.tensor_name) found = &tensor;
    }
    if (found == nullptr) return NoSuchTensor(input.field, pin.name(), input.tensor_name, tensors->size());
    taken.push_back({input.name, TensorValue(found->tensor, input.whole)});
  }
  return taken;
}

}  // namespace penstock
