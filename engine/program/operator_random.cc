#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/device/torch_status.h"
#include "engine/model/layers/dropout.h"
#include "engine/program/operator_call.h"

// Operators that train otherwise than they evaluate. What they draw comes from the keyed generator.

namespace penstock {
namespace {

// LibTorch's attention says with each mask of ours that masks are for tests.
class QuietWarnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

at::Tensor Kept(at::IntArrayRef shape, at::ScalarType type, double probability, const OperatorPass& pass) {
  const Draw draw = pass.layer.random->NextFor(pass.device);
  const at::Tensor kept = at::empty(shape, at::TensorOptions(type).device(draw.device));
  return kept.bernoulli_(probability, draw.generator).to(pass.device);
}

// What attention gives, in the layout that the file was written for. A CPU's kernel lays it out as the query; where that
// makes a copy needless, as it does with PyTorch's own layers, the file holds none, but a view that needs the layout.
at::Tensor LaidOutAsOnCpu(const at::Tensor& mixed, const at::Tensor& query) {
  const bool same = mixed.is_cpu() || mixed.sizes() != query.sizes() || mixed.strides() == query.strides();
  if (same || !query.is_non_overlapping_and_dense()) return mixed;
  return at::empty_strided(mixed.sizes(), query.strides(), mixed.options()).copy_(mixed);
}

bool Draws(const OperatorPass& pass, bool trains) {
  return pass.train_literals.value_or(trains) && pass.layer.training && pass.layer.random != nullptr;
}

}  // namespace

void OperatorCall::RunDropout(std::vector<c10::IValue> stack, std::vector<c10::IValue>& values,
                              const OperatorPass& pass) const {
  const at::Tensor input = stack[0].toTensor();
  const double p = stack[Position("p")].toDouble();
  at::Tensor output = input;
  if (Draws(pass, trains_) && p > 0) {
    if (kind_ == OperatorKind::kDropout) {
      output = Dropout(input, p, pass.layer);
    } else {
      std::vector<int64_t> shape(static_cast<size_t>(input.dim()), 1);
      for (int64_t d = 0; d < std::min<int64_t>(2, input.dim()); ++d) shape[d] = input.size(d);
      const at::Tensor mask = Kept(shape, input.scalar_type(), 1 - p, pass);
      output = input.mul(p < 1 ? mask.div(1 - p) : mask);
    }
    if (changes_ != kNoValue) output = input.copy_(output);
  }
  Keep({output}, values);
}

void OperatorCall::RunAttention(std::vector<c10::IValue> stack, std::vector<c10::IValue>& values,
                                const OperatorPass& pass) const {
  c10::IValue& p = stack[Position("dropout_p")];
  if (!Draws(pass, trains_)) p = 0.0;
  const at::Tensor query = stack[0].toTensor();
  if (p.toDouble() == 0) {
    operator_->callBoxed(stack);
    stack.at(0) = LaidOutAsOnCpu(stack.at(0).toTensor(), query);
    return Keep(std::move(stack), values);
  }
  const at::Tensor key = stack[1].toTensor();
  std::vector<int64_t> shape = query.sizes().vec();
  shape.back() = key.size(-2);
  const at::Tensor kept = Kept(shape, at::kBool, 1 - p.toDouble(), pass);
  QuietWarnings quiet;
  const c10::WarningUtils::WarningHandlerGuard guard(&quiet);
  const auto mixed = at::_scaled_dot_product_attention_math(
      query, key, stack[2].toTensor(), stack[Position("attn_mask")].toOptional<at::Tensor>(), p.toDouble(),
      stack[Position("is_causal")].toBool(), kept, stack[Position("scale")].toOptional<double>(),
      stack[Position("enable_gqa")].toBool());
  Keep({std::get<0>(mixed)}, values);
}

void OperatorCall::RunRandom(std::vector<c10::IValue> stack, std::vector<c10::IValue>& values,
                             const OperatorPass& pass) const {
  if (!pass.layer.training || pass.layer.random == nullptr) {
    ThrowStatus(Error(absl::StatusCode::kFailedPrecondition, "SPEC_INVALID",
                      absl::StrCat("exported program node ", name_, " (", target_,
                                   "): draws random numbers in evaluation: export the model in both modes"))
                    .With("field", name_)
                    .With("value", target_));
  }
  const Draw draw = pass.layer.random->NextFor(pass.device);
  stack[Position("generator")] = draw.generator;
  if (draw.device == pass.device) return Dispatch(std::move(stack), values);
  const at::Tensor changed = changes_ == kNoValue ? at::Tensor() : stack[0].toTensor();
  for (c10::IValue& argument : stack) {
    if (argument.isTensor()) argument = argument.toTensor().to(at::kCPU);
    if (argument.isDevice()) argument = c10::Device(at::kCPU);
  }
  operator_->callBoxed(stack);
  at::Tensor drawn = stack.at(0).toTensor().to(pass.device);
  if (changed.defined()) drawn = changed.copy_(drawn);
  Keep({drawn}, values);
}

void OperatorCall::RunBatchNorm(std::vector<c10::IValue> stack, std::vector<c10::IValue>& values,
                                const OperatorPass& pass, BatchNorm* batch_norm) const {
  const bool trains = pass.train_literals.value_or(trains_);
  if (trains && batch_norm != nullptr && pass.layer.training) {
    return Keep({batch_norm->Apply(stack[0].toTensor(), pass.layer)}, values);
  }
  const bool tracked = !stack[Position("running_mean")].isNone();
  stack[Position("training")] = !tracked;  // without statistics it always takes those of the batch
  Dispatch(std::move(stack), values);
}

}  // namespace penstock
