#pragma once

// Programs with something to train on, and pipelines over them.

#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/exec/device_pool.h"
#include "engine/exec/pipeline.h"
#include "engine/program/program_file.h"
#include "tests/support/plain_reference.h"

namespace penstock::testing {

struct ProgramExample {
  std::string program;
  std::string loss;
  std::vector<NamedTensor> inputs;
  at::Tensor target;

  std::vector<Value> Values() const {
    std::vector<Value> values;
    for (const NamedTensor& input : inputs) {
      values.push_back(input.tensor.dim() == 0 ? Value(WholeTensor{input.tensor}) : Value(input.tensor));
    }
    return values;
  }
};

// Caches of three blocks, a block each uses one of them; its outputs are values and the longer caches.
inline ProgramExample CachedExample(int64_t rows) {
  ProgramExample example{"cached_both.pt2", "mean_squared_error", {{"rows", at::randn({rows, 4})}}, {}};
  for (int i = 0; i < 3; ++i) example.inputs.push_back({absl::StrCat("cache_", i), at::randn({rows, 5, 4})});
  example.inputs.push_back({"scale", at::rand({rows, 1})});
  example.target = at::randn({rows, 3});
  return example;
}

// Batch norm, dropout, attention's dropout, buffers that change, ties, several inputs and outputs, None, an input that
// is a number.
inline std::vector<ProgramExample> ProgramExamples(int64_t rows) {
  const at::Tensor labels = at::randint(0, 5, {rows}, at::kLong);
  const at::Tensor ids = at::randint(0, 11, {rows, 7}, at::kLong);
  const at::Tensor images = at::randn({rows, 3, 8, 8});
  return {{"conv_net_both.pt2", "cross_entropy", {{"images", images}}, labels},
          {"conv_net.pt2", "cross_entropy", {{"images", images}}, labels},
          {"language_dropout_both.pt2", "cross_entropy", {{"ids", ids}, {"mask", at::ones({rows, 7}, at::kLong)}}, ids},
          {"counting_both.pt2", "mean_squared_error", {{"x", at::randn({rows, 4})}}, at::randn({rows, 3})},
          {"mixed_dropout_both.pt2",
           "mean_squared_error",
           {{"x", at::randn({rows, 3, 5})}, {"scale", at::rand({rows, 1})}},
           at::randn({rows, 3, 3})},
          {"scaled.pt2",
           "mean_squared_error",
           {{"rows", at::randn({rows, 4})}, {"scale", at::rand({})}},
           at::randn({rows, 3})},
          {"two_ways_both.pt2",
           "mean_squared_error",
           {{"rows", at::randn({rows, 4})}, {"noise", at::randn({rows, 4})}},
           at::randn({rows, 4})},
          {"towers_both.pt2",
           "mean_squared_error",
           {{"left", at::randn({rows, 4})}, {"right", at::randn({rows, 4})}},
           at::randn({rows, 3})},
          CachedExample(rows)};
}

// Reads each file once.
inline std::shared_ptr<const ProgramModel> LoadedProgram(const std::string& name, ProgramCuts cuts) {
  static auto* const loaded = new std::map<std::pair<std::string, ProgramCuts>, std::shared_ptr<const ProgramModel>>;
  std::shared_ptr<const ProgramModel>& model = (*loaded)[{name, cuts}];
  if (model == nullptr) {
    auto read = LoadProgram(PENSTOCK_EXPORTED_FOLDER, name, RealFileSystem(), {}, cuts);
    PENSTOCK_CHECK(read.ok());
    model = *std::move(read);
  }
  return model;
}

// Cut into equal numbers of layers.
inline PipelineSpec ProgramSpec(const ProgramExample& example, int stages, ScheduleSpec schedule,
                                ProgramCuts cuts = ProgramCuts::kModules) {
  PipelineSpec spec;
  spec.model.program = example.program;
  spec.model.loaded_program = LoadedProgram(example.program, cuts);
  const int layers = spec.model.loaded_program->size();
  for (int s = 0; s < stages; ++s) spec.cut.balance.push_back(layers * (s + 1) / stages - layers * s / stages);
  spec.schedule = std::move(schedule);
  spec.optimizer.name = "adamw";
  spec.loss.name = example.loss;
  spec.seed = 11;
  return spec;
}

inline PlainReference PlainOfProgram(const PipelineSpec& spec) {
  return PlainReference({.model = spec.model, .loss = spec.loss, .optimizer = spec.optimizer, .seed = spec.seed});
}

inline absl::StatusOr<std::unique_ptr<Pipeline>> MakeProgramPipeline(const PipelineSpec& spec, DevicePool& pool,
                                                                     Pipeline::Options options = {}) {
  options.devices = &pool;
  options.profile.rows = 2;
  options.profile.repeats = 1;
  return Pipeline::Create(spec, options);
}

}  // namespace penstock::testing
