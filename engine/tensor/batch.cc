#include "engine/tensor/batch.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/error.h"
#include "engine/device/torch_status.h"

namespace penstock {
namespace {

absl::Status OutOfRange(absl::string_view sentence) {
  return Error(absl::StatusCode::kOutOfRange, "FIELD_INVALID", std::string(sentence));
}

}  // namespace

Batch Batch::Tuple(std::vector<Value> values) {
  Batch batch;
  batch.values_ = std::move(values);
  return batch;
}

Batch Batch::OfTensors(const Tensors& tensors) {
  Batch batch;
  for (const at::Tensor& tensor : tensors) batch.values_.push_back(tensor.defined() ? Value(tensor) : Value());
  return batch;
}

Batch Batch::Spread() const {
  if (!atomic_ || values_[0].list() == nullptr) return *this;
  Batch items = Tuple(*values_[0].list());
  items.spread_ = true;
  return items;
}

Batch Batch::Folded() const { return spread_ ? Batch(Value::List(values_)) : *this; }

absl::StatusOr<Value> Batch::value() const {
  if (!atomic_) return Error(absl::StatusCode::kFailedPrecondition, "WRONG_TYPE", "not atomic batch");
  return values_[0];
}

absl::StatusOr<std::vector<Value>> Batch::items() const {
  if (atomic_) return Error(absl::StatusCode::kFailedPrecondition, "WRONG_TYPE", "batch is atomic");
  return values_;
}

absl::StatusOr<Value> Batch::At(int64_t i) const {
  const auto count = static_cast<int64_t>(values_.size());
  if (atomic_ && i != 0) return OutOfRange("atomic batch allows index 0 only");
  if (i < -count || i >= count) return OutOfRange(absl::StrCat("index out of range, got ", i));
  return values_[i < 0 ? i + count : i];
}

absl::Status Batch::Set(int64_t i, Value value) {
  absl::StatusOr<Value> old = At(i);
  if (!old.ok()) return old.status();
  values_[i < 0 ? i + static_cast<int64_t>(values_.size()) : i] = std::move(value);
  return absl::OkStatus();
}

absl::Status Batch::ReplaceAll(std::vector<Value> values) {
  if (atomic_ && values.size() != 1) return OutOfRange("atomic batch cannot be replaced with multiple tensors");
  values_ = std::move(values);
  return absl::OkStatus();
}

absl::StatusOr<at::Tensor> Batch::FirstTensor() const {
  for (const Value& value : values_) {
    if (value.is_tensor()) return *value.tensor();
  }
  return Error(absl::StatusCode::kInvalidArgument, "WRONG_TYPE",
               absl::StrCat("No tensors found in batch: ", TypesText(*this)));
}

absl::StatusOr<size_t> Batch::FirstTensorIndex() const {
  for (size_t i = 0; i < values_.size(); ++i) {
    if (values_[i].is_tensor()) return i;
  }
  return Error(absl::StatusCode::kInvalidArgument, "WRONG_TYPE",
               absl::StrCat("No tensor found! Got ", TypesText(*this)));
}

bool Batch::HasTensor() const {
  for (const Value& value : values_) {
    if (value.is_tensor()) return true;
  }
  return false;
}

const at::Tensor& Batch::TensorAt(size_t i) const {
  if (i < values_.size() && values_[i].is_tensor()) return *values_[i].tensor();
  const std::string found = i < values_.size() ? values_[i].TypeName() : "nothing";
  ThrowStatus(Error(absl::StatusCode::kInvalidArgument, "WRONG_TYPE",
                    absl::StrCat("value ", i, ": expected Tensor, but got ", found)));
}

Tensors Batch::TensorsByPosition() const {
  Tensors tensors;
  for (const Value& value : values_) tensors.push_back(value.is_tensor() ? *value.tensor() : at::Tensor());
  return tensors;
}

Batch Batch::MapTensors(const std::function<at::Tensor(const at::Tensor&)>& f) const {
  Batch mapped = *this;
  for (Value& value : mapped.values_) value = value.MapTensors(f);
  return mapped;
}

Tensors Batch::AllTensors() const {
  Tensors tensors;
  const auto collect = [&tensors](const at::Tensor& tensor) { return tensors.emplace_back(tensor); };
  for (const Value& value : values_) value.MapTensors(collect);
  return tensors;
}

// Asked for each message, which is one tensor as a rule: nothing is collected for it.
int64_t ByteSize(const Batch& batch) {
  int64_t bytes = 0;
  for (const Value& value : batch) {
    const at::Tensor* tensor = value.any_tensor();
    if (tensor == nullptr) {
      bytes += ByteSize(Batch(value).AllTensors());
    } else if (tensor->defined() && !tensor->is_meta()) {
      bytes += static_cast<int64_t>(tensor->nbytes());
    }
  }
  return bytes;
}

std::string TypesText(const Batch& batch) {
  return absl::StrCat("(", absl::StrJoin(batch, ", ", [](std::string* out, const Value& v) { *out += v.TypeName(); }),
                      ")");
}

}  // namespace penstock
