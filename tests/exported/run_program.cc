// Runs an exported program as tests/exported/compare_with_eager.py wants it:
//   run_program PROGRAM.pt2 INPUTS.safetensors RESULTS.safetensors modules|nodes
// Inputs are called input.0, input.1, ...; results are eval.K and train.K of each output, gradient.NAME of the mean
// square of the first one, buffer.NAME after a commit.

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/mean.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <map>

#include "engine/base/check.h"
#include "engine/device/torch_status.h"
#include "engine/model/safetensors.h"
#include "tests/exported/program_passes.h"

namespace {

using penstock::Batch;

void Run(char** argv) {
  at::set_num_threads(1);
  const penstock::ProgramPasses program(argv[1], argv[2], argv[4]);
  penstock::NamedTensors results;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    results.push_back({name, tensor.detach().contiguous().clone()});
  };
  {
    const at::NoGradGuard no_graph;
    const Batch outputs = program.Forward(/*training=*/false);
    for (size_t i = 0; i < outputs.size(); ++i) add("eval." + std::to_string(i), outputs.TensorAt(i));
  }
  const Batch outputs = program.Forward(/*training=*/true);
  for (size_t i = 0; i < outputs.size(); ++i) add("train." + std::to_string(i), outputs.TensorAt(i));
  outputs.TensorAt(0).square().mean().backward();
  std::map<std::string, at::Tensor> gradients;
  const std::vector<penstock::NamedLayer>& layers = program.layers();
  for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) {  // as backward meets them
    for (const penstock::NamedTensor& parameter : layer->layer->parameters()) {
      if (!parameter.tensor.grad().defined()) continue;
      at::Tensor& sum = gradients[parameter.name.substr(0, parameter.name.find('-'))];
      sum = sum.defined() ? sum.add(parameter.tensor.grad()) : parameter.tensor.grad();
    }
  }
  for (const auto& [name, gradient] : gradients) add("gradient." + name, gradient);
  for (const penstock::NamedLayer& layer : layers) {
    layer.layer->CommitStatistics();
    for (const penstock::NamedTensor& buffer : layer.layer->buffers()) add("buffer." + buffer.name, buffer.tensor);
  }
  std::ofstream file(argv[3], std::ios::binary);
  PENSTOCK_CHECK(penstock::WriteSafetensors(results, {}, [&](std::string_view bytes) {
                   file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
                   return absl::OkStatus();
                 }).ok());
  std::printf("layers %zu\n", layers.size());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "run_program PROGRAM INPUTS RESULTS modules|nodes\n";
    return 2;
  }
  const absl::Status status = penstock::RunTorch([&] { Run(argv); });
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
