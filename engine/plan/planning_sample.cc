#include "engine/plan/planning_sample.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/remainder.h>

#include <utility>
#include <vector>

namespace penstock {

at::Tensor TakeRows(const at::Tensor& tensor, int64_t rows) {
  if (tensor.dim() == 0) return tensor;
  return tensor.index_select(0, at::arange(rows, at::kLong).remainder(tensor.size(0)));
}

Batch BatchOf(const NamedValues& values) {
  if (values.size() == 1) return {values[0].value};
  std::vector<Value> items;
  for (const NamedValue& named : values) items.push_back(named.value);
  return Batch::Tuple(std::move(items));
}

}  // namespace penstock
