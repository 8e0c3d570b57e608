#pragma once

// Runs the layers of an exported program one after the other, as a pipeline of one stage does.

#include <ATen/TensorOperators.h>

#include <map>
#include <string>
#include <vector>

#include "engine/device/torch_status.h"
#include "engine/model/exported_program_layers.h"
#include "engine/model/run_layer.h"
#include "tests/unit/exported/program_archives.h"

namespace penstock::testing {

// A program and what one pass over it gives.
class ProgramRunner {
 public:
  explicit ProgramRunner(const std::string& file, ProgramLayersOptions options = {}) {
    absl::StatusOr<ExportedProgram> program = ReadExportedProgram(Shared(GoldenFile(file)));
    PENSTOCK_CHECK(program.ok());
    absl::StatusOr<ProgramLayers> made =
        BuildProgramLayers(std::make_shared<const ExportedProgram>(*std::move(program)), options);
    if (!made.ok()) std::fprintf(stderr, "%s\n", made.status().ToString().c_str());
    PENSTOCK_CHECK(made.ok());
    model = *std::move(made);
  }

  struct Pass {
    bool training = false;
    bool recomputing = false;
    int microbatch = 0;
  };

  // The model's outputs.
  Batch Forward(const std::vector<at::Tensor>& inputs, const Pass& pass) {
    Batch values = inputs.size() == 1 ? Batch(inputs[0]) : Batch::OfTensors(inputs);
    SkipTracker skips;
    for (size_t i = 0; i < model.layers.size(); ++i) {
      KeyedRandom random(7, StepId(3), MicrobatchIndex(pass.microbatch), LayerIndex(static_cast<int32_t>(i)));
      values = RunLayer(model.layers[i], values,
                        {.training = pass.training,
                         .recomputing = pass.recomputing,
                         .random = pass.training ? &random : nullptr,
                         .microbatch = MicrobatchIndex(pass.microbatch)},
                        skips);
    }
    PENSTOCK_CHECK(skips.empty());
    return values;
  }

  // Gradients by the names of state_dict(), the copies of a parameter summed.
  std::map<std::string, at::Tensor> Gradients() const {
    std::map<std::string, at::Tensor> gradients;
    for (const NamedLayer& layer : model.layers) {
      for (const NamedTensor& parameter : layer.layer->parameters()) {
        if (!parameter.tensor.grad().defined()) continue;
        at::Tensor& sum = gradients[parameter.name];
        sum = sum.defined() ? sum + parameter.tensor.grad() : parameter.tensor.grad();
      }
    }
    return gradients;
  }

  at::Tensor Buffer(const std::string& name) const {
    for (const NamedLayer& layer : model.layers) {
      for (const NamedTensor& buffer : layer.layer->buffers()) {
        if (buffer.name == name) return buffer.tensor;
      }
    }
    return {};
  }

  void Commit() {
    for (const NamedLayer& layer : model.layers) layer.layer->CommitStatistics();
  }
  void Discard(int first) {
    for (const NamedLayer& layer : model.layers) layer.layer->DiscardStatistics(MicrobatchIndex(first));
  }

  ProgramLayers model;
};

}  // namespace penstock::testing
