#include "engine/tensor/value.h"

#include <algorithm>

namespace penstock {

const at::Tensor* Value::whole() const {
  const auto* whole = std::get_if<WholeTensor>(&data_);
  return whole == nullptr ? nullptr : &whole->tensor;
}

const std::string* Value::text() const {
  const auto* shared = std::get_if<std::shared_ptr<const std::string>>(&data_);
  return shared == nullptr ? nullptr : shared->get();
}

const ValueList* Value::list() const {
  const auto* shared = std::get_if<Shared<ListTag>>(&data_);
  return shared == nullptr ? nullptr : shared->values.get();
}

const ValueList* Value::tuple() const {
  const auto* shared = std::get_if<Shared<TupleTag>>(&data_);
  return shared == nullptr ? nullptr : shared->values.get();
}

const ValueDict* Value::dict() const {
  const auto* shared = std::get_if<std::shared_ptr<const ValueDict>>(&data_);
  return shared == nullptr ? nullptr : shared->get();
}

const at::Tensor* Value::any_tensor() const { return is_tensor() ? tensor() : whole(); }

bool Value::HoldsTensor() const {
  const auto holds = [](const Value& value) { return value.HoldsTensor(); };
  if (list() != nullptr) return std::any_of(list()->begin(), list()->end(), holds);
  if (tuple() != nullptr) return std::any_of(tuple()->begin(), tuple()->end(), holds);
  if (dict() == nullptr) return any_tensor() != nullptr;
  return std::any_of(dict()->begin(), dict()->end(), [](const auto& entry) { return entry.second.HoldsTensor(); });
}

ValueList Value::Items() const {
  if (list() != nullptr) return *list();
  if (tuple() != nullptr) return *tuple();
  ValueList items;
  if (dict() == nullptr) return items;
  for (const auto& [key, value] : *dict()) items.push_back(value);
  return items;
}

Value Value::Map(const std::function<Value(const Value&)>& f) const {
  const auto mapped = [&f](const ValueList& values) {
    ValueList result;
    result.reserve(values.size());
    for (const Value& value : values) result.push_back(value.Map(f));
    return result;
  };
  if (list() != nullptr) return List(mapped(*list()));
  if (tuple() != nullptr) return Tuple(mapped(*tuple()));
  if (dict() == nullptr) return f(*this);
  ValueDict result;
  for (const auto& [key, value] : *dict()) result.emplace_back(key, value.Map(f));
  return Dict(std::move(result));
}

Value Value::MapTensors(const std::function<at::Tensor(const at::Tensor&)>& f) const {
  if (is_tensor()) return {f(*tensor())};  // nearly always: for each action of a run
  if (!HoldsTensor()) return *this;
  return Map([&f](const Value& value) -> Value {
    if (value.is_tensor()) return {f(*value.tensor())};
    if (value.is_whole()) return {WholeTensor{f(*value.whole())}};
    return value;
  });
}

std::string Value::TypeName() const {
  // In the order of Data.
  static constexpr const char* kNames[] = {"NoneType", "Tensor", "NoChunk", "bool",  "int",
                                           "float",    "str",    "list",    "tuple", "dict"};
  return kNames[data_.index()];
}

}  // namespace penstock
