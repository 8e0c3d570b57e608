// What a stage keeps between runs: gradients of contributions, tied parameters, undo, and what is saved and counted.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/rank_message.h"
#include "engine/base/shape_text.h"
#include "engine/device/copy_tensors.h"
#include "engine/device/torch_status.h"
#include "engine/exec/stage.h"
#include "engine/optim/gradient_norm.h"
#include "engine/optim/parameter_groups.h"
#include "engine/tensor/micro_batch.h"

namespace penstock {
namespace {

constexpr char kGradients[] = "gradient";
constexpr char kNotes[] = "note";

}  // namespace

void Stage::BeginContribution(bool accumulating) {
  if (contributing_) return;
  contributing_ = true;
  earlier_.assign(parameters_.size(), at::Tensor());
  added_.assign(parameters_.size(), false);
  if (!accumulating) return;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    earlier_[i] = std::exchange(parameters_[i].tensor.mutable_grad(), at::Tensor());
  }
}

// LibTorch lets a parameter take a gradient that is a view, and another one, of an input say, be a view of the same
// elements. What is added to the one in place would change the other.
void Stage::OwnGradients() {
  for (NamedTensor& parameter : parameters_) {
    at::Tensor& gradient = parameter.tensor.mutable_grad();
    if (gradient.defined()) gradient = OwnElements(gradient);
  }
}

// The same bits as if the backward had added to them: of two numbers the order does not matter.
void Stage::AddEarlierGradients() {
  const at::NoGradGuard no_graph;
  for (size_t i = 0; i < earlier_.size(); ++i) {
    at::Tensor& gradient = parameters_[i].tensor.mutable_grad();
    if (added_[i] || !earlier_[i].defined() || !gradient.defined()) continue;
    gradient.add_(earlier_[i]);
    added_[i] = true;
  }
}

void Stage::EndContribution(bool keep, MicroBatchIndex first) {
  for (size_t i = 0; i < earlier_.size(); ++i) {
    const bool reached = added_[i] || !earlier_[i].defined();
    if (!keep || !reached) parameters_[i].tensor.mutable_grad() = earlier_[i];
  }
  if (!keep) DiscardStatistics(first);
  contributing_ = false;
  earlier_.clear();
}

void Stage::ClearGradients() {
  for (NamedTensor& parameter : parameters_) parameter.tensor.mutable_grad().reset();
  summed_ties_ = false;
}

void Stage::CommitStatistics() {
  for (const NamedLayer& layer : parts_.layers) layer.layer->CommitStatistics();
}

void Stage::DiscardStatistics(MicroBatchIndex first) {
  for (const NamedLayer& layer : parts_.layers) layer.layer->DiscardStatistics(first);
}

NamedTensors Stage::Accumulated() const {
  NamedTensors gradients;
  for (const NamedTensor& parameter : parameters_) {
    const at::Tensor& gradient = parameter.tensor.grad();
    if (gradient.defined()) gradients.push_back({parameter.name, gradient});
  }
  NamedTensors accumulated;
  AddUnder(kGradients, std::move(gradients), &accumulated);
  NamedTensors notes;
  for (const NamedLayer& layer : parts_.layers) AddUnder(layer.name, layer.layer->Notes(), &notes);
  AddUnder(kNotes, std::move(notes), &accumulated);
  return accumulated;
}

void Stage::SetAccumulated(const NamedTensors& accumulated) {
  const at::NoGradGuard no_graph;
  Tensors gradients(parameters_.size());
  std::unordered_map<std::string, const at::Tensor*> given;
  const NamedTensors named = TensorsUnder(kGradients, accumulated);
  for (const NamedTensor& gradient : named) given.emplace(gradient.name, &gradient.tensor);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto found = given.find(parameters_[i].name);
    if (found == given.end()) continue;
    const at::Tensor& parameter = parameters_[i].tensor;
    if (found->second->sizes() != parameter.sizes() || found->second->scalar_type() != parameter.scalar_type()) {
      ThrowStatus(Error(absl::StatusCode::kFailedPrecondition, "MODEL_MISMATCH",
                        absl::StrCat("the gradient of ", parameters_[i].name, " must have the shape ",
                                     ShapeText(parameter.sizes()), ", got ", ShapeText(found->second->sizes()))));
    }
    // Laid out as a backward lays it out: the last bit of a norm depends on that.
    gradients[i] = at::empty_like(parameter, at::TensorOptions().requires_grad(false));
    gradients[i].copy_(*found->second);
  }
  const NamedTensors notes = TensorsUnder(kNotes, accumulated);
  for (const NamedLayer& layer : parts_.layers) layer.layer->SetNotes(TensorsUnder(layer.name, notes));
  for (size_t i = 0; i < parameters_.size(); ++i) parameters_[i].tensor.mutable_grad() = std::move(gradients[i]);
}

