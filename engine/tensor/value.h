#pragma once

// One value that a layer takes or gives: usually a tensor, but anything that a model hands from layer to layer.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/tensor/named_tensors.h"

namespace penstock {

class Value;

// A tensor that is not split along its first dimension: every micro-batch gets all of it.
struct WholeTensor {
  at::Tensor tensor;
};

using ValueList = std::vector<Value>;
using ValueDict = std::vector<std::pair<std::string, Value>>;  // in the order in which it was written

// Cheap to copy: tensors share their elements, lists and dictionaries are shared and never change.
//
// Model:     nothing (None), a tensor, a whole tensor, a plain value, or a list, a tuple or a dictionary of values.
//            Only a tensor by itself is split into micro-batches, joined again, and has a gradient that a call takes or
//            gives. Between layers and stages those inside of containers have gradients, too.
class Value {
 public:
  Value() = default;                                        // None
  Value(at::Tensor tensor) : data_(std::move(tensor)) {}    // NOLINT: a tensor is a value
  Value(WholeTensor tensor) : data_(std::move(tensor)) {}   // NOLINT
  Value(bool value) : data_(value) {}                       // NOLINT
  Value(int value) : data_(static_cast<int64_t>(value)) {}  // NOLINT
  Value(int64_t value) : data_(value) {}                    // NOLINT
  Value(double value) : data_(value) {}                     // NOLINT
  Value(std::string value) : data_(std::make_shared<const std::string>(std::move(value))) {}  // NOLINT
  Value(const char* value) : Value(std::string(value)) {}                                     // NOLINT: not a bool
  static Value List(ValueList values) { return Value(Data(Shared<ListTag>(std::move(values)))); }
  static Value Tuple(ValueList values) { return Value(Data(Shared<TupleTag>(std::move(values)))); }
  static Value Dict(ValueDict values) { return Value(Data(std::make_shared<const ValueDict>(std::move(values)))); }

  bool is_none() const { return std::holds_alternative<std::monostate>(data_); }
  bool is_tensor() const { return std::holds_alternative<at::Tensor>(data_); }  // a tensor by itself, not a whole one
  bool is_whole() const { return std::holds_alternative<WholeTensor>(data_); }

  // The content, if it is of that kind; else null.
  const at::Tensor* tensor() const { return std::get_if<at::Tensor>(&data_); }
  const at::Tensor* whole() const;
  const bool* boolean() const { return std::get_if<bool>(&data_); }
  const int64_t* integer() const { return std::get_if<int64_t>(&data_); }
  const double* number() const { return std::get_if<double>(&data_); }
  const std::string* text() const;
  const ValueList* list() const;
  const ValueList* tuple() const;
  const ValueDict* dict() const;

  // The tensor of a tensor or a whole tensor; else null.
  const at::Tensor* any_tensor() const;

  // Whether there is one in it, at any depth.
  bool HoldsTensor() const;

  // What a list, a tuple or a dictionary holds; of anything else nothing.
  ValueList Items() const;
  // The same lists, tuples and dictionaries with everything else in them run through `f`, in their order.
  Value Map(const std::function<Value(const Value&)>& f) const;
  // The same value with every tensor in it, at any depth, run through `f`. Whole ones stay whole; without tensors it is
  // the value itself, not a copy.
  Value MapTensors(const std::function<at::Tensor(const at::Tensor&)>& f) const;

  // "Tensor", "NoneType", "int", "str" ...: the names by which the ancestors' errors call them.
  std::string TypeName() const;

 private:
  struct ListTag {};
  struct TupleTag {};
  template <typename Tag>
  struct Shared {
    explicit Shared(ValueList values);
    std::shared_ptr<const ValueList> values;
  };
  using Data =
      std::variant<std::monostate, at::Tensor, WholeTensor, bool, int64_t, double, std::shared_ptr<const std::string>,
                   Shared<ListTag>, Shared<TupleTag>, std::shared_ptr<const ValueDict>>;
  explicit Value(Data data) : data_(std::move(data)) {}

  Data data_;
};

template <typename Tag>
Value::Shared<Tag>::Shared(ValueList list) : values(std::make_shared<const ValueList>(std::move(list))) {}

// A value with a name, as calls take and give them.
struct NamedValue {
  std::string name;
  Value value;
};

// The values of a call. One value is given by itself, several as a tuple; `tuple` makes a tuple of one, too.
class NamedValues : public std::vector<NamedValue> {
 public:
  using std::vector<NamedValue>::vector;
  NamedValues(const NamedTensors& tensors) {  // NOLINT: tensors are values
    for (const NamedTensor& named : tensors) push_back({named.name, Value(named.tensor)});
  }

  bool tuple = false;
};

}  // namespace penstock
