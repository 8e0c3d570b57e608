#pragma once

// Runs the layers of an exported program one after the other, as a pipeline of one stage does.

#include <ATen/TensorOperators.h>

#include <map>
#include <string>
#include <vector>

#include "engine/device/torch_status.h"
#include "engine/model/run_layer.h"
#include "engine/program/program_model.h"
#include "tests/unit/program/program_archives.h"

namespace penstock::testing {

// A program and what one pass over it gives.
class ProgramRunner {
 public:
  explicit ProgramRunner(const std::string& file, ProgramCuts cuts = ProgramCuts::kModules, SourceOptions options = {})
      : ProgramRunner(ReadExportedProgram(Shared(GoldenFile(file))), cuts, options) {}
  explicit ProgramRunner(absl::StatusOr<ExportedProgram> program, ProgramCuts cuts = ProgramCuts::kModules,
                         SourceOptions options = {}) {
    PENSTOCK_CHECK(program.ok());
    absl::StatusOr<std::shared_ptr<const ProgramModel>> cut = ProgramModel::Create(*std::move(program), cuts);
    if (!cut.ok()) std::fprintf(stderr, "%s\n", cut.status().ToString().c_str());
    PENSTOCK_CHECK(cut.ok());
    model = *std::move(cut);
    absl::StatusOr<std::vector<NamedLayer>> made = BuildProgramLayers(*model, options);
    PENSTOCK_CHECK(made.ok());
    layers = *std::move(made);
  }

  struct Pass {
    bool training = false;
    bool recomputing = false;
    int micro_batch = 0;
  };

  // The model's outputs.
  Batch Forward(const std::vector<at::Tensor>& inputs, const Pass& pass) {
    Batch values = inputs.size() == 1 ? Batch(inputs[0]) : Batch::OfTensors(inputs);
    SkipTracker skips;
    for (size_t i = 0; i < layers.size(); ++i) {
      KeyedRandom random(7, StepId(3), MicroBatchIndex(pass.micro_batch), LayerIndex(static_cast<int32_t>(i)));
      values = RunLayer(layers[i], values,
                        {.training = pass.training,
                         .recomputing = pass.recomputing,
                         .random = pass.training ? &random : nullptr,
                         .micro_batch = MicroBatchIndex(pass.micro_batch)},
                        skips);
    }
    PENSTOCK_CHECK(skips.empty());
    return values;
  }

  // Gradients by the names of state_dict(), the copies of a parameter summed.
  std::map<std::string, at::Tensor> Gradients() const {
    std::map<std::string, at::Tensor> gradients;
    for (const NamedLayer& layer : layers) {
      for (const NamedTensor& parameter : layer.layer->parameters()) {
        if (!parameter.tensor.grad().defined()) continue;
        at::Tensor& sum = gradients[parameter.name.substr(0, parameter.name.find('-'))];
        sum = sum.defined() ? sum + parameter.tensor.grad() : parameter.tensor.grad();
      }
    }
    return gradients;
  }

  at::Tensor Buffer(const std::string& name) const {
    for (const NamedLayer& layer : layers) {
      for (const NamedTensor& buffer : layer.layer->buffers()) {
        if (buffer.name == name) return buffer.tensor;
      }
    }
    return {};
  }

  void Commit() {
    for (const NamedLayer& layer : layers) layer.layer->CommitStatistics();
  }
  void Discard(int first) {
    for (const NamedLayer& layer : layers) layer.layer->DiscardStatistics(MicroBatchIndex(first));
  }

  std::shared_ptr<const ProgramModel> model;
  std::vector<NamedLayer> layers;
};

}  // namespace penstock::testing
