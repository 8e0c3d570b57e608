#include "tests/exported/program_passes.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/mean.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <utility>

#include "engine/model/run_layer.h"
#include "engine/model/safetensors.h"
#include "engine/program/program_model.h"

namespace penstock {
namespace {

std::string Content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream content;
  content << file.rdbuf();
  return content.str();
}

template <typename T>
T Must(absl::StatusOr<T> result) {
  if (!result.ok()) {
    std::cerr << result.status() << "\n";
    std::exit(1);
  }
  return *std::move(result);
}

}  // namespace

ProgramPasses::ProgramPasses(const std::string& program, const std::string& inputs, const std::string& cuts) {
  const auto model =
      Must(ProgramModel::Create(Must(ReadExportedProgram(std::make_shared<const std::string>(Content(program)))),
                                cuts == "nodes" ? ProgramCuts::kNodes : ProgramCuts::kModules));
  layers_ = Must(BuildProgramLayers(*model));
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& input : Must(ReadSafetensors(Content(inputs))).tensors) tensors.push_back(input.tensor);
  inputs_ = tensors.size() == 1 ? Batch(tensors[0]) : Batch::OfTensors(tensors);
}

Batch ProgramPasses::Forward(bool training) const {
  Batch values = inputs_;
  SkipTracker skips;
  for (size_t i = 0; i < layers_.size(); ++i) {
    KeyedRandom random(1, StepId(0), MicroBatchIndex(0), LayerIndex(static_cast<int32_t>(i)));
    values = RunLayer(layers_[i], values, {.training = training, .random = &random}, skips);
  }
  return values;
}

void ProgramPasses::Train() const {
  ClearGradients();
  Forward(/*training=*/true).TensorAt(0).square().mean().backward();
  for (const NamedLayer& layer : layers_) layer.layer->CommitStatistics();
}

void ProgramPasses::ClearGradients() const {
  for (const NamedLayer& layer : layers_) {
    for (const NamedTensor& parameter : layer.layer->parameters()) {
      at::Tensor tensor = parameter.tensor;
      tensor.mutable_grad() = at::Tensor();
    }
  }
}

}  // namespace penstock
