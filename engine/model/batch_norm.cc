#include "engine/model/batch_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/device/torch_status.h"
#include "engine/model/input_checks.h"

namespace penstock {

at::Tensor BatchNorm::Apply(const at::Tensor& input, const LayerContext& context) {
  if (input.dim() < 2 || input.size(1) != options_.features) {
    ThrowInputError("batch_norm", "inputs[0].shape[1]", "must be the number of features, after the batch dimension",
                    input.dim() < 2 ? input.dim() : input.size(1));
  }
  const auto normalise = [&](const at::Tensor& mean, const at::Tensor& variance, bool own, double momentum) {
    return at::batch_norm(input, tensors_.weight, tensors_.bias, mean, variance, own, momentum, options_.eps,
                          /*cudnn_enabled=*/true);
  };
  if (!context.training && options_.track) {
    return normalise(tensors_.running_mean, tensors_.running_var, /*own=*/false, 0);
  }
  if (!options_.track) return normalise({}, {}, /*own=*/true, 0);

  // With a momentum of 1, running statistics that start at zero become those of this micro-batch. A recomputation has
  // them too: of bf16 inputs LibTorch computes in float only where a weight or running statistics are float.
  const at::Tensor mean = at::zeros_like(tensors_.running_mean);
  const at::Tensor variance = at::zeros_like(tensors_.running_var);
  const at::Tensor output = normalise(mean, variance, /*own=*/true, 1);
  if (context.recomputing) return output;
  const int64_t count = input.numel() / options_.features;
  if (count == 0) return output;
  Note note{mean.to(at::kDouble), variance.to(at::kDouble), count};
  // Of a single value there is none: 0 divided by 0. Not in place: in double precision the graph holds this very
  // tensor.
  if (count == 1) note.variance = at::zeros_like(note.variance);
  notes_.insert_or_assign(context.micro_batch, std::move(note));
  return output;
}

void BatchNorm::Commit() {
  const at::NoGradGuard no_graph;
  if (notes_.empty()) return;
  if (!deferred_) {
    for (const auto& [micro_batch, note] : notes_) Update(note);
    return;
  }
  auto next = notes_.begin();
  Note all = next->second;
  while (++next != notes_.end()) all = Merged(all, next->second);
  Update(all);
}

void BatchNorm::Discard(MicroBatchIndex first) { notes_.erase(notes_.lower_bound(first), notes_.end()); }

NamedTensors BatchNorm::Notes() const {
  if (notes_.empty()) return {};
  std::vector<at::Tensor> rows_of_means;
  std::vector<at::Tensor> rows_of_variances;
  std::vector<int64_t> counts;
  std::vector<int64_t> micro_batches;
  for (const auto& [micro_batch, note] : notes_) {
    rows_of_means.push_back(note.mean);
    rows_of_variances.push_back(note.variance);
    counts.push_back(note.count);
    micro_batches.push_back(micro_batch.value());
  }
  return {{"mean", at::stack(rows_of_means)},
          {"variance", at::stack(rows_of_variances)},
          {"count", at::tensor(counts)},
          {"micro_batch", at::tensor(micro_batches)}};
}

void BatchNorm::SetNotes(const NamedTensors& notes) {
  notes_.clear();
  if (notes.empty()) return;
  const auto named = [&](const char* name) -> const at::Tensor& {
    for (const NamedTensor& note : notes) {
      if (note.name == name) return note.tensor;
    }
    ThrowStatus(Error(absl::StatusCode::kFailedPrecondition, "MODEL_MISMATCH",
                      absl::StrCat("the notes of a batch norm must have a tensor ", name, ", got none")));
  };
  const at::Device device = tensors_.running_mean.device();
  const std::vector<at::Tensor> means = named("mean").to(device, /*non_blocking=*/false, /*copy=*/true).unbind();
  const std::vector<at::Tensor> variances =
      named("variance").to(device, /*non_blocking=*/false, /*copy=*/true).unbind();
  const at::Tensor counts = named("count").cpu();
  const at::Tensor micro_batches = named("micro_batch").cpu();
  for (size_t row = 0; row < means.size(); ++row) {
    const auto i = static_cast<int64_t>(row);
    notes_[MicroBatchIndex(static_cast<int>(micro_batches[i].item<int64_t>()))] = {means[row], variances.at(row),
                                                                                   counts[i].item<int64_t>()};
  }
}

// Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979. Sums
// of squared deviations add up, and no difference of large numbers is taken, so that nothing cancels and nothing gets
// negative.
BatchNorm::Note BatchNorm::Merged(const Note& left, const Note& right) {
  const auto left_count = static_cast<double>(left.count);
  const auto right_count = static_cast<double>(right.count);
  const double count = left_count + right_count;
  const at::Tensor apart = right.mean - left.mean;
  const at::Tensor deviations = left.variance * (left_count - 1) + right.variance * (right_count - 1) +
                                apart.square() * (left_count * right_count / count);
  return {left.mean + apart * (right_count / count), deviations / (count - 1), left.count + right.count};
}

void BatchNorm::Update(const Note& note) {
  tensors_.num_batches_tracked.add_(1);
  const auto move_by = [&](const auto& share) {
    tensors_.running_mean.copy_(tensors_.running_mean.to(at::kDouble) * (1 - share) + note.mean * share);
    tensors_.running_var.copy_(tensors_.running_var.to(at::kDouble) * (1 - share) + note.variance * share);
  };
  if (options_.momentum.has_value()) return move_by(*options_.momentum);
  move_by(tensors_.num_batches_tracked.to(at::kDouble).reciprocal());  // a number that the host does not wait for
}

}  // namespace penstock
