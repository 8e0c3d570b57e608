#include "engine/tensor/held_values.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/base/utf8.h"
#include "engine/wire/tensor_header.h"

namespace penstock {
namespace {

constexpr int64_t kBytesOfAValue = 64;
constexpr int64_t kBytesOfATensor = 512;  // without its elements
constexpr size_t kMaxStemBytes = 100;     // of a tensor's name, which may have 128

// The places of tensors in the order of their names.
std::vector<size_t> ByName(const NamedTensors& tensors) {
  std::vector<size_t> places(tensors.size());
  std::iota(places.begin(), places.end(), size_t{0});
  std::stable_sort(places.begin(), places.end(),
                   [&tensors](size_t a, size_t b) { return tensors[a].name < tensors[b].name; });
  return places;
}

// Counts what values take, and adds the tensors inside of them to those that are held, under names that are free.
class ValueWalk {
 public:
  ValueWalk(const HeldLimits& limits, std::set<std::string> taken_names, NamedTensors* tensors)
      : limits_(limits), taken_names_(std::move(taken_names)), tensors_(tensors) {}

  absl::Status AddResult(const NamedValue& result) {
    field_ = absl::StrCat("outputs[", result.name, "]");
    stem_ = result.name.substr(0, kMaxStemBytes);
    number_ = 0;
    return Add(result.value, 1);
  }

  int64_t bytes() const { return values_ * kBytesOfAValue + text_bytes_; }

 private:
  absl::Status Add(const Value& value, int depth) {
    if (depth > limits_.depth) return TooMuch("be nested at most ", limits_.depth, " deep");
    if (++values_ > limits_.values) return TooMuch("hold at most ", limits_.values, " values");
    if (const std::string* text = value.text()) PENSTOCK_RETURN_IF_ERROR(AddText(*text));
    if (const at::Tensor* tensor = value.any_tensor(); tensor != nullptr && tensor->defined()) {
      PENSTOCK_RETURN_IF_ERROR(AddTensor(*tensor));
    }
    for (const ValueList* list : {value.list(), value.tuple()}) {
      if (list == nullptr) continue;
      for (const Value& item : *list) PENSTOCK_RETURN_IF_ERROR(Add(item, depth + 1));
    }
    return value.dict() == nullptr ? absl::OkStatus() : AddDict(*value.dict(), depth);
  }

  absl::Status AddDict(const ValueDict& dict, int depth) {
    std::set<std::string_view> keys;
    for (const auto& [key, item] : dict) {
      PENSTOCK_RETURN_IF_ERROR(AddText(key));
      if (!keys.insert(key).second) return NoMessage("no key of a dictionary may come twice", key);
      PENSTOCK_RETURN_IF_ERROR(Add(item, depth + 1));
    }
    return absl::OkStatus();
  }

  absl::Status AddTensor(const at::Tensor& tensor) {
    std::string& name = names_[tensor.unsafeGetTensorImpl()];
    if (name.empty()) {
      if (static_cast<int64_t>(names_.size()) > limits_.tensors) {
        return TooMuch("hold at most ", limits_.tensors, " tensors inside of lists and dictionaries");
      }
      do {
        name = absl::StrCat(stem_, ".", number_++);
      } while (!taken_names_.insert(name).second);
      tensors_->push_back({name, tensor});
    }
    name_bytes_ += static_cast<int64_t>(name.size());
    return CheckText();
  }

  absl::Status AddText(const std::string& text) {
    text_bytes_ += static_cast<int64_t>(text.size());
    PENSTOCK_RETURN_IF_ERROR(CheckText());
    return IsUtf8(text) ? absl::OkStatus() : NoMessage("texts must be UTF-8", text);
  }

  absl::Status CheckText() const {
    return text_bytes_ + name_bytes_ > limits_.text_bytes
               ? TooMuch("hold at most ", limits_.text_bytes, " bytes of text")
               : absl::OkStatus();
  }

