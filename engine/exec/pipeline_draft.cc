#include "engine/exec/pipeline_draft.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/shape_text.h"
#include "engine/base/status_macros.h"
#include "engine/device/copy_tensors.h"
#include "engine/device/torch_status.h"
#include "engine/exec/calibrate.h"
#include "engine/exec/device_pool.h"
#include "engine/exec/device_worker.h"
#include "engine/exec/pipeline_group.h"
#include "engine/exec/plan_trials.h"
#include "engine/exec/signature_check.h"
#include "engine/model/skip_spec.h"
#include "engine/optim/parameter_groups.h"
#include "engine/plan/device_cut.h"
#include "engine/plan/memory.h"
#include "engine/plan/named_cut.h"
#include "engine/plan/planner.h"
#include "engine/plan/skip_layout.h"
#include "engine/tensor/codec.h"

namespace penstock {
namespace {

// This process's devices first, then those of the other ranks. Only who names devices of this process alone needs to know
// no others.
absl::StatusOr<std::vector<Device>> UsableDevices(const PipelineSpec& spec, const Pipeline::Options& options) {
  std::vector<Device> all = options.devices->devices();
  const auto find = [&all](const std::string& name) {
    return std::find_if(all.begin(), all.end(),
                        [wanted = CanonicalDeviceName(name)](const Device& one) { return one.name == wanted; });
  };
  const auto is_here = [&](const std::string& name) { return find(name) != all.end(); };
  const bool alone = !spec.devices.empty() && std::all_of(spec.devices.begin(), spec.devices.end(), is_here);
  if (options.group != nullptr && !alone) {
    PENSTOCK_ASSIGN_OR_RETURN(std::vector<Device> others, options.group->Devices(options.devices->devices()));
    std::move(others.begin(), others.end(), std::back_inserter(all));
  }
  if (spec.devices.empty()) return all;
  std::vector<Device> devices;
  for (const std::string& name : spec.devices) {
    const auto found = find(name);
    if (found == all.end()) return NoSuchDevice(name, all);
    devices.push_back(*found);
  }
  return devices;
}

std::vector<SkipPort> PortsOf(const Plan& plan, int stage, bool incoming) {
  std::vector<SkipPort> ports;
  for (const SkipRoute& route : plan.skips) {
    const int here = incoming ? route.edge.to : route.edge.from;
    const int there = incoming ? route.edge.from : route.edge.to;
    if (here != stage) continue;
    ports.push_back({.peer = there, .names = route.names, .inputs = route.inputs, .outputs = route.outputs});
  }
  return ports;
}

// Whether stages may come to stand in other processes.
bool MayBeElsewhere(const PlanRequest& request) {
  const std::vector<Device>& devices = request.devices;
  const std::vector<int>& ranks = request.cut.ranks;
  return std::any_of(devices.begin(), devices.end(), [](const Device& device) { return device.rank != Rank(0); }) ||
         std::any_of(ranks.begin(), ranks.end(), [](int rank) { return rank != 0; });
}

std::vector<Rank> RankOfLayer(const Plan& plan) {
  std::vector<Rank> ranks;
  for (const StagePlan& stage : plan.stages) ranks.insert(ranks.end(), stage.layers.size(), stage.rank);
  return ranks;
}

// The layers of a rank, and the first uses of what it uses of tied parameters, whose initial values count.
std::vector<bool> LayersOf(Rank self, const Plan& plan, const std::vector<TieGroup>& ties) {
  const std::vector<Rank> ranks = RankOfLayer(plan);
  std::vector<bool> wanted;
  for (const Rank rank : ranks) wanted.push_back(rank == self);
  for (const TieGroup& tie : ties) {
    const bool used =
        std::any_of(tie.uses.begin(), tie.uses.end(), [&](const TiedUse& use) { return ranks[use.layer] == self; });
    if (used) wanted[tie.uses.at(0).layer] = true;
  }
  return wanted;
}

// The declared ties, and those that layers make among themselves: where no rank has all layers, none can know those.
absl::StatusOr<std::vector<TieGroup>> AllTies(const Draft& draft, const Plan& plan,
                                              const std::vector<NamedLayer>& layers) {
  std::vector<std::string> device_of_layer;
  for (const StagePlan& stage : plan.stages) {
    device_of_layer.insert(device_of_layer.end(), stage.layers.size(), stage.device);
  }
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<TieGroup> ties, FindSharedParameters(layers, device_of_layer));
  const bool over_ranks = std::any_of(plan.stages.begin(), plan.stages.end(),
                                      [&](const StagePlan& stage) { return stage.rank != plan.stages.front().rank; });
  if (over_ranks && !ties.empty()) {
    const TiedUse& use = ties[0].uses.back();
    return DuplicateParameters(layers[use.layer].TensorName(layers[use.layer].layer->parameters()[use.parameter].name));
  }
  ties.insert(ties.end(), draft.ties.begin(), draft.ties.end());
  return ties;
}

// Of every parameter, as a checkpoint names it: a tied one by its first use.
std::vector<std::string> SavedNames(const std::vector<NamedLayer>& layers, const std::vector<TieGroup>& ties) {
  std::set<std::pair<int, int>> later_uses;
  for (const TieGroup& tie : ties) {
    for (size_t u = 1; u < tie.uses.size(); ++u) later_uses.emplace(tie.uses[u].layer, tie.uses[u].parameter);
  }
  std::vector<std::string> names;
  for (size_t i = 0; i < layers.size(); ++i) {
    const NamedTensors& parameters = layers[i].layer->parameters();
    for (size_t p = 0; p < parameters.size(); ++p) {
      if (!later_uses.contains({static_cast<int>(i), static_cast<int>(p)})) {
        names.push_back(layers[i].TensorName(parameters[p].name));
      }
    }
  }
  return names;
}

std::vector<TiedPlace> TiedPlaces(const std::vector<TieGroup>& groups, const std::vector<NamedLayer>& layers,
                                  const Plan& plan) {
  const std::vector<Rank> rank_of_layer = RankOfLayer(plan);
  std::vector<TiedPlace> places;
  for (const TieGroup& group : groups) {
    const TiedUse& first = group.uses.at(0);
    const NamedLayer& layer = layers[first.layer];
    TiedPlace& place = places.emplace_back();
    place.name = layer.TensorName(layer.layer->parameters()[first.parameter].name);
    for (const TiedUse& use : group.uses) place.ranks.push_back(rank_of_layer[use.layer]);
  }
  return places;
}

// Puts the tensors of a stage's layers where the stage stands.
absl::Status PlaceLayers(const std::vector<NamedLayer>& layers, const StagePlan& stage, const Device& device) {
  if (device.kind == DeviceKind::kCpu) return absl::OkStatus();
  return RunTorch([&] {
    for (size_t i = 0; i < stage.layers.size(); ++i) {
      const Layer& layer = *layers[stage.first_layer + i].layer;
      for (const NamedTensors* tensors : {&layer.parameters(), &layer.buffers()}) {
        for (NamedTensor named : *tensors) named.tensor.set_data(ToDevice(named.tensor.detach(), device));
      }
    }
  });
}

absl::Status SampleError(const std::string& field, const std::string& problem, const std::string& value) {
  return Error(absl::StatusCode::kInvalidArgument, "TENSOR_SIGNATURE",
               absl::StrCat(field, ": ", problem, ", got ", value))
      .With("field", field)
      .With("value", value);
}

absl::Status CheckSampleRows(const at::Tensor& tensor, const std::string& field) {
  if (tensor.dim() == 0 || tensor.size(0) > 0) return absl::OkStatus();
  return SampleError(field, "must have at least one row to measure with", ShapeText(tensor.sizes()));
}

// Inputs in the order of the caller. What the signature says of each has been checked; where it says nothing, all that
// are split have the rows of the first.
absl::Status CheckSampleInputs(const NamedValues& inputs, bool known) {
  const at::Tensor* first = nullptr;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor* tensor = inputs[i].value.tensor();
    if (tensor == nullptr) continue;
    const std::string field = absl::StrCat("sample.inputs[", i, "].shape");
    PENSTOCK_RETURN_IF_ERROR(CheckSampleRows(*tensor, field));
    if (known || tensor->dim() == 0) continue;
    if (first == nullptr) first = tensor;
    if (tensor->size(0) != first->size(0)) {
      return SampleError(field, absl::StrCat("must have ", first->size(0), " rows as the first"),
                         ShapeText(tensor->sizes()));
    }
  }
  return absl::OkStatus();
}

