#pragma once

// From a specification to stages that stand on their devices.

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/exec/pipeline.h"
#include "engine/exec/rank_engine.h"
#include "engine/exec/stage.h"
#include "engine/exec/tied_parameters.h"
#include "engine/model/layer_registry.h"
#include "engine/model/loss.h"
#include "engine/model/model_signature.h"
#include "engine/model/ties.h"
#include "engine/plan/plan_request.h"

namespace penstock {

class DeviceWorker;
class PipelineImpl;
class PipelineRanks;

// A specification that was looked at: everything but weights and places.
struct Draft {
  std::vector<LayerSpec> layers;
  BuildOptions build;
  std::unique_ptr<Loss> loss;  // null: none
  ModelSignature signature;
  std::shared_ptr<const PlanningSample> sample;  // of the specification, in the signature's order; null: none
  std::vector<TieGroup> ties;
  PlanRequest request;
  Plan plan;
};

// Checks in the order of fairscale's Pipe: schedule, layers, skips; asks for the plan, which checks the cut, but makes
// none.
absl::StatusOr<Draft> CheckSpecification(const PipelineSpec& spec, const Pipeline::Options& options);

// How to measure this draft: with its sample, if it has one.
ProfileOptions MeasuringOptions(const Pipeline::Options& options, const Draft& draft);

// Asks for the links between ranks, where stages may come to stand on several.
void FindLinks(const Pipeline::Options& options, Draft& draft);

// The same with its plan. Where the plan is open, the best few are placed, tried and dropped again, one after the other
// (plan_trials.h); else nothing is placed.
absl::StatusOr<Draft> MakeDraft(const PipelineSpec& spec, const Pipeline::Options& options);

Clock* ClockOf(const Pipeline::Options& options);

// Claims the memory of the host that the plan needs, if the options have a way to.
absl::Status ClaimMemory(const Pipeline::Options& options, const Plan& plan);

// Stages of one rank with their layers built, where the plan wants them.
struct PlacedStages {
  std::vector<std::unique_ptr<Stage>> stages;
  std::vector<Device> devices;         // of each of them
  std::vector<DeviceWorker*> workers;  // by lane; null: another rank's
  std::vector<TiedPlace> tied;
  int64_t open_dimension = 1;
};

// Fails:     as ClaimMemory, which it calls first; what a layer throws as it is built; DEVICE_NOT_FOUND and the like of
//            the plan's devices.
absl::StatusOr<PlacedStages> PlaceStages(const PipelineSpec& spec, const Pipeline::Options& options, const Draft& draft,
                                         const Plan& plan, Rank self = {});

// What an engine of these stages is made of, but for its plan, metrics and transport.
RankEngine::Parts EngineParts(const PipelineSpec& spec, const Pipeline::Options& options, PlacedStages placed);

// Counts that go nowhere.
std::shared_ptr<PipelineMetrics> MetricsOfPlan(const Plan& plan, Clock* clock);

// Measures what they cost into the plan, and predicts it anew (calibrate.h).
absl::Status Calibrate(const PipelineSpec& spec, const Pipeline::Options& options, const Draft& draft,
                       const PlacedStages& placed, Plan& plan);

// The pipeline of a draft whose plan's stages were placed; nothing is measured. `ranks`: that have the others; null: there
// are none.
std::unique_ptr<PipelineImpl> AssemblePipeline(const PipelineSpec& spec, Pipeline::Options options, Draft draft,
                                               PlacedStages placed, std::unique_ptr<PipelineRanks> ranks = nullptr);

}  // namespace penstock
