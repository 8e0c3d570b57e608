#include "engine/model/layer.h"

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/model/batch_norm.h"
#include "engine/model/initial_values.h"
#include "engine/tensor/codec.h"

namespace penstock {
namespace {

bool Holds(const NamedTensors& tensors, const std::string& name) {
  return std::any_of(tensors.begin(), tensors.end(), [&](const NamedTensor& known) { return known.name == name; });
}

// Throws for a tensor that the layer can't have: a mistake in the layer, which may be of another library.
void CheckNew(const std::string& name, const at::Tensor& initial, const NamedTensors& parameters,
              const NamedTensors& buffers) {
  TORCH_CHECK(!name.empty() && initial.defined(), "the layer has a tensor without name or value: '", name, "'");
  TORCH_CHECK(!Holds(parameters, name) && !Holds(buffers, name), "the layer has two tensors called '", name, "'");
}

}  // namespace

Layer::Layer() = default;
Layer::~Layer() = default;

at::Tensor Layer::AddParameter(std::string name, at::Tensor initial) {
  CheckNew(name, initial, parameters_, buffers_);
  at::Tensor parameter = initial.detach().requires_grad_(true);
  parameters_.push_back({std::move(name), parameter});
  return parameter;
}

at::Tensor Layer::AddBuffer(std::string name, at::Tensor initial) {
  CheckNew(name, initial, parameters_, buffers_);
  buffers_.push_back({std::move(name), initial});
  return initial;
}

void Layer::AdoptTensors(const std::string& name, const Layer& inner) {
  for (const NamedTensor& one : inner.parameters())
    parameters_.push_back({absl::StrCat(name, ".", one.name), one.tensor});
  for (const NamedTensor& one : inner.buffers()) buffers_.push_back({absl::StrCat(name, ".", one.name), one.tensor});
}

BatchNorm* Layer::AddBatchNorm(const std::string& name, const LayerRequest& request, int64_t features) {
  return AddBatchNorm(name, request, BatchNormOptions{.features = features});
}

BatchNorm* Layer::AddBatchNorm(const std::string& name, const LayerRequest& request, const BatchNormOptions& options) {
  const std::string prefix = name.empty() ? "" : name + ".";
  const std::vector<int64_t> shape = {options.features};
  BatchNorm::Tensors tensors;
  if (options.affine) {
    tensors.weight = AddParameter(prefix + "weight", InitialConstant(request, shape, 1));
    tensors.bias = AddParameter(prefix + "bias", InitialConstant(request, shape, 0));
  }
  if (options.track) {
    tensors.running_mean = AddBuffer(prefix + "running_mean", InitialConstant(request, shape, 0));
    tensors.running_var = AddBuffer(prefix + "running_var", InitialConstant(request, shape, 1));
    const at::Device device = tensors.running_mean.device();
    tensors.num_batches_tracked =
        AddBuffer(prefix + "num_batches_tracked", at::zeros({}, at::TensorOptions(at::kLong).device(device)));
  }
  batch_norms_.push_back(
      std::make_unique<BatchNorm>(options, options.deferred.value_or(request.deferred_batch_norm), std::move(tensors)));
  return batch_norms_.back().get();
}

void Layer::Cast(at::ScalarType type) {
  // The tensors' content is replaced, not the tensors: whoever holds one, holds the new content.
  for (NamedTensor& parameter : parameters_) parameter.tensor.set_data(parameter.tensor.detach().to(type));
  for (NamedTensor& buffer : buffers_) {
    if (buffer.tensor.is_floating_point()) buffer.tensor.set_data(buffer.tensor.to(type));
  }
  float_type_ = *ToDataType(type);
}

void Layer::CommitStatistics() {
  for (const auto& batch_norm : batch_norms_) batch_norm->Commit();
}

void Layer::DiscardStatistics(MicroBatchIndex first) {
  for (const auto& batch_norm : batch_norms_) batch_norm->Discard(first);
}

NamedTensors Layer::Notes() const {
  NamedTensors notes;
  for (size_t i = 0; i < batch_norms_.size(); ++i) AddUnder(std::to_string(i), batch_norms_[i]->Notes(), &notes);
  return notes;
}

void Layer::SetNotes(const NamedTensors& notes) {
  for (size_t i = 0; i < batch_norms_.size(); ++i) batch_norms_[i]->SetNotes(TensorsUnder(std::to_string(i), notes));
}

void Layer::DeclareStash(const std::string& name, SkipName outside) {
  stashes_.push_back(name);
  outside_[name] = std::move(outside);
}

void Layer::DeclarePop(const std::string& name, SkipName outside) {
  pops_.push_back(name);
  outside_[name] = std::move(outside);
}

SkipDeclaration Layer::skips() const {
  SkipDeclaration declaration;
  for (const std::string& name : stashes_) declaration.stashes.push_back(Isolated(name));
  for (const std::string& name : pops_) declaration.pops.push_back(Isolated(name));
  return declaration;
}

void Layer::Isolate(const SkipIsolation& isolation) {
  const std::vector<std::string>& only = isolation.only;
  for (auto& [name, outside] : outside_) {
    if (only.empty() || std::count(only.begin(), only.end(), outside.name) != 0) {
      outside.skip_namespace = isolation.skip_namespace;
    }
  }
}

}  // namespace penstock