void Stage::ShareTiedGradients(TiedGradients& board) const {
  for (const StageTie& tie : parts_.ties) {
    for (const StageTie::Use& use : tie.uses) {
      board.at(tie.group).at(use.position) = parameters_[use.parameter].tensor.grad();
    }
  }
}

at::Tensor Stage::SumOfUses(const StageTie& tie, const TiedGradients& board) const {
  const NamedTensor& parameter = parameters_[tie.uses[0].parameter];
  at::Tensor sum;
  for (const at::Tensor& gradient : board.at(tie.group)) {
    if (!gradient.defined()) continue;
    if (gradient.sizes() != parameter.tensor.sizes() || gradient.scalar_type() != parameter.tensor.scalar_type()) {
      ThrowStatus(BadRankMessage("ties.gradients",
                                 absl::StrCat("must be as ", parameter.name, ", ", ShapeText(parameter.tensor.sizes())),
                                 ShapeText(gradient.sizes())));
    }
    const at::Tensor here = ToDevice(gradient, parts_.device);  // another stage's may stand elsewhere
    if (sum.defined()) {
      sum.add_(here);
    } else {
      sum = here.clone();
    }
  }
  return sum;
}

std::vector<at::Tensor> Stage::SumTiedGradients(const TiedGradients& board) {
  const at::NoGradGuard no_graph;
  summed_ties_ = true;
  for (const StageTie& tie : parts_.ties) {
    const at::Tensor sum = SumOfUses(tie, board);
    for (size_t u = 0; u < tie.uses.size(); ++u) {
      parameters_[tie.uses[u].parameter].tensor.mutable_grad() = u == 0 ? sum : at::Tensor();
    }
  }
  return GradientNorms(LearnedParameters());
}

void Stage::RestoreTiedGradients(const TiedGradients& board) {
  if (!std::exchange(summed_ties_, false)) return;
  for (const StageTie& tie : parts_.ties) {
    for (const StageTie::Use& use : tie.uses) {
      parameters_[use.parameter].tensor.mutable_grad() = board.at(tie.group).at(use.position);
    }
  }
}

void Stage::Keep(const at::Tensor& tensor, bool always) {
  Copy& copy = copies_[tensor.unsafeGetTensorImpl()];
  if (!copy.before.defined()) {
    copy.before = at::empty_like(tensor, at::TensorOptions().requires_grad(false));
    copy.tensor = tensor;
  }
  if (always || copy.version != static_cast<int64_t>(tensor._version())) copy.before.copy_(tensor);
  copy.version = static_cast<int64_t>(tensor._version());
  copy.kept = true;
}

void Stage::KeepForUndo() {
  if (!parts_.undo) return;
  const at::NoGradGuard no_graph;
  for (auto& [key, copy] : copies_) copy.kept = false;
  // Fused steps need not count as changes.
  for (const at::Tensor& tensor : optimizer_->Changing()) Keep(tensor, /*always=*/true);
  for (const NamedLayer& layer : parts_.layers) {
    for (const NamedTensor& buffer : layer.layer->buffers()) Keep(buffer.tensor, /*always=*/false);
  }
}

void Stage::TouchMemory() {
  if (!parts_.undo) return;
  const at::NoGradGuard no_graph;
  for (const at::Tensor& tensor : optimizer_->Changing(/*ever=*/true)) Keep(tensor, /*always=*/true);
  for (auto& [key, copy] : copies_) copy.kept = false;
}

void Stage::Step(double learning_rate, double scale) {
  parts_.undo ? optimizer_->StepKeepingGradients(learning_rate, scale) : optimizer_->Step(learning_rate, scale);
}

void Stage::Undo() {
  const at::NoGradGuard no_graph;
  for (auto& [key, copy] : copies_) {
    if (copy.kept) copy.tensor.copy_(copy.before);
  }
}