// A target for so many rows of inputs; 0: none of them is split.
absl::Status CheckSampleTarget(const at::Tensor& target, int64_t rows, const ModelSignature& signature,
                               const Loss* loss, const LossSpec& loss_spec) {
  if (loss == nullptr || signature.targets.empty()) {
    return Error(absl::StatusCode::kInvalidArgument, "FIELD_INVALID",
                 "sample.target: must not be set, for the pipeline has no loss that takes one")
        .With("field", "sample.target")
        .With("value", "a tensor");
  }
  std::vector<TensorSignature> wanted = signature.targets;
  wanted[0].name = "target";
  PENSTOCK_RETURN_IF_ERROR(MatchSignature(wanted, {{"target", Value(target)}}, "sample.target").status());
  PENSTOCK_RETURN_IF_ERROR(CheckSampleRows(target, "sample.target[0].shape"));
  if (rows == 0) {
    return SampleError("sample.inputs", "at least one must be a tensor that is split into rows",
                       "only whole tensors and plain values");
  }
  if (target.dim() == 0 || target.size(0) != rows) {
    return SampleError("sample.target[0].shape", absl::StrCat("must have ", rows, " rows as the inputs"),
                       ShapeText(target.sizes()));
  }
  PENSTOCK_ASSIGN_OR_RETURN(const int output, LossOutput(loss_spec, signature.outputs, "spec.loss"));
  const absl::Status fits =
      RunTorch([&] { loss->CheckValues(target, signature.outputs.empty() ? nullptr : &signature.outputs[output]); });
  if (fits.ok()) return fits;
  return WithValue(WithPrefix(fits, "sample."), "field", "sample.target");
}

