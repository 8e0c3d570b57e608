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

std::string Value::TypeName() const {
  // In the order of Data.
  static constexpr const char* kNames[] = {"NoneType", "Tensor", "NoChunk", "bool",  "int",
                                           "float",    "str",    "list",    "tuple", "dict"};
  return kNames[data_.index()];
}

}  // namespace penstock
