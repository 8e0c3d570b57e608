#include "client/cli/data_batches.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/exit_code.h"
#include "client/cli/row_order.h"
#include "client/cli/tensor_cast.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

DataType TypeOf(const v1::TensorSignature& signature) {
  return signature.any() ? DataType::kUnspecified : static_cast<DataType>(signature.type());
}

// What takes any number of values has no names for them.
std::string NameOr(const std::string& name, const char* otherwise) { return name.empty() ? otherwise : name; }

std::string TargetArray(const ArrayFile& file, const v1::ModelSignature& signature, const std::string& name) {
  const auto is_input = [&](const std::string& array) {
    return std::any_of(signature.inputs().begin(), signature.inputs().end(),
                       [&](const v1::TensorSignature& input) { return input.name() == array; });
  };
  for (const std::string& array : {name, std::string("target"), std::string("labels")}) {
    if (file.Has(array) && !is_input(array)) return array;
  }
  return name;
}

}  // namespace

absl::StatusOr<DataRows> DataRows::Create(const ArrayFile& file, const v1::ModelSignature& signature,
                                          const std::string& target) {
  DataRows data;
  if (signature.inputs().empty()) return UsageError("--data", "the pipeline's signature names no inputs");
  for (const v1::TensorSignature& input : signature.inputs()) {
    const std::string name = NameOr(input.name(), "input");
    PENSTOCK_ASSIGN_OR_RETURN(Column column, data.Open(file, name, name, TypeOf(input)));
    data.inputs_.push_back(std::move(column));
  }
  if (target.empty() && signature.targets().empty()) return data;
  const std::string name = NameOr(signature.targets().empty() ? "" : signature.targets(0).name(), "target");
  PENSTOCK_ASSIGN_OR_RETURN(
      data.target_, data.Open(file, target.empty() ? TargetArray(file, signature, name) : target, name,
                              signature.targets().empty() ? DataType::kUnspecified : TypeOf(signature.targets(0))));
  return data;
}

absl::StatusOr<DataRows::Column> DataRows::Open(const ArrayFile& file, const std::string& array,
                                                const std::string& name, DataType type) {
  if (!file.Has(array)) {
    constexpr size_t kMaxShown = 12;
    std::vector<std::string> names = file.names();
    if (names.size() > kMaxShown) {
      names.resize(kMaxShown);
      names.emplace_back("...");
    }
    return UsageError(file.path(), absl::StrCat("has no array ", array, ", which the pipeline takes; it has ",
                                                names.empty() ? "none" : absl::StrJoin(names, ", ")));
  }
  PENSTOCK_ASSIGN_OR_RETURN(FileArray opened, file.Array(array));
  if (!opened.has_rows()) return UsageError(file.path(), array + ": must have rows, is a single number");
  if (rows_ < 0) rows_ = opened.rows();
  if (opened.rows() != rows_ || rows_ == 0) {
    return UsageError(file.path(),
                      absl::StrCat(array, ": must have ", rows_ == 0 ? "rows" : absl::StrCat(rows_, " rows"),
                                   rows_ == 0 ? "" : ", as " + inputs_.front().array.name(), ", has ", opened.rows()));
  }
  return Column{name, std::move(opened), type};
}

absl::StatusOr<Batch> DataRows::BatchOf(std::span<const int64_t> rows) const {
  Batch batch;
  const auto read = [&](const Column& column) -> absl::StatusOr<HostTensor> {
    PENSTOCK_ASSIGN_OR_RETURN(HostTensor tensor, column.array.Rows(column.name, rows));
    return CastTo(column.type, std::move(tensor));
  };
  for (const Column& column : inputs_) {
    PENSTOCK_ASSIGN_OR_RETURN(HostTensor tensor, read(column));
    batch.inputs.push_back(std::move(tensor));
  }
  if (target_.has_value()) {
    PENSTOCK_ASSIGN_OR_RETURN(batch.target, read(*target_));
  }
  return batch;
}

absl::StatusOr<BatchSource> ShuffledBatches(DataRows data, int64_t batch, uint64_t seed) {
  if (batch > data.rows()) {
    return UsageError("--batch", absl::StrCat("must be at most ", data.rows(), ", the rows of --data, got ", batch));
  }
  const auto order = std::make_shared<RowOrder>(data.rows(), batch, seed);
  return [data = std::make_shared<const DataRows>(std::move(data)), order](int64_t number) {
    return data->BatchOf(order->BatchOf(number));
  };
}

BatchSource BatchesInOrder(DataRows data, int64_t batch) {
  return [data = std::make_shared<const DataRows>(std::move(data)), batch](int64_t number) {
    const int64_t first = number * batch;
    std::vector<int64_t> rows(static_cast<size_t>(std::min(batch, data->rows() - first)));
    std::iota(rows.begin(), rows.end(), first);
    return data->BatchOf(rows);
  };
}

}  // namespace penstock