// The same values in the order of the signature. What is wrong with them is told here, before anything is measured.
absl::StatusOr<std::shared_ptr<const PlanningSample>> MatchSample(const PlanningSample& sample,
                                                                  const ModelSignature& signature, const Loss* loss,
                                                                  const LossSpec& loss_spec) {
  PlanningSample matched;
  NamedValues inputs = sample.inputs;
  const bool alone = inputs.size() == 1 && signature.inputs.size() == 1;
  if (alone && inputs[0].name.empty()) inputs[0].name = signature.inputs[0].name;
  PENSTOCK_ASSIGN_OR_RETURN(matched.inputs, MatchSignature(signature.inputs, inputs, "sample.inputs"));
  const bool known = std::none_of(signature.inputs.begin(), signature.inputs.end(),
                                  [](const TensorSignature& input) { return input.any; });
  PENSTOCK_RETURN_IF_ERROR(CheckSampleInputs(inputs, known));
  if (sample.target.defined()) {
    PENSTOCK_RETURN_IF_ERROR(CheckSampleTarget(sample.target, RowsOf(matched.inputs), signature, loss, loss_spec));
    matched.target = sample.target;
  }
  return std::make_shared<const PlanningSample>(std::move(matched));
}

// Requests that are batched stand row behind row, so that the number of rows must be open. What no signature tells is
// seen when they come.
absl::Status CheckOpenRows(const std::vector<TensorSignature>& inputs) {
  for (const TensorSignature& input : inputs) {
    if (input.any) return absl::OkStatus();
    if (!input.shape.empty() && input.shape.front() < 0) continue;
    return Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID",
                 absl::StrCat("spec.dynamic_batching: input ", input.name, " must have an open number of rows, got ",
                              ShapeText(input.shape)))
        .With("field", "spec.dynamic_batching")
        .With("value", ShapeText(input.shape));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Draft> CheckSpecification(const PipelineSpec& spec, const Pipeline::Options& options) {
  Draft draft;
  PENSTOCK_RETURN_IF_ERROR(CheckSchedule(spec.schedule));
  PENSTOCK_ASSIGN_OR_RETURN(draft.layers, ExpandModel(spec.model));
  PENSTOCK_RETURN_IF_ERROR(CheckOptimizer(spec.optimizer));
  if (!spec.loss.name.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(draft.loss, MakeLoss(spec.loss));
  }
  draft.build = BuildOptionsOf(spec.model);
  // Shapes take no memory: what doesn't fit together, or not at all, is found before anything is built.
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<NamedLayer> shapes, BuildLayerShapes(draft.layers, draft.build));
  std::vector<std::string> names;
  std::vector<SkipDeclaration> skips;
  std::vector<int64_t> parameter_bytes;
  for (const NamedLayer& layer : shapes) {
    names.push_back(layer.name);
    skips.push_back(layer.layer->skips());
    parameter_bytes.push_back(ByteSize(layer.layer->parameters()));
  }
  PENSTOCK_RETURN_IF_ERROR(CheckSkips(names, skips));
  PENSTOCK_ASSIGN_OR_RETURN(draft.ties, CheckTies(TiesOf(spec.model), shapes));
  PENSTOCK_RETURN_IF_ERROR(CheckGroups(spec.optimizer.groups, SavedNames(shapes, draft.ties)));
  PENSTOCK_ASSIGN_OR_RETURN(draft.signature, SignatureOf(shapes, draft.loss.get(), spec.loss));
  if (spec.batching.has_value()) PENSTOCK_RETURN_IF_ERROR(CheckOpenRows(draft.signature.inputs));
  PENSTOCK_ASSIGN_OR_RETURN(CutSpec cut, WithBalance(spec.cut, draft.layers));
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<Device> devices, UsableDevices(spec, options));
  PENSTOCK_RETURN_IF_ERROR(PlaceByName(spec.model.layer_devices, devices, &draft.layers));
  if (spec.sample != nullptr) {
    PENSTOCK_ASSIGN_OR_RETURN(draft.sample, MatchSample(*spec.sample, draft.signature, draft.loss.get(), spec.loss));
  }
  draft.request = {
      .layers = draft.layers,
      .cut = std::move(cut),
      .devices = std::move(devices),
      .devices_named = !spec.devices.empty(),
      .schedule = spec.schedule,
      .parameter_bytes = std::move(parameter_bytes),
      .optimizer_state_ratio = OptimizerStateRatio(spec.optimizer),
      .skips = std::move(skips),
      .handed = {.inputs = shapes.front().layer->HandedInputs(), .outputs = shapes.back().layer->HandedOutputs()},
      .settings = {.build = draft.build, .autocast = spec.model.autocast},
      .limits = spec.limits};
  if (draft.loss != nullptr && !draft.signature.outputs.empty()) {  // the last stage needs its output
    PENSTOCK_ASSIGN_OR_RETURN(const int output, LossOutput(spec.loss, draft.signature.outputs, "spec.loss"));
    std::erase_if(draft.request.handed.outputs, [&](const HandedValue& value) { return value.position == output; });
  }
  // Values of other processes' stages come from the leader by way of the first stage and the last one.
  if (MayBeElsewhere(draft.request)) draft.request.handed = {};
  return draft;
}