std::vector<bool> Stage::IsLearnedHere() const {
  std::vector<bool> learned(parameters_.size(), true);
  for (const StageTie& tie : parts_.ties) {
    for (size_t u = 0; u < tie.uses.size(); ++u) learned[tie.uses[u].parameter] = u == 0 && tie.owner;
  }
  return learned;
}

NamedTensors Stage::LearnedParameters() const {
  const std::vector<bool> learned = IsLearnedHere();
  NamedTensors parameters;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (learned[i]) parameters.push_back(parameters_[i]);
  }
  return parameters;
}

void Stage::FreezeGroups(const std::vector<ParameterGroup>& groups) {
  const std::vector<std::string> names = SavedNames(parts_, parameters_);
  for (size_t i = 0; i < names.size(); ++i) {
    parameters_[i].tensor.set_requires_grad(!IsFrozen(groups, names[i]));
  }
}

NamedTensors Stage::Gradients(const TiedGradients& board) const {
  const std::vector<bool> learned = IsLearnedHere();
  std::vector<at::Tensor> gradients;
  for (const NamedTensor& parameter : parameters_) gradients.push_back(parameter.tensor.grad());
  for (const StageTie& tie : parts_.ties) {
    if (tie.owner) gradients[tie.uses[0].parameter] = SumOfUses(tie, board);
  }
  NamedTensors named;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (learned[i] && gradients[i].defined()) named.push_back({parameters_[i].name, gradients[i]});
  }
  return named;
}

NamedTensors Stage::SavedTensors() const {
  const std::vector<bool> saved = IsLearnedHere();
  NamedTensors tensors;
  size_t next = 0;
  for (const NamedLayer& layer : parts_.layers) {
    for (size_t i = 0; i < layer.layer->parameters().size(); ++i, ++next) {
      if (saved[next]) tensors.push_back({parameters_[next].name, parameters_[next].tensor.detach()});
    }
    for (const NamedTensor& buffer : layer.layer->buffers()) {
      tensors.push_back({layer.TensorName(buffer.name), buffer.tensor});
    }
  }
  return tensors;
}

StageBytesHeld Stage::BytesHeld() const {
  StageBytesHeld bytes;
  std::set<const void*> seen;
  for (const NamedTensor& parameter : parameters_) {
    if (seen.insert(parameter.tensor.data_ptr()).second) bytes.weights += ByteSize(parameter.tensor);
  }
  for (const NamedLayer& layer : parts_.layers) bytes.buffers += ByteSize(layer.layer->buffers());
  bytes.optimizer = ByteSize(optimizer_->State());
  return bytes;
}

int64_t Stage::GradientBytes() const {
  int64_t bytes = 0;
  for (const NamedTensor& parameter : parameters_) {
    const at::Tensor& gradient = parameter.tensor.grad();
    if (gradient.defined()) bytes += ByteSize(gradient);
  }
  return bytes + ByteSize(earlier_);
}

int64_t Stage::UndoBytes() const {
  int64_t bytes = 0;
  for (const auto& [key, copy] : copies_) bytes += ByteSize(copy.before);
  return bytes;
}

NamedTensors Stage::Replicas() const {
  NamedTensors tensors;
  for (const StageTie& tie : parts_.ties) {
    if (!tie.owner) tensors.push_back({tie.name, parameters_[tie.uses[0].parameter].tensor.detach()});
  }
  return tensors;
}

// The optimizer names its slots parameter/slot, as the parameter is saved; a replica's are saved by another stage.
NamedTensors Stage::SavedOptimizerState() const {
  NamedTensors slots = optimizer_->State();
  for (const StageTie& tie : parts_.ties) {
    if (tie.owner) continue;
    const std::string prefix = tie.name + "/";
    slots.erase(
        std::remove_if(slots.begin(), slots.end(),
                       [&](const NamedTensor& slot) { return slot.name.compare(0, prefix.size(), prefix) == 0; }),
        slots.end());
  }
  return slots;
}

NamedTensors Stage::OptimizerReplicas() const {
  NamedTensors replicas;
  for (const NamedTensor& slot : optimizer_->State()) {
    for (const StageTie& tie : parts_.ties) {
      if (!tie.owner && slot.name.starts_with(tie.name + "/")) replicas.push_back(slot);
    }
  }
  return replicas;
}

}  // namespace penstock
