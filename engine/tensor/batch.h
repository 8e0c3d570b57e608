#pragma once

// What travels between layers and stages for one micro-batch, or comes with a whole mini-batch: one value or a tuple of
// them.

#include <cstddef>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/tensor/named_tensors.h"
#include "engine/tensor/value.h"

namespace penstock {

// One value by itself ("atomic"), or a tuple. A tuple of one is not the value by itself.
//
// Model:     the successor of torchgpipe's micro_batch.Batch. A tuple's items are a layer's arguments. A list by itself is one
//            argument; between layers and stages it is spread into its items, which are joined and have gradients as a tuple's.
// Threads:   as a vector.
class Batch {
 public:
  Batch() = default;                                                              // the empty tuple
  Batch(at::Tensor tensor) : atomic_(true), values_{Value(std::move(tensor))} {}  // NOLINT: a tensor by itself
  Batch(Value value) : atomic_(true), values_{std::move(value)} {}                // NOLINT: a value by itself
  static Batch Tuple(std::vector<Value> values);
  static Batch OfTensors(const Tensors& tensors);  // undefined ones become None

  // A list by itself as its items; anything else as it is. Folded() is the way back.
  Batch Spread() const;
  Batch Folded() const;

  bool atomic() const { return atomic_; }
  bool spread() const { return spread_; }  // the items of a list
  size_t size() const { return values_.size(); }
  bool empty() const { return values_.empty(); }
  const Value& operator[](size_t i) const { return values_[i]; }
  const std::vector<Value>& values() const { return values_; }
  std::vector<Value>::const_iterator begin() const { return values_.begin(); }
  std::vector<Value>::const_iterator end() const { return values_.end(); }

  // The value by itself. FAILED_PRECONDITION "not atomic batch" for a tuple.
  absl::StatusOr<Value> value() const;
  // The items of a tuple. FAILED_PRECONDITION "batch is atomic" for a value by itself.
  absl::StatusOr<std::vector<Value>> items() const;
  // Item `i` of a tuple, counted from the end if negative. OUT_OF_RANGE "atomic batch allows index 0 only".
  absl::StatusOr<Value> At(int64_t i) const;
  absl::Status Set(int64_t i, Value value);
  // Replaces all of them, keeping the form. OUT_OF_RANGE "atomic batch cannot be replaced with multiple tensors".
  absl::Status ReplaceAll(std::vector<Value> values);
  // f(value) for a batch with one value by itself, f(all values) else; the result is a new batch.
  Batch Call(const std::function<Batch(const Batch&)>& f) const { return f(*this); }

  // The first tensor, whole ones left out. INVALID_ARGUMENT / WRONG_TYPE "No tensors found in batch: (...)".
  absl::StatusOr<at::Tensor> FirstTensor() const;
  // Its position. INVALID_ARGUMENT / WRONG_TYPE "No tensor found!".
  absl::StatusOr<size_t> FirstTensorIndex() const;
  bool HasTensor() const;
  // The tensor at a position. Throws (RunTorch) INVALID_ARGUMENT / WRONG_TYPE "expected Tensor, but got ...".
  const at::Tensor& TensorAt(size_t i) const;

  // Tensors by position, undefined where a value is none. Of a tuple of gradients, say.
  Tensors TensorsByPosition() const;
  // The same batch with every tensor, whole ones and those inside of containers too, run through `f`.
  Batch MapTensors(const std::function<at::Tensor(const at::Tensor&)>& f) const;
  // Those tensors, in the same order.
  Tensors AllTensors() const;

 private:
  bool atomic_ = false;
  bool spread_ = false;
  std::vector<Value> values_;
};

// Bytes of AllTensors().
int64_t ByteSize(const Batch& batch);

// As the ancestors' errors write a batch: (Tensor, int, NoneType).
std::string TypesText(const Batch& batch);

}  // namespace penstock