Clock* ClockOf(const Pipeline::Options& options) { return options.clock == nullptr ? RealClock() : options.clock; }

ProfileOptions MeasuringOptions(const Pipeline::Options& options, const Draft& draft) {
  ProfileOptions profile = options.profile;
  profile.sample = draft.sample;
  return profile;
}

void FindLinks(const Pipeline::Options& options, Draft& draft) {
  if (options.group != nullptr && MayBeElsewhere(draft.request)) draft.request.links = options.group->Links();
}

absl::StatusOr<Draft> MakeDraft(const PipelineSpec& spec, const Pipeline::Options& options) {
  PENSTOCK_ASSIGN_OR_RETURN(Draft draft, CheckSpecification(spec, options));
  FindLinks(options, draft);
  PENSTOCK_ASSIGN_OR_RETURN(draft.plan, penstock::MakePlan(draft.request, MeasuringOptions(options, draft),
                                                           ClockOf(options), TrialsOnDevices(spec, options, draft)));
  return draft;
}

absl::Status ClaimMemory(const Pipeline::Options& options, const Plan& plan) {
  if (!options.claim_memory) return absl::OkStatus();
  PENSTOCK_ASSIGN_OR_RETURN(const int64_t bytes, HostBytes(plan, options.devices->devices()));
  return options.claim_memory(bytes);
}

