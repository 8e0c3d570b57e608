#include "engine/serve/call_inputs.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/tensor/held_values.h"

namespace penstock {
namespace {

// `field` is that of the handle.
absl::Status NoSuchTensor(const std::string& field, const HandleName& handle, const std::string& tensor, size_t count) {
  const std::string problem = tensor.empty() ? absl::StrCat("must name one of the handle's ", count, " tensors")
                                             : std::string("names a tensor that the handle does not hold");
  return Error(absl::StatusCode::kInvalidArgument, "TENSOR_SIGNATURE",
               absl::StrCat(field, ".tensor ", problem, ", got \"", Shortened(tensor), "\""))
      .With("field", field + ".tensor")
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
  std::map<HandleName, int> pinned;
  for (size_t i = 0; i < sources.size(); ++i) {
    Input input{
        .name = std::move(sources[i].name), .field = absl::StrCat(field, "[", i, "]"), .whole = sources[i].whole};
    if (auto* tensor = std::get_if<at::Tensor>(&sources[i].source)) {
      input.value = TensorValue(*tensor, input.whole);
    } else if (auto* value = std::get_if<Value>(&sources[i].source)) {
      input.value = std::move(*value);
    } else {
      HandleTensor& from = std::get<HandleTensor>(sources[i].source);
      PENSTOCK_ASSIGN_OR_RETURN(input.from, made.Refer(store, caller, std::move(from), input.field, &pinned));
    }
    if (input.from.pin < 0) made.inline_bytes_ += BytesOf(input.value);
    for (HandleTensor& from : sources[i].inside) {
      PENSTOCK_ASSIGN_OR_RETURN(Reference inside, made.Refer(store, caller, std::move(from), input.field, &pinned));
      input.inside.push_back(std::move(inside));
    }
    made.inputs_.push_back(std::move(input));
  }
  return made;
}

absl::StatusOr<CallInputs::Reference> CallInputs::Refer(HandleStore* store, const std::string& caller,
                                                        HandleTensor from, const std::string& input,
                                                        std::map<HandleName, int>* pinned) {
  Reference reference{.tensor_name = std::move(from.tensor),
                      .field = from.field.empty() ? input + ".handle" : std::move(from.field)};
  auto found = pinned->find(from.handle);
  if (found == pinned->end()) {
    absl::StatusOr<HandlePin> pin = store->Pin(caller, from.handle);
    if (!pin.ok()) return WithValue(pin.status(), "field", reference.field);
    if (pin->kind() != HandleKind::kValue) return WithValue(pin->values().status(), "field", reference.field);
    found = pinned->emplace(std::move(from.handle), AddPin(*std::move(pin))).first;
  }
  reference.pin = found->second;
  return reference;
}

void CallInputs::Append(CallInputs more) {
  const int first = pin_count();
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
  return pin_count() - 1;
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

absl::StatusOr<std::shared_ptr<const HeldValues>> CallInputs::HeldBy(const Reference& reference) const {
  absl::StatusOr<std::shared_ptr<const HeldValues>> held = pins_[reference.pin].values();
  if (!held.ok()) return WithValue(held.status(), "field", reference.field);
  return held;
}

absl::StatusOr<at::Tensor> CallInputs::TakeTensor(const Reference& reference) const {
  PENSTOCK_ASSIGN_OR_RETURN(const std::shared_ptr<const HeldValues> held, HeldBy(reference));
  const std::string& name = reference.tensor_name;
  if (const at::Tensor* tensor = held->FindTensor(name)) return *tensor;
  if (const Value* value = held->FindValue(name)) {
    return WrongType(reference.field, "expected Tensor inside of the value, but got ", *value);
  }
  return NoSuchTensor(reference.field, pins_[reference.pin].name(), name, held->size());
}

absl::StatusOr<Value> CallInputs::TakeValue(const Input& input) const {
  if (input.from.pin >= 0) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::shared_ptr<const HeldValues> held, HeldBy(input.from));
    const std::string& name = input.from.tensor_name;
    if (const at::Tensor* tensor = held->FindTensor(name)) return TensorValue(*tensor, input.whole);
    const Value* value = held->FindValue(name);
    if (value == nullptr) return NoSuchTensor(input.from.field, pins_[input.from.pin].name(), name, held->size());
    if (input.whole) return WrongType(input.field + ".whole", "NoChunk only supported for tensors, found: ", *value);
    return *value;
  }
  Tensors inside;
  for (const Reference& reference : input.inside) {
    PENSTOCK_ASSIGN_OR_RETURN(at::Tensor tensor, TakeTensor(reference));
    inside.push_back(std::move(tensor));
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