  absl::Status TooMuch(const char* may, int64_t most, const char* unit) const {
    return Error(absl::StatusCode::kResourceExhausted, "MESSAGE_TOO_LARGE",
                 absl::StrCat(field_, ": the values of a result may ", may, most, unit, ", got more"))
        .With("field", field_)
        .With("value", "more");
  }

  absl::Status NoMessage(const char* rule, const std::string& text) const {
    return Error(absl::StatusCode::kInvalidArgument, "WRONG_TYPE",
                 absl::StrCat(field_, ": ", rule, ", got \"", Shortened(text), "\""))
        .With("field", field_)
        .With("value", Shortened(text));
  }

  const HeldLimits limits_;
  std::set<std::string> taken_names_;
  NamedTensors* const tensors_;
  std::string field_;   // the result, in errors
  std::string stem_;    // of the names of its tensors
  int64_t number_ = 0;  // of the next one
  int64_t values_ = 0;
  int64_t text_bytes_ = 0;
  int64_t name_bytes_ = 0;                    // of the tensors, wherever they stand
  std::map<const void*, std::string> names_;  // of the tensors that were met
};

}  // namespace

HeldValues::HeldValues(NamedTensors all)
    : tensors(std::move(all)), by_name(ByName(tensors)), own_tensors(tensors.size()) {}

const at::Tensor* HeldValues::FindTensor(const std::string& name) const {
  if (name.empty()) return size() == 1 && own_tensors == 1 ? &tensors[0].tensor : nullptr;
  const auto place = std::lower_bound(by_name.begin(), by_name.end(), name,
                                      [this](size_t i, const std::string& wanted) { return tensors[i].name < wanted; });
  return place != by_name.end() && tensors[*place].name == name ? &tensors[*place].tensor : nullptr;
}

const Value* HeldValues::FindValue(const std::string& name) const {
  if (name.empty()) return size() == 1 && own_tensors == 0 ? &values[0].value : nullptr;
  for (const NamedValue& value : values) {
    if (value.name == name) return &value.value;
  }
  return nullptr;
}

int64_t HeldValues::bytes() const { return ByteSize(tensors) + value_bytes; }

HeldValues MoveValues(const HeldValues& held, const std::function<at::Tensor(const at::Tensor&)>& move) {
  HeldValues moved = held;
  std::map<const void*, at::Tensor> by_tensor;  // those inside of values are among them
  for (NamedTensor& tensor : moved.tensors) {
    at::Tensor& there = by_tensor[tensor.tensor.unsafeGetTensorImpl()];
    if (!there.defined()) there = move(tensor.tensor);
    tensor.tensor = there;
  }
  for (NamedValue& value : moved.values) {
    value.value = value.value.MapTensors([&by_tensor](const at::Tensor& tensor) {
      const auto there = by_tensor.find(tensor.unsafeGetTensorImpl());
      return there == by_tensor.end() ? tensor : there->second;  // an undefined one
    });
  }
  return moved;
}

int64_t BytesOf(const Value& value) {
  NamedTensors tensors;
  ValueWalk walk({.depth = std::numeric_limits<int>::max(),
                  .values = std::numeric_limits<int64_t>::max(),
                  .text_bytes = std::numeric_limits<int64_t>::max(),
                  .tensors = std::numeric_limits<int64_t>::max()},
                 {}, &tensors);
  walk.AddResult({"", value}).IgnoreError();  // what came in a message has only texts and keys that one can carry
  return walk.bytes() + static_cast<int64_t>(tensors.size()) * kBytesOfATensor + ByteSize(tensors);
}

absl::Status CheckHeld(const NamedValues& results, const HeldLimits& limits) {
  return HoldValues(results, limits).status();  // copies share what they hold
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
  ValueWalk walk(limits, std::move(names), &held.tensors);
  for (const NamedValue& value : held.values) PENSTOCK_RETURN_IF_ERROR(walk.AddResult(value));
  held.by_name = ByName(held.tensors);
  held.value_bytes = walk.bytes();
  return held;
}

}  // namespace penstock