absl::StatusOr<PlacedStages> PlaceStages(const PipelineSpec& spec, const Pipeline::Options& options, const Draft& draft,
                                         const Plan& plan, Rank self) {
  PENSTOCK_RETURN_IF_ERROR(ClaimMemory(options, plan));
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<NamedLayer> layers,
                            BuildLayers(draft.layers, spec.seed, draft.build, LayersOf(self, plan, draft.ties)));
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<TieGroup> groups, AllTies(draft, plan, layers));
  // Before the ties: what shares memory goes on sharing it where it stands.
  std::vector<int> first_layers;
  for (const StagePlan& stage : plan.stages) {
    first_layers.push_back(stage.first_layer);
    if (stage.rank != self) continue;
    PENSTOCK_ASSIGN_OR_RETURN(DeviceWorker * worker, options.devices->Find(LocalDeviceName(stage.device)));
    PENSTOCK_RETURN_IF_ERROR(PlaceLayers(layers, stage, worker->device()));
  }
  std::vector<std::vector<StageTie>> ties;
  PENSTOCK_RETURN_IF_ERROR(RunTorch([&] { ties = TieParameters(groups, layers, first_layers); }));

  PlacedStages placed;
  placed.tied = TiedPlaces(groups, layers, plan);
  const int stages = static_cast<int>(plan.stages.size());
  const bool of_library = AnyOfLibrary(draft.layers);
  placed.open_dimension = layers.front().layer->LargestOpenDimension();
  placed.workers.resize(LaneCount(plan));
  auto next = layers.begin();
  for (int s = 0; s < stages; ++s) {
    const StagePlan& stage = plan.stages[s];
    const auto end = next + static_cast<std::ptrdiff_t>(stage.layers.size());
    std::vector<NamedLayer> own(std::make_move_iterator(next), std::make_move_iterator(end));
    next = end;
    if (stage.rank != self) continue;
    PENSTOCK_ASSIGN_OR_RETURN(DeviceWorker * worker, options.devices->Find(LocalDeviceName(stage.device)));
    placed.workers[stage.lane] = worker;
    placed.devices.push_back(worker->device());
    PENSTOCK_ASSIGN_OR_RETURN(std::unique_ptr<Stage> made,
                              Stage::Create({.index = s,
                                             .last = s + 1 == stages,
                                             .device = worker->device(),
                                             .first_layer = LayerIndex(stage.first_layer),
                                             .layers = std::move(own),
                                             .ties = std::move(ties[s]),
                                             .incoming = PortsOf(plan, s, /*incoming=*/true),
                                             .outgoing = PortsOf(plan, s, /*incoming=*/false),
                                             .autocast = spec.model.autocast,
                                             .undo = plan.undo,
                                             .copies_inputs = s == 0 && of_library},
                                            spec.optimizer));
    placed.stages.push_back(std::move(made));
  }
  return placed;
}

RankEngine::Parts EngineParts(const PipelineSpec& spec, const Pipeline::Options& options, PlacedStages placed) {
  const bool threads = options.devices->mode() == DevicePool::Mode::kThreads;
  Clock* const clock = ClockOf(options);
  RankEngine::Parts parts;
  parts.stages = std::move(placed.stages);
  parts.workers = std::move(placed.workers);
  parts.clock = clock;
  parts.filling = spec.bubble_filling;
  // In serial mode the order must not depend on the machine's time, and no pause ever ends by itself.
  parts.foresight = {.gaps = threads || clock != RealClock(), .pauses = threads};
  parts.edit_lists = options.edits.lists;
  parts.before_action = options.before_action;
  parts.fault_point = options.fault_point;
  parts.watch_passes = options.watch_passes;
  return parts;
}

std::shared_ptr<PipelineMetrics> MetricsOfPlan(const Plan& plan, Clock* clock) {
  std::vector<LaneDescription> lanes(LaneCount(plan));
  for (const StagePlan& stage : plan.stages) {
    lanes[stage.lane].lane = stage.lane;
    lanes[stage.lane].device = stage.device;
    lanes[stage.lane].rank = stage.rank;
  }
  return std::make_shared<PipelineMetrics>(clock, "", lanes, ScheduleDescription());
}

absl::Status Calibrate(const PipelineSpec& spec, const Pipeline::Options& options, const Draft& draft,
                       const PlacedStages& placed, Plan& plan) {
  ProfileOptions calibration = MeasuringOptions(options, draft);
  if (plan.micro_batch_rows > 0) calibration.rows = plan.micro_batch_rows;
  LossContext loss{.loss = draft.loss.get(), .target = {}, .weights = {}};
  PENSTOCK_ASSIGN_OR_RETURN(loss.output, LossOutput(spec.loss, draft.signature.outputs, "spec.loss"));
  return CalibrateStages(placed.stages, placed.devices, draft.signature.inputs, loss, calibration,
                         placed.open_dimension, ClockOf(options), plan);
}

}  // namespace penstock
