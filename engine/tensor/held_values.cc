#include "engine/tensor/held_values.h"

#include <limits>
#include <set>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

constexpr int64_t kBytesOfAValue = 64;
constexpr int64_t kBytesOfATensor = 512;  // without its elements
constexpr size_t kMaxStemBytes = 100;     // of a tensor's name, which may have 128

// Counts what a value takes and lists its tensors.
class ValueWalk {
 public:
  explicit ValueWalk(const HeldLimits& limits) : limits_(limits) {}

  // `field` names the result in errors.
  absl::Status Add(const Value& value, const std::string& field, int depth = 1) {
    if (depth > limits_.depth) return TooMuch(field, "be nested at most ", limits_.depth, " deep");
    if (++values_ > limits_.values) return TooMuch(field, "hold at most ", limits_.values, " values");
    if (const std::string* text = value.text()) PENSTOCK_RETURN_IF_ERROR(AddText(*text, field));
    if (const at::Tensor* tensor = value.any_tensor(); tensor != nullptr && tensor->defined()) {
      if (met_.insert(tensor->unsafeGetTensorImpl()).second) tensors_.push_back(*tensor);
      if (static_cast<int64_t>(met_.size()) > limits_.tensors) {
        return TooMuch(field, "hold at most ", limits_.tensors, " tensors inside of lists and dictionaries");
      }
    }
    for (const ValueList* list : {value.list(), value.tuple()}) {
      if (list == nullptr) continue;
      for (const Value& item : *list) PENSTOCK_RETURN_IF_ERROR(Add(item, field, depth + 1));
    }
    if (value.dict() == nullptr) return absl::OkStatus();
    for (const auto& [key, item] : *value.dict()) {
      PENSTOCK_RETURN_IF_ERROR(AddText(key, field));
      PENSTOCK_RETURN_IF_ERROR(Add(item, field, depth + 1));
    }
    return absl::OkStatus();
  }

  Tensors TakeTensors() { return std::exchange(tensors_, {}); }
  int64_t bytes() const { return values_ * kBytesOfAValue + text_bytes_; }

 private:
  absl::Status AddText(const std::string& text, const std::string& field) {
    text_bytes_ += static_cast<int64_t>(text.size());
    return text_bytes_ > limits_.text_bytes ? TooMuch(field, "hold at most ", limits_.text_bytes, " bytes of text")
                                            : absl::OkStatus();
  }

  static absl::Status TooMuch(const std::string& field, const char* may, int64_t most, const char* unit) {
    return Error(absl::StatusCode::kResourceExhausted, "MESSAGE_TOO_LARGE",
                 absl::StrCat(field, ": the values of a result may ", may, most, unit, ", got more"))
        .With("field", field)
        .With("value", "more");
  }

  const HeldLimits limits_;
  int64_t values_ = 0;
  int64_t text_bytes_ = 0;
  Tensors tensors_;            // not yet taken
  std::set<const void*> met_;  // all of them
};

std::string FieldOf(const NamedValue& result) { return absl::StrCat("outputs[", result.name, "]"); }

}  // namespace

const at::Tensor* HeldValues::FindTensor(const std::string& name) const {
  if (name.empty()) return size() == 1 && own_tensors == 1 ? &tensors[0].tensor : nullptr;
  for (const NamedTensor& tensor : tensors) {
    if (tensor.name == name) return &tensor.tensor;
  }
  return nullptr;
}

const Value* HeldValues::FindValue(const std::string& name) const {
  if (name.empty()) return size() == 1 && own_tensors == 0 ? &values[0].value : nullptr;
  for (const NamedValue& value : values) {
    if (value.name == name) return &value.value;
  }
  return nullptr;
}

int64_t BytesOf(const Value& value) {
  ValueWalk walk({.depth = std::numeric_limits<int>::max(),
                  .values = std::numeric_limits<int64_t>::max(),
                  .text_bytes = std::numeric_limits<int64_t>::max(),
                  .tensors = std::numeric_limits<int64_t>::max()});
  walk.Add(value, "").IgnoreError();  // nothing goes beyond these limits
  const Tensors tensors = walk.TakeTensors();
  return walk.bytes() + static_cast<int64_t>(tensors.size()) * kBytesOfATensor + ByteSize(tensors);
}

absl::Status CheckHeld(const NamedValues& results, const HeldLimits& limits) {
  ValueWalk walk(limits);
  for (const NamedValue& result : results) {
    if (result.value.any_tensor() == nullptr) PENSTOCK_RETURN_IF_ERROR(walk.Add(result.value, FieldOf(result)));
  }
  return absl::OkStatus();
}

absl::StatusOr<HeldValues> HoldValues(NamedValues results, const HeldLimits& limits) {
  HeldValues held;
  std::set<std::string> names;
  for (NamedValue& result : results) {
    names.insert(result.name);
    if (const at::Tensor* tensor = result.value.any_tensor()) {
      held.tensors.push_back({result.name, *tensor});
    } else {
      held.values.push_back(std::move(result));
    }
  }
  held.own_tensors = held.tensors.size();
  ValueWalk walk(limits);
  for (const NamedValue& value : held.values) {
    PENSTOCK_RETURN_IF_ERROR(walk.Add(value.value, FieldOf(value)));
    int64_t number = 0;
    for (at::Tensor& tensor : walk.TakeTensors()) {
      std::string name;
      do {
        name = absl::StrCat(value.name.substr(0, kMaxStemBytes), ".", number++);
      } while (!names.insert(name).second);
      held.tensors.push_back({std::move(name), std::move(tensor)});
    }
  }
  held.value_bytes = walk.bytes();
  return held;
}

}  // namespace penstock
