#include "engine/optim/update_rule.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros_like.h>
#include <sys/mman.h>

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "engine/base/map_pages.h"

namespace penstock {
namespace {

// Of gradients that are worked on at one time.
constexpr int64_t kPartBytes = 16 << 20;
// From here on the kernel's zeros cost less than those that are written.
constexpr size_t kManyBytes = size_t{16} << 20;

// Laid out as the parameter. Large ones are pages of their own, which the kernel has cleared: nothing writes them again.
at::Tensor Zeros(const at::Tensor& parameter) {
  const size_t bytes = parameter.nbytes();
  const bool large = parameter.is_cpu() && bytes >= kManyBytes && parameter.is_non_overlapping_and_dense();
  void* const pages =
      large ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : MAP_FAILED;
  if (pages == MAP_FAILED) return at::zeros_like(parameter);
  absl::Cleanup unmap = [pages, bytes] { munmap(pages, bytes); };
  MapPages(pages, bytes);
  at::Tensor zeros = at::from_blob(
      pages, parameter.sizes(), parameter.strides(), [bytes](void* gone) { munmap(gone, bytes); }, parameter.options());
  std::move(unmap).Cancel();  // it is the tensor's
  return zeros;
}

}  // namespace

UpdateRule::UpdateRule(std::vector<Slot> slots, RuleTensors tensors)
    : parameters_(std::move(tensors.parameters)), slots_(std::move(slots)) {
  const auto make = [](const Slot& slot, const at::Tensor& parameter) {
    if (slot.shape == Slot::Shape::kParameter) {
      return slot.initial == 0 ? Zeros(parameter.detach()) : at::full_like(parameter.detach(), slot.initial);
    }
    const at::TensorOptions options = parameter.options().dtype(at::kFloat);
    return at::full({}, slot.initial, slot.shape == Slot::Shape::kScalar ? options : options.device(at::kCPU));
  };
  for (const Slot& slot : slots_) {
    Tensors& made = state_.emplace_back();
    for (const NamedTensor& parameter : parameters_) {
      const auto known = tensors.state.find(parameter.name + "/" + slot.name);
      made.push_back(known != tensors.state.end() ? known->second : make(slot, parameter.tensor));
    }
  }
}

void UpdateRule::UpdateInParts(double learning_rate, double scale, bool keep_gradients) {
  const at::NoGradGuard no_grad;
  std::vector<size_t> indices;
  Tensors gradients;
  int64_t bytes = 0;
  const auto update = [&] {
    if (indices.empty()) return;
    if (scale != 1 && !keep_gradients) at::_foreach_mul_(gradients, scale);
    if (scale != 1 && keep_gradients) gradients = at::_foreach_mul(gradients, scale);
    Update(indices, gradients, learning_rate);
    indices.clear();
    gradients.clear();
    bytes = 0;
  };
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& gradient = parameters_[i].tensor.grad();
    if (!gradient.defined()) continue;
    const auto more = static_cast<int64_t>(gradient.nbytes());
    if (bytes + more > kPartBytes) update();
    indices.push_back(i);
    gradients.push_back(gradient);
    bytes += more;
  }
  update();
}

void UpdateRule::Step(double learning_rate, double scale) {
  UpdateInParts(learning_rate, scale, /*keep_gradients=*/false);
}

void UpdateRule::StepKeepingGradients(double learning_rate, double scale) {
  UpdateInParts(learning_rate, scale, /*keep_gradients=*/true);
}

Tensors UpdateRule::Changing(bool ever) const {
  Tensors changing;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& parameter = parameters_[i].tensor;
    if (ever ? !parameter.requires_grad() : !parameter.grad().defined()) continue;
    changing.push_back(parameter);
    for (const Tensors& slot : state_) changing.push_back(slot[i]);
  }
  return changing;
}

NamedTensors UpdateRule::State() const {
  NamedTensors state;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    for (NamedTensor& slot : StateOf(i)) state.push_back(std::move(slot));
  }
  return state;
}

NamedTensors UpdateRule::StateOf(size_t index) const {
  NamedTensors state;
  for (size_t s = 0; s < slots_.size(); ++s) {
    state.push_back({parameters_[index].name + "/" + slots_[s].name, state_[s][index]});
  }
  return state;
}

Tensors UpdateRule::Parameters(const std::vector<size_t>& indices) const {
  Tensors chosen;
  for (size_t i : indices) chosen.push_back(parameters_[i].tensor);
  return chosen;
}

Tensors UpdateRule::SlotTensors(size_t slot, const std::vector<size_t>& indices) const {
  Tensors chosen;
  for (size_t i : indices) chosen.push_back(state_[slot][i]);
  return chosen;
}

Tensors UpdateRule::CountStep(size_t slot, const std::vector<size_t>& indices) const {
  Tensors steps = SlotTensors(slot, indices);
  at::_foreach_add_(steps, 1);
  return steps;
}

}  // namespace penstock
