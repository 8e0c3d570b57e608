#include "tests/transparency/transparency_cases.h"

#include <ATen/Parallel.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/plan/planner.h"
#include "engine/schedule/generators.h"

namespace penstock::testing {

std::vector<TransparencyCase> AllTransparencyCases() {
  std::vector<TransparencyCase> cases;
  for (const char* model : {"mlp", "gpt"}) {
    for (int m : {1, 3, 8}) {
      for (int stages : {1, 2, 3, 4}) {
        for (const char* schedule : {"gpipe", "1f1b"}) {
          for (CheckpointMode mode : {CheckpointMode::kAlways, CheckpointMode::kExceptLast, CheckpointMode::kNever}) {
            cases.push_back({model, stages, schedule, mode, m});
          }
        }
      }
    }
    for (const ScheduleKind& kind : ScheduleKinds()) {
      if (!kind.trains || kind.name == "gpipe" || kind.name == "1f1b") continue;
      const int stages = 2 * kind.usual_chunks;
      const std::string name(kind.name);
      cases.push_back({model, stages, name, CheckpointMode::kSkipAdjacent, 8, kind.usual_chunks});
      if (MinMicroBatches(kind, 2) > 3) continue;
      cases.push_back({model, stages, name, CheckpointMode::kExceptLast, 3, kind.usual_chunks});
    }
  }
  return cases;
}

std::string Describe(const TransparencyCase& one) {
  return absl::StrCat(one.model, ", ", one.stages, " stages, ", one.schedule, ", ", one.chunks, " chunks, ",
                      std::string(CheckpointModeName(one.checkpoint)), ", m = ", one.micro_batches);
}

PipelineSpec SpecOf(const TransparencyCase& one) {
  PipelineSpec spec;
  spec.model.name = one.model;
  if (one.model == "mlp") {
    spec.model.options = {{"layers", int64_t{5}}, {"width", int64_t{12}}, {"dropout", 0.1}};
    spec.loss.name = "mean_squared_error";
  } else {
    spec.model.options = {{"vocab", int64_t{32}}, {"blocks", int64_t{3}},   {"width", int64_t{16}},
                          {"heads", int64_t{2}},  {"sequence", int64_t{6}}, {"dropout", 0.1}};
    spec.loss.name = "cross_entropy";
  }
  spec.cut.stages = one.stages;
  spec.schedule = {one.schedule, one.micro_batches, one.checkpoint, one.chunks};
  if (one.schedule == "lag") spec.schedule.lag = 2;
  spec.optimizer.name = "adamw";
  spec.optimizer.options = {{"learning_rate", 0.01}, {"weight_decay", 0.1}};
  spec.optimizer.clip_norm = 0.5;
  spec.optimizer.learning_rate_schedule = {"warmup_cosine", 3, 10, 0.1};
  spec.seed = 11;
  return spec;
}

TransparencyBatch BatchOf(const std::string& model, int step) {
  at::Generator generator = InitialGenerator(99, LayerIndex(step));
  if (model == "mlp") {
    const at::Tensor input = at::randn({8, 12}, generator);
    return {{{"input", input}}, at::randn({8, 12}, generator)};
  }
  const at::Tensor tokens = at::randint(32, {8, 7}, generator, at::kLong);
  return {{{"tokens", tokens.narrow(1, 0, 6).contiguous()}}, tokens.narrow(1, 1, 6).contiguous()};
}

const PlainRun& PlainRunOf(const std::string& model, int micro_batches) {
  static auto* runs = new std::map<std::pair<std::string, int>, PlainRun>;
  auto [entry, fresh] = runs->try_emplace({model, micro_batches});
  if (!fresh) return entry->second;
  at::set_num_threads(1);
  const PipelineSpec spec = SpecOf({model, 1, "gpipe", CheckpointMode::kNever, micro_batches});
  PlainReference plain({spec.model, spec.loss, spec.optimizer, spec.seed});
  PlainRun& run = entry->second;
  for (int step = 0; step < kTransparencySteps; ++step) {
    const TransparencyBatch batch = BatchOf(model, step);
    run.steps.push_back(plain.TrainStep({batch.inputs[0].tensor}, batch.target, micro_batches));
  }
  for (const NamedTensor& parameter : plain.Parameters()) {
    run.parameters.push_back({parameter.name, parameter.tensor.detach().clone()});
  }
  run.inference = plain.Infer({BatchOf(model, 0).inputs[0].tensor}, micro_batches).at(0);
  return run;
}

}  // namespace penstock::testing
