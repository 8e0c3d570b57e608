#include "engine/tensor/micro_batch.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/shape_text.h"
#include "engine/base/status_macros.h"
#include "engine/device/torch_status.h"

namespace penstock {
namespace {

absl::Status TypeError(const std::string& field, const std::string& message, const std::string& value) {
  return Error(absl::StatusCode::kInvalidArgument, "WRONG_TYPE", absl::StrCat(field, ": ", message))
      .With("field", field)
      .With("value", value);
}

absl::Status SignatureError(const std::string& field, const std::string& problem, const std::string& value) {
  return Error(absl::StatusCode::kInvalidArgument, "TENSOR_SIGNATURE",
               absl::StrCat(field, ": ", problem, ", got ", value))
      .With("field", field)
      .With("value", value);
}

std::string NameAt(const std::vector<std::string>& names, size_t i) {
  return i < names.size() ? names[i] : absl::StrCat("output", i);
}

// Checks that piece `index` of an output can be joined to the first one.
absl::Status CheckPiece(const at::Tensor& first, const at::Tensor& piece, size_t index, const std::string& field) {
  if (piece.scalar_type() != first.scalar_type() || piece.dim() != first.dim()) {
    return SignatureError(field,
                          absl::StrCat("Types for microbatch outputs do not match, found: ",
                                       c10::toString(first.scalar_type()), " ", ShapeText(first.sizes()), " and ",
                                       c10::toString(piece.scalar_type()), " ", ShapeText(piece.sizes())),
                          ShapeText(piece.sizes()));
  }
  for (int64_t d = 1; d < first.dim(); ++d) {
    if (piece.size(d) != first.size(d)) {
      return SignatureError(
          field,
          absl::StrCat("Sizes of tensors must match except in dimension 0. Expected size ", first.size(d),
                       " but got size ", piece.size(d), " for tensor number ", index, " in the list"),
          ShapeText(piece.sizes()));
    }
  }
  return absl::OkStatus();
}

// Each micro-batch gets its own copies of lists and dictionaries on its way through the stages.
constexpr int64_t kMaxValuesInAll = int64_t{1} << 20;
constexpr int64_t kKeyBytesOfAValue = 64;  // a long key counts as several values

int64_t ValuesInside(const Value& value) {
  int64_t count = 0;
  for (const ValueList* list : {value.list(), value.tuple()}) {
    if (list == nullptr) continue;
    for (const Value& item : *list) count += 1 + ValuesInside(item);
  }
  if (value.dict() == nullptr) return count;
  for (const auto& [key, item] : *value.dict()) {
    count += 1 + static_cast<int64_t>(key.size()) / kKeyBytesOfAValue + ValuesInside(item);
  }
  return count;
}

absl::Status CheckValuesInside(const NamedValues& values, size_t micro_batches, const std::string& prefix) {
  int64_t count = 0;
  for (const NamedValue& value : values) {
    count += ValuesInside(value.value);
    if (count <= kMaxValuesInAll / static_cast<int64_t>(micro_batches)) continue;
    const std::string field = absl::StrCat(prefix, "[", value.name, "]");
    const std::string found = absl::StrCat(count, " for each of ", micro_batches);
    const std::string problem = absl::StrCat("may hold at most ", kMaxValuesInAll, " values for all micro-batches");
    return Error(absl::StatusCode::kResourceExhausted, "MESSAGE_TOO_LARGE",
                 absl::StrCat(field, ": ", problem, ", got ", found))
        .With("field", field)
        .With("value", found);
  }
  return absl::OkStatus();
}

// OwnElements() of tensors many of which may be one: each micro-batch gives the same value that a call has brought, say.
class OwnCopies {
 public:
  at::Tensor Of(const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    const Key key(tensor.storage().unsafeGetStorageImpl(), tensor.scalar_type(), tensor.storage_offset(),
                  tensor.sizes().vec(), tensor.strides().vec(), tensor.is_neg(), tensor.is_conj());
    const auto [copy, is_new] = copies_.try_emplace(key);
    if (is_new) copy->second = OwnElements(tensor);
    return copy->second;
  }

