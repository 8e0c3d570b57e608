// Runs an exported program as tests/exported/compare_with_eager.py wants it:
//   run_program PROGRAM.pt2 INPUTS.safetensors RESULTS.safetensors modules|nodes [SECONDS]
// Inputs are called input.0, input.1, ...; results are eval.K and train.K of each output, gradient.NAME of the mean square of
// the first one, buffer.NAME after a commit. With SECONDS, it also prints how many forwards and backwards a second it makes.

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/mean.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>

#include "engine/base/check.h"
#include "engine/device/torch_status.h"
#include "engine/model/exported_program_layers.h"
#include "engine/model/run_layer.h"
#include "engine/model/safetensors.h"

namespace {

using penstock::Batch;

std::string Content(const char* path) {
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

Batch Forward(const std::vector<penstock::NamedLayer>& model, const Batch& inputs, bool training) {
  Batch values = inputs;
  penstock::SkipTracker skips;
  for (size_t i = 0; i < model.size(); ++i) {
    penstock::KeyedRandom random(1, penstock::StepId(0), penstock::MicrobatchIndex(0),
                                 penstock::LayerIndex(static_cast<int32_t>(i)));
    values = penstock::RunLayer(model[i], values, {.training = training, .random = &random}, skips);
  }
  return values;
}

void Run(int argc, char** argv) {
  at::set_num_threads(1);
  const std::string cuts = argv[4];
  const auto model = Must(penstock::ProgramModel::Create(
      Must(penstock::ReadExportedProgram(std::make_shared<const std::string>(Content(argv[1])))),
      cuts == "nodes" ? penstock::ProgramCuts::kNodes : penstock::ProgramCuts::kModules));
  const std::vector<penstock::NamedLayer> layers = Must(penstock::BuildProgramLayers(*model));
  std::vector<at::Tensor> tensors;
  for (const penstock::NamedTensor& input : Must(penstock::ReadSafetensors(Content(argv[2]))).tensors) {
    tensors.push_back(input.tensor);
  }
  const Batch inputs = tensors.size() == 1 ? Batch(tensors[0]) : Batch::OfTensors(tensors);
  penstock::NamedTensors results;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    results.push_back({name, tensor.detach().contiguous().clone()});
  };
  {
    const at::NoGradGuard no_graph;
    const Batch outputs = Forward(layers, inputs, false);
    for (size_t i = 0; i < outputs.size(); ++i) add("eval." + std::to_string(i), outputs.TensorAt(i));
  }
  const Batch outputs = Forward(layers, inputs, true);
  for (size_t i = 0; i < outputs.size(); ++i) add("train." + std::to_string(i), outputs.TensorAt(i));
  outputs.TensorAt(0).square().mean().backward();
  std::map<std::string, at::Tensor> gradients;
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
  if (argc < 6) return;
  const auto begin = std::chrono::steady_clock::now();
  const double seconds = std::atof(argv[5]);
  double passed = 0;
  int rounds = 0;
  for (; passed < seconds; ++rounds) {
    Forward(layers, inputs, true).TensorAt(0).square().mean().backward();
    passed = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  std::printf("milliseconds %.4f\n", passed / rounds * 1e3);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::cerr << "run_program PROGRAM INPUTS RESULTS modules|nodes [SECONDS]\n";
    return 2;
  }
  const absl::Status status = penstock::RunTorch([&] { Run(argc, argv); });
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
