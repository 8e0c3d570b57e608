#include "engine/program/operator_bounds.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/device/torch_status.h"
#include "engine/program/operator_call.h"

namespace penstock {
namespace {

const c10::IValue* Find(const BoundedCall& call, const char* name) {
  const auto found = std::find(call.names.begin(), call.names.end(), name);
  const auto position = static_cast<size_t>(found - call.names.begin());
  return position < call.values.size() ? &call.values[position] : nullptr;
}

std::optional<at::Tensor> TensorOf(const BoundedCall& call, const char* name) {
  const c10::IValue* value = Find(call, name);
  if (value == nullptr || !value->isTensor() || !value->toTensor().defined()) return std::nullopt;
  return value->toTensor();
}

int64_t IntOf(const BoundedCall& call, const char* name, int64_t otherwise) {
  const c10::IValue* value = Find(call, name);
  return value != nullptr && value->isInt() ? value->toInt() : otherwise;
}

[[noreturn]] void ThrowOutside(const std::string& name, const std::string& wanted, const std::string& found) {
  ThrowStatus(Error(absl::StatusCode::kInvalidArgument, "TENSOR_SIGNATURE",
                    absl::StrCat(name, ": must ", wanted, ", got ", found))
                  .With("field", name)
                  .With("value", found));
}

// The least and the greatest element, by one copy to the host.
at::Tensor Ends(const at::Tensor& tensor) {
  const auto [least, most] = at::aminmax(tensor);
  return at::stack({least, most}).cpu();
}

// Whole numbers from `least` to `most`, or `except`.
void CheckRange(const at::Tensor& indices, const std::string& name, int64_t least, int64_t most,
                std::optional<int64_t> except = {}) {
  if (indices.numel() == 0 || !at::isIntegralType(indices.scalar_type(), /*includeBool=*/false)) return;
  at::Tensor checked = indices;
  if (except.has_value() && (*except < least || *except > most)) {
    checked = indices.masked_select(indices.ne(*except));
    if (checked.numel() == 0) return;
  }
  const at::Tensor ends = Ends(checked);
  const auto first = ends[0].item<int64_t>();
  const auto last = ends[1].item<int64_t>();
  if (first >= least && last <= most) return;
  ThrowOutside(name, absl::StrCat("lie in [", least, ", ", most, "]"), absl::StrCat(first < least ? first : last));
}

// Floating numbers from 0 to `most`; NaN is none.
void CheckNumbers(const at::Tensor& numbers, const std::string& name, double most) {
  if (numbers.numel() == 0 || !numbers.is_floating_point()) return;
  const at::Tensor ends = Ends(numbers);
  const double first = ends[0].item<double>();
  const double last = ends[1].item<double>();
  if (first >= 0 && last <= most) return;
  ThrowOutside(name, absl::StrCat("lie in [0, ", most, "]"), absl::StrCat(first >= 0 ? last : first));
}

int64_t SizeAt(const at::Tensor& tensor, int64_t dimension) { return tensor.dim() == 0 ? 1 : tensor.size(dimension); }

void CheckEmbedding(const BoundedCall& call) {
  const auto weight = TensorOf(call, "weight");
  const auto indices = TensorOf(call, "indices");
  if (weight && indices) CheckRange(*indices, "indices", 0, SizeAt(*weight, 0) - 1);
}

void CheckAlongDimension(const BoundedCall& call) {
  const auto self = TensorOf(call, "self");
  const auto index = TensorOf(call, "index");
  if (self && index) CheckRange(*index, "index", 0, SizeAt(*self, IntOf(call, "dim", 0)) - 1);
}

void CheckIndexFill(const BoundedCall& call) {
  const auto self = TensorOf(call, "self");
  const auto index = TensorOf(call, "index");
  if (!self || !index) return;
  const int64_t size = SizeAt(*self, IntOf(call, "dim", 0));
  CheckRange(*index, "index", -size, size - 1);
}

void CheckTakeAlongDim(const BoundedCall& call) {
  const auto self = TensorOf(call, "self");
  const auto indices = TensorOf(call, "indices");
  if (!self || !indices) return;
  const c10::IValue* dim = Find(call, "dim");
  const int64_t size = dim != nullptr && dim->isInt() ? SizeAt(*self, dim->toInt()) : self->numel();
  CheckRange(*indices, "indices", 0, size - 1);
}

void CheckTake(const BoundedCall& call) {
  const auto self = TensorOf(call, "self");
  const auto index = TensorOf(call, "index");
  if (self && index) CheckRange(*index, "index", -self->numel(), self->numel() - 1);
}

// Of index and index_put: a tensor per dimension, None for all of it; a mask stands for as many dimensions as it has.
void CheckIndexList(const BoundedCall& call) {
  const auto self = TensorOf(call, "self");
  const c10::IValue* list = Find(call, "indices");
  if (!self || list == nullptr || !list->isList()) return;
  int64_t dimension = 0;
  const c10::List<c10::IValue> indices = list->toList();
  for (size_t i = 0; i < indices.size(); ++i) {
    const c10::IValue index = indices.get(i);
    const bool given = index.isTensor() && index.toTensor().defined();
    const bool mask =
        given && (index.toTensor().scalar_type() == at::kBool || index.toTensor().scalar_type() == at::kByte);
    if (given && !mask && dimension < self->dim()) {
      const int64_t size = self->size(dimension);
      CheckRange(index.toTensor(), absl::StrCat("indices[", i, "]"), -size, size - 1);
    }
    dimension += mask ? index.toTensor().dim() : 1;
  }
}

void CheckOneHot(const BoundedCall& call) {
  const auto self = TensorOf(call, "self");
  if (!self) return;
  const int64_t classes = IntOf(call, "num_classes", -1);
  CheckRange(*self, "self", 0, classes > 0 ? classes - 1 : std::numeric_limits<int64_t>::max());
}

int64_t Classes(const at::Tensor& scores) { return SizeAt(scores, scores.dim() > 1 ? 1 : 0); }

void CheckLabels(const BoundedCall& call) {
  const auto self = TensorOf(call, "self");
  const auto target = TensorOf(call, "target");
  if (self && target) CheckRange(*target, "target", 0, Classes(*self) - 1, IntOf(call, "ignore_index", -100));
}

void CheckMarginLabels(const BoundedCall& call) {
  const auto self = TensorOf(call, "self");
  const auto target = TensorOf(call, "target");
  if (self && target) CheckRange(*target, "target", 0, Classes(*self) - 1);
}

void CheckMultilabels(const BoundedCall& call) {
  const auto self = TensorOf(call, "self");
  const auto target = TensorOf(call, "target");
  if (self && target) CheckRange(*target, "target", -1, SizeAt(*self, -1) - 1);
}

void CheckUnpool(const BoundedCall& call) {
  const auto indices = TensorOf(call, "indices");
  const c10::IValue* size = Find(call, "output_size");
  if (!indices || size == nullptr || !size->isIntList()) return;
  int64_t elements = 1;
  for (const int64_t one : size->toIntVector()) {
    if (one < 0 || __builtin_mul_overflow(elements, one, &elements)) {
      ThrowOutside("output_size", "be a number of elements", absl::StrCat(one));
    }
  }
  CheckRange(*indices, "indices", 0, elements - 1);
}

void CheckRepeats(const BoundedCall& call) {
  if (const auto repeats = TensorOf(call, "repeats")) {
    CheckRange(*repeats, "repeats", 0, std::numeric_limits<int64_t>::max());
  }
}

void CheckMaskedScatter(const BoundedCall& call) {
  const auto self = TensorOf(call, "self");
  const auto mask = TensorOf(call, "mask");
  const auto source = TensorOf(call, "source");
  if (!self || !mask || !source) return;
  const int64_t wanted = mask->expand_as(*self).sum().item<int64_t>();
  if (wanted > source->numel()) {
    ThrowOutside("mask", absl::StrCat("choose at most the ", source->numel(), " elements of source"),
                 absl::StrCat(wanted));
  }
}

// Of bernoulli: of the tensor that it draws from, or of the probabilities that it is given.
void CheckProbabilities(const BoundedCall& call) {
  if (const auto p = TensorOf(call, "p")) return CheckNumbers(*p, "p", 1);
  if (Find(call, "p") != nullptr) return;
  if (const auto self = TensorOf(call, "self")) CheckNumbers(*self, "self", 1);
}

void CheckWeights(const BoundedCall& call) {
  if (const auto self = TensorOf(call, "self")) CheckNumbers(*self, "self", std::numeric_limits<float>::max());
}

void CheckBinaryLoss(const BoundedCall& call) {
  CheckProbabilities(call);
  if (const auto target = TensorOf(call, "target")) CheckNumbers(*target, "target", 1);
}

// Of div: the least integer by -1 has no result, and a processor that is asked for it ends the process. The other
// roundings take care of it themselves.
void CheckDivision(const BoundedCall& call) {
  const c10::IValue* rounding = Find(call, "rounding_mode");
  const c10::IValue* by = Find(call, "other");
  const auto self = TensorOf(call, "self");
  if (!self || by == nullptr || rounding == nullptr || !rounding->isString() || rounding->toStringRef() != "trunc") {
    return;
  }
  if (!by->isTensor() && !IsNumber(*by)) return;
  const at::Tensor divisor = by->isTensor() ? by->toTensor() : WrappedNumber(*by);
  const at::ScalarType type = at::result_type(*self, divisor);
  if (type != at::kInt && type != at::kLong) return;
  const int64_t least = type == at::kInt ? std::numeric_limits<int32_t>::min() : std::numeric_limits<int64_t>::min();
  if (!self->to(type).eq(least).logical_and(divisor.to(type).eq(-1)).any().item<bool>()) return;
  ThrowOutside("other", absl::StrCat("not be -1 where self is ", least), "-1");
}

// Of what resizes: by one scale per dimension, here from the last one on. One that would leave less than one
// element reads beside the input.
void CheckScales(const BoundedCall& call) {
  static constexpr std::array<std::array<const char*, 2>, 3> kNames = {
      {{"scales_w", "scales"}, {"scales_h", ""}, {"scales_d", ""}}};
  const auto self = TensorOf(call, "self");
  if (!self) return;
  for (size_t d = 0; d < kNames.size() && static_cast<int64_t>(d) < self->dim(); ++d) {
    for (const char* name : kNames[d]) {
      const c10::IValue* scale = Find(call, name);
      if (scale == nullptr || !scale->isDouble() || scale->toDouble() <= 0) continue;  // that is: none
      const double size = static_cast<double>(self->size(self->dim() - 1 - static_cast<int64_t>(d)));
      if (scale->toDouble() * size >= 0.5) continue;
      ThrowOutside(name, absl::StrCat("leave an element of ", size), absl::StrCat(scale->toDouble()));
    }
  }
}

// Heads of the query that share those of key and value: a number of them by another.
void CheckSharedHeads(const BoundedCall& call) {
  const c10::IValue* shared = Find(call, "enable_gqa");
  if (shared == nullptr || !shared->isBool() || !shared->toBool()) return;
  for (const char* name : {"key", "value"}) {
    const auto tensor = TensorOf(call, name);
    if (tensor && tensor->dim() >= 3 && tensor->size(-3) == 0) ThrowOutside(name, "have heads", "0");
  }
}

}  // namespace

BoundsCheck BoundsOfOperator(std::string_view name) {
  static const auto* const checks = new std::unordered_map<std::string_view, BoundsCheck>{
      {"aten::_upsample_bicubic2d_aa", &CheckScales},
      {"aten::_upsample_bilinear2d_aa", &CheckScales},
      {"aten::bernoulli", &CheckProbabilities},
      {"aten::bernoulli_", &CheckProbabilities},
      {"aten::binary_cross_entropy", &CheckBinaryLoss},
      {"aten::cross_entropy_loss", &CheckLabels},
      {"aten::div", &CheckDivision},
      {"aten::div_", &CheckDivision},
      {"aten::divide", &CheckDivision},
      {"aten::embedding", &CheckEmbedding},
      {"aten::gather", &CheckAlongDimension},
      {"aten::index", &CheckIndexList},
      {"aten::index_add", &CheckAlongDimension},
      {"aten::index_add_", &CheckAlongDimension},
      {"aten::index_copy", &CheckAlongDimension},
      {"aten::index_copy_", &CheckAlongDimension},
      {"aten::index_fill", &CheckIndexFill},
      {"aten::index_fill_", &CheckIndexFill},
      {"aten::index_put", &CheckIndexList},
      {"aten::index_put_", &CheckIndexList},
      {"aten::index_select", &CheckAlongDimension},
      {"aten::masked_scatter", &CheckMaskedScatter},
      {"aten::max_unpool2d", &CheckUnpool},
      {"aten::multi_margin_loss", &CheckMarginLabels},
      {"aten::multilabel_margin_loss", &CheckMultilabels},
      {"aten::multinomial", &CheckWeights},
      {"aten::nll_loss", &CheckLabels},
      {"aten::nll_loss2d", &CheckLabels},
      {"aten::nll_loss_nd", &CheckLabels},
      {"aten::one_hot", &CheckOneHot},
      {"aten::repeat_interleave", &CheckRepeats},
      {"aten::scatter", &CheckAlongDimension},
      {"aten::scatter_", &CheckAlongDimension},
      {"aten::scatter_add", &CheckAlongDimension},
      {"aten::scatter_add_", &CheckAlongDimension},
      {"aten::scatter_reduce", &CheckAlongDimension},
      {"aten::scaled_dot_product_attention", &CheckSharedHeads},
      {"aten::take", &CheckTake},
      {"aten::take_along_dim", &CheckTakeAlongDim},
      {"aten::upsample_bicubic2d", &CheckScales},
      {"aten::upsample_bilinear2d", &CheckScales},
      {"aten::upsample_linear1d", &CheckScales},
      {"aten::upsample_nearest1d", &CheckScales},
      {"aten::upsample_nearest2d", &CheckScales},
      {"aten::upsample_nearest3d", &CheckScales},
      {"aten::upsample_trilinear3d", &CheckScales},
  };
  const auto found = checks->find(name);
  return found == checks->end() ? nullptr : found->second;
}

}  // namespace penstock