 private:
  // What of the storage it shows, and how it reads it: with its sign or the other, conjugate or not.
  using Key = std::tuple<const void*, at::ScalarType, int64_t, std::vector<int64_t>, std::vector<int64_t>, bool, bool>;
  std::map<Key, at::Tensor> copies_;
};

}  // namespace

std::vector<int64_t> MicroBatchRows(int64_t rows, int asked) {
  PENSTOCK_CHECK(rows >= 0 && asked >= 1);
  if (rows == 0) return std::vector<int64_t>(asked, 0);
  const int64_t length = rows / asked + (rows % asked != 0);
  std::vector<int64_t> pieces(rows / length, length);
  if (rows % length != 0) pieces.push_back(rows % length);
  return pieces;
}

int64_t TotalRows(const std::vector<int64_t>& rows) { return std::accumulate(rows.begin(), rows.end(), int64_t{0}); }

Tensors SplitRows(const at::Tensor& tensor, const std::vector<int64_t>& rows) {
  Tensors pieces;
  int64_t first = 0;
  for (int64_t count : rows) {
    pieces.push_back(tensor.narrow(0, first, count));
    first += count;
  }
  return pieces;
}

absl::StatusOr<ScatteredBatch> Scatter(const NamedValues& values, int asked, std::string_view field) {
  if (asked < 1)
    return InvalidField("micro_batches", "number of micro-batches must be a positive integer", absl::StrCat(asked));
  const std::string prefix(field);
  const NamedValue* first = nullptr;
  std::vector<std::vector<int64_t>> pieces(values.size());
  for (size_t v = 0; v < values.size(); ++v) {
    if (!values[v].value.is_tensor()) continue;
    const at::Tensor& tensor = *values[v].value.tensor();
    const std::string name = absl::StrCat(prefix, "[", values[v].name, "]");
    if (tensor.dim() == 0) {
      return SignatureError(name + ".shape", "chunk expects at least a 1-dimensional tensor",
                            ShapeText(tensor.sizes()));
    }
    pieces[v] = MicroBatchRows(tensor.size(0), asked);
    if (first == nullptr) first = &values[v];
    const size_t count = pieces[first - values.data()].size();
    if (pieces[v].size() != count) {
      return SignatureError(
          name + ".shape[0]",
          absl::StrCat("Found different number of chunks produced for inputs: ", count, " and ", pieces[v].size()),
          absl::StrCat(tensor.size(0), " rows"));
    }
  }
  if (first == nullptr) {
    std::vector<Value> plain;
    for (const NamedValue& named : values) plain.push_back(named.value);
    const Batch all = Batch::Tuple(std::move(plain));
    return TypeError(prefix, absl::StrCat("inputs do not have any tensors: ", TypesText(all)), TypesText(all));
  }
  ScatteredBatch result;
  result.rows = pieces[first - values.data()];
  PENSTOCK_RETURN_IF_ERROR(CheckValuesInside(values, result.rows.size(), prefix));
  std::vector<int64_t> begins(values.size(), 0);
  for (size_t i = 0; i < result.rows.size(); ++i) {
    std::vector<Value> micro_batch;
    for (size_t v = 0; v < values.size(); ++v) {
      const Value& value = values[v].value;
      if (value.is_tensor()) {
        micro_batch.emplace_back(value.tensor()->narrow(0, begins[v], pieces[v][i]));
        begins[v] += pieces[v][i];
      } else if (value.is_whole()) {
        micro_batch.emplace_back(*value.whole());
      } else {
        micro_batch.push_back(value);
      }
    }
    result.micro_batches.push_back(values.size() == 1 && !values.tuple ? Batch(micro_batch[0])
                                                                       : Batch::Tuple(std::move(micro_batch)));
  }
  return result;
}

absl::StatusOr<Batch> Gather(const std::vector<Batch>& micro_batches, const std::vector<std::string>& names) {
  if (micro_batches.empty()) return SignatureError("outputs", "do not have any micro-batch", "none");
  const Batch& first = micro_batches[0];
  for (const Batch& micro_batch : micro_batches) {
    if (micro_batch.atomic() != first.atomic() || micro_batch.size() != first.size()) {
      return TypeError("outputs",
                       absl::StrCat("Types for microbatch outputs do not match, found: ", TypesText(first), " and ",
                                    TypesText(micro_batch)),
                       TypesText(micro_batch));
    }
  }
  std::vector<Value> joined;
  for (size_t output = 0; output < first.size(); ++output) {
    const std::string field = absl::StrCat("outputs[", NameAt(names, output), "]");
    std::vector<at::Tensor> pieces;
    ValueList others;
    for (const Batch& micro_batch : micro_batches) {
      const Value& value = micro_batch[output];
      if (value.is_tensor() != first[output].is_tensor()) {
        return TypeError(field,
                         absl::StrCat("Types for microbatch outputs do not match, found: ", first[output].TypeName(),
                                      " and ", value.TypeName()),
                         value.TypeName());
      }
      if (!value.is_tensor()) {
        others.push_back(value);
        continue;
      }
      PENSTOCK_RETURN_IF_ERROR(CheckPiece(*first[output].tensor(), *value.tensor(), pieces.size(), field));
      pieces.push_back(*value.tensor());
    }
    if (pieces.empty()) {
      Value list = Value::List(std::move(others));
      OwnCopies own;
      PENSTOCK_RETURN_IF_ERROR(
          RunTorch([&] { list = list.MapTensors([&own](const at::Tensor& tensor) { return own.Of(tensor); }); }));
      joined.push_back(std::move(list));
    } else {
      at::Tensor tensor;
      PENSTOCK_RETURN_IF_ERROR(RunTorch([&] {
        tensor = pieces[0].dim() == 0 ? at::stack(pieces)
                 : pieces.size() == 1 ? OwnElements(pieces[0])
                                      : at::cat(pieces, 0);
      }));
      joined.emplace_back(std::move(tensor));
    }
  }
  return first.atomic() ? Batch(std::move(joined[0])) : Batch::Tuple(std::move(joined));
}

at::Tensor OwnElements(const at::Tensor& tensor) {
  const bool own = tensor.storage().use_count() == 1 && tensor.storage().nbytes() == tensor.nbytes();
  return own ? tensor : tensor.clone();
}

NamedValues WithNames(const Batch& batch, const std::vector<std::string>& names) {
  NamedValues named;
  named.tuple = !batch.atomic();
  for (size_t i = 0; i < batch.size(); ++i) {
    named.push_back({i >= names.size() && batch.size() == 1 ? "output" : NameAt(names, i), batch[i]});
  }
  return named;
}

absl::StatusOr<NamedTensors> ToTensors(const NamedValues& values) {
  NamedTensors tensors;
  for (const NamedValue& named : values) {
    if (!named.value.is_tensor()) {
      return TypeError(named.name, absl::StrCat("expected Tensor, but got ", named.value.TypeName()),
                       named.value.TypeName());
    }
    tensors.push_back({named.name, *named.value.tensor()});
  }
  return tensors;
}

}  // namespace penstock
