#include "engine/serve/call_inputs.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/tensor/held_values.h"

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

absl::Status WrongType(const std::string& field, const std::string& problem, const Value& value) {
  return Error(absl::StatusCode::kInvalidArgument, "WRONG_TYPE", absl::StrCat(field, ": ", problem, value.TypeName()))
      .With("field", field)
      .With("value", value.TypeName());
}

}  // namespace

absl::StatusOr<CallInputs> CallInputs::Make(HandleStore* store, const std::string& caller,
                                            std::vector<InputSource> sources, const std::string& field) {
  CallInputs made;
  for (size_t i = 0; i < sources.size(); ++i) {
    Input input{
        .name = std::move(sources[i].name), .field = absl::StrCat(field, "[", i, "]"), .whole = sources[i].whole};
    if (auto* tensor = std::get_if<at::Tensor>(&sources[i].source)) {
      input.value = TensorValue(*tensor, input.whole);
    } else if (auto* value = std::get_if<Value>(&sources[i].source)) {
      input.value = std::move(*value);
    } else {
      HandleTensor& from = std::get<HandleTensor>(sources[i].source);
      PENSTOCK_RETURN_IF_ERROR(made.AddReference(store, caller, std::move(from), input.field, &input.from));
    }
    if (input.from.pin < 0) made.inline_bytes_ += BytesOf(input.value);
    for (HandleTensor& from : sources[i].inside) {
      PENSTOCK_RETURN_IF_ERROR(
          made.AddReference(store, caller, std::move(from), input.field, &input.inside.emplace_back()));
    }
    made.inputs_.push_back(std::move(input));
  }
  return made;
}

absl::Status CallInputs::AddReference(HandleStore* store, const std::string& caller, HandleTensor from,
                                      const std::string& field, Reference* reference) {
  absl::StatusOr<HandlePin> pin = store->Pin(caller, from.handle);
  if (!pin.ok()) return WithValue(pin.status(), "field", field + ".handle");
  if (pin->kind() != HandleKind::kValue) return WithValue(pin->values().status(), "field", field + ".handle");
  *reference = {.pin = AddPin(*std::move(pin)), .tensor_name = std::move(from.tensor)};
  return absl::OkStatus();
}

void CallInputs::Append(CallInputs more) {
  const int first = static_cast<int>(pins_.size());
  for (Input& input : more.inputs_) {
    if (input.from.pin >= 0) input.from.pin += first;
    for (Reference& reference : input.inside) reference.pin += first;
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

absl::StatusOr<HeldValues> CallInputs::HeldBy(const Reference& reference, const std::string& field) const {
  absl::StatusOr<HeldValues> held = pins_[reference.pin].values();
  if (!held.ok()) return WithValue(held.status(), "field", field + ".handle");
  return held;
}

absl::StatusOr<Value> CallInputs::TakeValue(const Input& input) const {
  if (input.from.pin >= 0) {
    PENSTOCK_ASSIGN_OR_RETURN(const HeldValues held, HeldBy(input.from, input.field));
    const std::string& name = input.from.tensor_name;
    if (const at::Tensor* tensor = held.FindTensor(name)) return TensorValue(*tensor, input.whole);
    const Value* value = held.FindValue(name);
    if (value == nullptr) return NoSuchTensor(input.field, pins_[input.from.pin].name(), name, held.size());
    if (input.whole) return WrongType(input.field + ".whole", "NoChunk only supported for tensors, found: ", *value);
    return *value;
  }
  Tensors inside;
  for (const Reference& reference : input.inside) {
    PENSTOCK_ASSIGN_OR_RETURN(const HeldValues held, HeldBy(reference, input.field));
    const at::Tensor* tensor = held.FindTensor(reference.tensor_name);
    if (tensor == nullptr) {
      if (const Value* value = held.FindValue(reference.tensor_name)) {
        return WrongType(input.field, "expected Tensor inside of the value, but got ", *value);
      }
      return NoSuchTensor(input.field, pins_[reference.pin].name(), reference.tensor_name, held.size());
    }
    inside.push_back(*tensor);
  }
  if (inside.empty()) return input.value;
  auto next = inside.begin();
  return input.value.MapTensors([&next](const at::Tensor& tensor) { return tensor.defined() ? tensor : *next++; });
}

absl::StatusOr<NamedValues> CallInputs::Take() const {
  NamedValues taken;
  for (const Input& input : inputs_) {
    PENSTOCK_ASSIGN_OR_RETURN(Value value, TakeValue(input));
    taken.push_back({input.name, std::move(value)});
  }
  return taken;
}

}  // namespace penstock
