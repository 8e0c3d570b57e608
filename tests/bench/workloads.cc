#include "tests/bench/workloads.h"

#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include "engine/model/model_signature.h"
#include "engine/plan/profile.h"
#include "engine/program/program_file.h"
#include "tests/bench/rounds.h"

namespace penstock::bench {

namespace {

OptionMap ImageOptions(const std::string& name) {
  if (name == "resnet") return {{"depth", int64_t{101}}, {"width", int64_t{16}}, {"classes", int64_t{10}}};
  if (name == "unet") return {{"convs", int64_t{3}}, {"channels", int64_t{16}}, {"dropout", 0.0}};
  return {{"layers", int64_t{6}}, {"filters", int64_t{32}}, {"classes", int64_t{10}}};
}

}  // namespace

std::vector<std::string> WorkloadNames() { return {"gpt", "mlp", "resnet", "unet", "amoebanet", "uneven"}; }

Workload MakeWorkload(const std::string& name, int stages, int micro_batches, CheckpointMode checkpoint) {
  Workload workload;
  PipelineSpec& spec = workload.spec;
  spec.model.name = name;
  spec.cut.stages = stages;
  spec.schedule = {"1f1b", micro_batches, checkpoint};
  spec.optimizer.name = "sgd";
  spec.seed = 1234;
  if (name == "mlp") {
    workload.rows = 256;
    spec.model.options = {{"layers", int64_t{16}}, {"width", int64_t{1024}}};
    spec.loss.name = "mean_squared_error";
    workload.inputs = {{"input", at::randn({workload.rows, 1024})}};
    workload.target = at::randn({workload.rows, 1024});
  } else if (name == "resnet" || name == "unet" || name == "amoebanet") {
    constexpr int64_t kImage = 64;
    const bool unet = name == "unet";
    workload.rows = unet ? 16 : 32;
    spec.model.options = ImageOptions(name);
    spec.model.options["image"] = kImage;
    spec.loss.name = unet ? "mean_squared_error" : "cross_entropy";
    workload.inputs = {{"image", at::randn({workload.rows, 3, kImage, kImage})}};
    workload.target =
        unet ? at::randn({workload.rows, 1, kImage, kImage}) : at::randint(0, 10, {workload.rows}, at::kLong);
  } else if (name == "uneven") {
    workload.rows = 128;
    spec.model.name.clear();
    const std::vector<int64_t> widths = {256, 256, 512, 1024, 2048, 2048, 1024, 1024, 512, 256, 256, 256, 256};
    for (size_t i = 0; i + 1 < widths.size(); ++i) {
      spec.model.layers.push_back({"linear", "", {{"in", widths[i]}, {"out", widths[i + 1]}}});
      spec.model.layers.push_back({"relu", "", {}});
    }
    spec.loss.name = "mean_squared_error";
    workload.inputs = {{"input", at::randn({workload.rows, widths.front()})}};
    workload.target = at::randn({workload.rows, widths.back()});
  } else {
    workload.rows = 32;
    spec.model.options = {
        {"blocks", int64_t{8}}, {"width", int64_t{256}}, {"heads", int64_t{4}}, {"sequence", int64_t{128}}};
    spec.loss.name = "cross_entropy";
    workload.inputs = {{"tokens", at::randint(0, 256, {workload.rows, 128}, at::kLong)}};
    workload.target = at::randint(0, 256, {workload.rows, 128}, at::kLong);
  }
  return workload;
}

Workload ProgramWorkload(const std::string& file, int64_t rows, int stages, int micro_batches,
                         CheckpointMode checkpoint) {
  const size_t slash = file.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : file.substr(0, slash);
  Workload workload;
  PipelineSpec& spec = workload.spec;
  spec.model.program = file.substr(slash + 1);
  spec.model.loaded_program = Must(LoadProgram(folder, spec.model.program, RealFileSystem()));
  spec.cut.stages = stages;
  spec.schedule = {"1f1b", micro_batches, checkpoint};
  spec.optimizer.name = "sgd";
  spec.loss.name = "mean_squared_error";
  spec.seed = 1234;
  const std::vector<NamedLayer> shapes = Must(BuildLayerShapes(Must(ExpandModel(spec.model))));
  const ModelSignature signature = Must(SignatureOf(shapes, nullptr));
  const int64_t open = shapes.front().layer->LargestOpenDimension();
  const Tensors inputs = ExampleInputs(signature.inputs, rows, open);
  for (size_t i = 0; i < inputs.size(); ++i) workload.inputs.push_back({signature.inputs[i].name, inputs[i]});
  if (signature.outputs.empty() || signature.outputs[0].type != DataType::kFp32) Die("its first output must be FP32");
  std::vector<int64_t> shape = signature.outputs[0].shape;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] < 0) shape[d] = d == 0 ? rows : open;
  }
  workload.target = at::randn(shape);
  workload.rows = rows;
  return workload;
}

}  // namespace penstock::bench
