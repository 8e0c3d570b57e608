#include "engine/serve/batch_rows.h"

#include <ATen/ops/cat.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/tensor/micro_batch.h"

namespace penstock {

std::string BatchKeyOf(const NamedValues& inputs, const ForwardRequest& request, bool outputs_stay) {
  if (inputs.empty() || request.micro_batches.has_value() || request.input_gradients) return "";
  // Lengths before texts: no two requests that differ have the same key.
  std::string key =
      absl::StrCat(request.priority, ",", outputs_stay ? 1 : 0, ",", inputs.tuple ? 1 : 0, ",", inputs.size());
  for (const NamedValue& input : inputs) {
    const at::Tensor* tensor = input.value.tensor();
    if (tensor == nullptr || tensor->dim() == 0 || tensor->size(0) == 0) return "";
    if (tensor->size(0) != inputs.front().value.tensor()->size(0)) return "";  // whose rows an output has is not known
    absl::StrAppend(&key, ";", input.name.size(), ":", input.name, static_cast<int>(tensor->scalar_type()));
    for (int64_t i = 1; i < tensor->dim(); ++i) absl::StrAppend(&key, "x", tensor->size(i));
    if (!tensor->is_cpu()) absl::StrAppend(&key, "@", tensor->device().str());  // joined where they are
  }
  for (const std::string& output : request.outputs) absl::StrAppend(&key, ">", output.size(), ":", output);
  return key;
}

NamedValues JoinRows(const std::vector<NamedValues>& requests) {
  if (requests.size() == 1) return requests.front();
  NamedValues joined;
  joined.tuple = requests.front().tuple;
  for (size_t i = 0; i < requests.front().size(); ++i) {
    std::vector<at::Tensor> pieces;
    pieces.reserve(requests.size());
    for (const NamedValues& one : requests) pieces.push_back(*one[i].value.tensor());
    joined.push_back({requests.front()[i].name, Value(at::cat(pieces, 0))});
  }
  return joined;
}

absl::StatusOr<std::vector<NamedValues>> PartRows(const NamedValues& outputs, const std::vector<int64_t>& rows) {
  std::vector<NamedValues> parted(rows.size());
  if (rows.size() == 1) {
    parted.front() = outputs;
    return parted;
  }
  const int64_t total = TotalRows(rows);
  for (const NamedValue& output : outputs) {
    const at::Tensor* tensor = output.value.tensor();
    if (tensor == nullptr || tensor->dim() == 0 || tensor->size(0) != total) {
      return absl::OutOfRangeError(
          absl::StrCat("outputs[", output.name, "]: must have ", total, " rows, as the inputs of the batch have"));
    }
    const Tensors pieces = SplitRows(*tensor, rows);
    for (size_t k = 0; k < rows.size(); ++k) {
      parted[k].push_back({output.name, Value(OwnElements(pieces[k]))});
    }
  }
  return parted;
}

}  // namespace penstock
