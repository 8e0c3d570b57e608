#include "engine/tensor/value.h"

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

Value Value::MapTensors(const std::function<at::Tensor(const at::Tensor&)>& f) const {
  if (is_tensor()) return {f(*tensor())};
  if (is_whole()) return {WholeTensor{f(*whole())}};
  const auto mapped = [&f](const ValueList& values) {
    ValueList result;
    result.reserve(values.size());
    for (const Value& value : values) result.push_back(value.MapTensors(f));
    return result;
  };
  if (list() != nullptr) return List(mapped(*list()));
  if (tuple() != nullptr) return Tuple(mapped(*tuple()));
  if (dict() == nullptr) return *this;
  ValueDict result;
  for (const auto& [key, value] : *dict()) result.emplace_back(key, value.MapTensors(f));
  return Dict(std::move(result));
}

std::string Value::TypeName() const {
  // In the order of Data.
  static constexpr const char* kNames[] = {"NoneType", "Tensor", "NoChunk", "bool",  "int",
                                           "float",    "str",    "list",    "tuple", "dict"};
  return kNames[data_.index()];
}

}  // namespace penstock
