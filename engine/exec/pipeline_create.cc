// How a pipeline comes to be, and how its state goes out and in. pipeline.cc has the main path.

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/shape_text.h"
#include "engine/base/status_macros.h"
#include "engine/device/copy_tensors.h"
#include "engine/device/device_streams.h"
#include "engine/device/torch_status.h"
#include "engine/exec/pipeline_draft.h"
#include "engine/exec/pipeline_group.h"
#include "engine/exec/pipeline_impl.h"
#include "engine/exec/plan_trials.h"
#include "engine/exec/signature_check.h"
#include "engine/model/model_signature.h"
#include "engine/model/ties.h"
#include "engine/optim/parameter_groups.h"
#include "engine/plan/memory.h"
#include "engine/plan/planner.h"
#include "engine/tensor/codec.h"
#include "engine/tensor/micro_batch.h"

namespace penstock {
namespace {

bool IsElsewhere(const Plan& plan) {
  return std::any_of(plan.stages.begin(), plan.stages.end(),
                     [](const StagePlan& stage) { return stage.rank != Rank(0); });
}

// A plan over several processes can be made, but not run without a group of them.
absl::Status CheckRanks(const Plan& plan, const PipelineGroup* group) {
  if (group != nullptr) return absl::OkStatus();
  for (const StagePlan& stage : plan.stages) {
    if (stage.rank == Rank(0)) continue;
    return Error(absl::StatusCode::kFailedPrecondition, "SPEC_INVALID",
                 absl::StrCat("spec.cut.ranks: ranks other than 0 need other processes, and this daemon is alone "
                              "(--world-size), got ",
                              stage.rank.value()))
        .With("field", "spec.cut.ranks")
        .With("value", absl::StrCat(stage.rank.value()));
  }
  return absl::OkStatus();
}

// Copies for an undo have a place only beside what others have claimed.
absl::Status ClaimOrDropUndo(const Pipeline::Options& options, Plan& plan) {
  absl::Status claimed = ClaimMemory(options, plan);
  if (claimed.ok() || !plan.undo) return claimed;
  DropUndo("it does not fit beside what the host's memory is claimed for", plan);
  return ClaimMemory(options, plan);
}

// A lane is a worker of one rank.
absl::Status CheckLanes(const Plan& plan) {
  std::map<int, Rank> ranks;
  for (const StagePlan& stage : plan.stages) {
    const Rank rank = ranks.emplace(stage.lane, stage.rank).first->second;
    if (rank == stage.rank) continue;
    return Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID",
                 absl::StrCat("spec.cut.ranks: the stages of one device's worker must stand on one rank, got ",
                              rank.value(), " and ", stage.rank.value()))
        .With("field", "spec.cut.ranks")
        .With("value", absl::StrCat(stage.rank.value()));
  }
  return absl::OkStatus();
}

// What fails here fails at the first step, or does not.
absl::Status TouchMemory(const PlacedStages& placed, const Planning& planning) {
  for (const auto& stage : placed.stages) {
    PENSTOCK_RETURN_IF_ERROR(planning.CheckWanted());
    const auto touch = [&] { StreamsOf(stage->device()).RunOn(StreamKind::kCompute, [&] { stage->TouchMemory(); }); };
    if (!RunTorch(touch).ok()) stage->DropCopies();
  }
  return absl::OkStatus();
}

// Nothing is measured where stages stand on several ranks: costs are the layers', by which it was cut.
absl::StatusOr<std::unique_ptr<Pipeline>> CreateOverRanks(const PipelineSpec& spec, Pipeline::Options options,
                                                          Draft draft) {
  PENSTOCK_RETURN_IF_ERROR(CheckLanes(draft.plan));
  PENSTOCK_RETURN_IF_ERROR(ClaimOrDropUndo(options, draft.plan));
  PENSTOCK_ASSIGN_OR_RETURN(PlacedStages placed, PlaceStages(spec, options, draft, draft.plan));
  PENSTOCK_ASSIGN_OR_RETURN(std::unique_ptr<PipelineRanks> ranks, options.group->Open(options.name, draft.plan));
  PipelineRanks& opened = *ranks;
  std::unique_ptr<PipelineImpl> pipeline =
      AssemblePipeline(spec, std::move(options), std::move(draft), std::move(placed), std::move(ranks));
  PENSTOCK_ASSIGN_OR_RETURN(auto others, opened.Build(spec, &pipeline->ranks()));
  PENSTOCK_RETURN_IF_ERROR(pipeline->ranks().Join(std::move(others)));
  pipeline->SetIdleReason(Pipeline::IdleReason::kNoWork);  // now also elsewhere
  return pipeline;
}

}  // namespace

absl::StatusOr<Plan> Pipeline::MakePlan(const PipelineSpec& spec, const Options& options) {
  PENSTOCK_ASSIGN_OR_RETURN(Draft draft, MakeDraft(spec, options));
  return std::move(draft.plan);
}

absl::StatusOr<PlanSearch> Pipeline::SearchPlans(const PipelineSpec& spec, const Options& options) {
  PENSTOCK_ASSIGN_OR_RETURN(Draft draft, CheckSpecification(spec, options));
  FindLinks(options, draft);
  PENSTOCK_ASSIGN_OR_RETURN(const SizeProfile profile,
                            ProfileSizes(draft.request, MeasuringOptions(options, draft), ClockOf(options)));
  return PlanBySearch(draft.request, profile, options.profile.planning, TrialsOnDevices(spec, options, draft));
}

absl::StatusOr<std::unique_ptr<Pipeline>> Pipeline::Create(const PipelineSpec& spec, Options options) {
  if (options.clock == nullptr) options.clock = RealClock();
  PENSTOCK_ASSIGN_OR_RETURN(Draft draft, MakeDraft(spec, options));
  PENSTOCK_RETURN_IF_ERROR(CheckRanks(draft.plan, options.group));
  if (options.edits.plan) options.edits.plan(draft.plan);
  if (IsElsewhere(draft.plan)) return CreateOverRanks(spec, std::move(options), std::move(draft));
  PENSTOCK_RETURN_IF_ERROR(ClaimOrDropUndo(options, draft.plan));
  Planning& planning = *options.profile.planning;
  planning.Enter(PlanPhase::kBuilding, 2);
  PENSTOCK_ASSIGN_OR_RETURN(PlacedStages placed, PlaceStages(spec, options, draft, draft.plan));
  planning.PartDone();
  // Without time, the costs are the layers', by which it was cut.
  if (!planning.OutOfTime()) PENSTOCK_RETURN_IF_ERROR(Calibrate(spec, options, draft, placed, draft.plan));
  PENSTOCK_RETURN_IF_ERROR(planning.CheckWanted());
  const bool undo = draft.plan.undo;
  PENSTOCK_RETURN_IF_ERROR(ClaimOrDropUndo(options, draft.plan));
  if (undo && !draft.plan.undo) {  // what was measured leaves no place for it: stages that make no copies
    placed = PlacedStages();
    PENSTOCK_ASSIGN_OR_RETURN(placed, PlaceStages(spec, options, draft, draft.plan));
  }
  // Who has no time to measure does not wait for this either.
  if (planning.measures() && draft.loss != nullptr) PENSTOCK_RETURN_IF_ERROR(TouchMemory(placed, planning));
  return AssemblePipeline(spec, std::move(options), std::move(draft), std::move(placed));
}

std::unique_ptr<PipelineImpl> AssemblePipeline(const PipelineSpec& spec, Pipeline::Options options, Draft draft,
                                               PlacedStages placed, std::unique_ptr<PipelineRanks> ranks) {
  PipelineImpl::Parts parts;
  parts.others = std::move(ranks);
  parts.tied = std::move(placed.tied);
  parts.engine = EngineParts(spec, options, std::move(placed));
  parts.spec = spec;
  parts.spec.model.loaded_program = nullptr;  // the layers have their tensors; the file's bytes may go
  parts.spec.sample = nullptr;                // it has been measured with
  parts.plan = std::move(draft.plan);
  parts.signature = std::move(draft.signature);
  parts.loss = std::move(draft.loss);
  parts.metrics = options.metrics ? options.metrics(parts.plan) : MetricsOfPlan(parts.plan, options.clock);
  parts.options = std::move(options);
  parts.options.profile.planning = EndlessPlanning();
  parts.options.claim_memory = parts.options.profile.claim_memory =
      nullptr;  // they are the caller's, for as long as the call lasts
  return std::make_unique<PipelineImpl>(std::move(parts));
}

RankEngine::Parts PipelineImpl::WithOwn(RankEngine::Parts parts) {
  parts.plan = &plan_;
  parts.metrics = metrics_.get();
  parts.on_value = [this](const MessageKey& key) { ranks_.OnValue(key); };
  if (others_ == nullptr) return parts;
  parts.transport = [this](std::vector<DeviceStreams*> streams, std::function<void(const MessageKey&)> on_arrival) {
    return others_->MakeTransport(std::move(streams), std::move(on_arrival),
                                  [this](const absl::Status& why) { ranks_.FailRuns(why); });
  };
  return parts;
}

namespace {

TiedGradients PlacesOf(const std::vector<TiedPlace>& tied) {
  TiedGradients places;
  for (const TiedPlace& one : tied) places.emplace_back(one.ranks.size());
  return places;
}

}  // namespace

PipelineImpl::PipelineImpl(Parts parts)
    : spec_(std::move(parts.spec)),
      options_(std::move(parts.options)),
      plan_(std::move(parts.plan)),
      signature_(std::move(parts.signature)),
      devices_(options_.devices),
      clock_(options_.clock),
      loss_(std::move(parts.loss)),
      ties_(PlacesOf(parts.tied)),
      metrics_(std::move(parts.metrics)),
      others_(std::move(parts.others)),
      ranks_({.own = &rank_,
              .plan = &plan_,
              .devices = devices_,
              .metrics = metrics_.get(),
              .tied = std::move(parts.tied),
              .on_rank_lost = options_.on_rank_lost}),
      rank_(WithOwn(std::move(parts.engine))),
      optimizer_(spec_.optimizer) {
  rank_.FreezeGroups(spec_.optimizer.groups);
  SetIdleReason(IdleReason::kNoWork);
}

PipelineImpl::~PipelineImpl() {
  absl::MutexLock lock(&inference_mu_);
  inference_mu_.Await(absl::Condition(
      +[](int* open) { return *open == 0; }, &open_inferences_));
  ranks_.Part();  // the others go first
}

absl::StatusOr<int64_t> PipelineImpl::CheckInputs(const NamedValues& inputs, bool needs_rows) const {
  PENSTOCK_ASSIGN_OR_RETURN(const NamedValues ordered, MatchSignature(signature_.inputs, inputs, "inputs"));
  if (needs_rows) PENSTOCK_RETURN_IF_ERROR(CheckHasRows(ordered, inputs, "inputs"));
  return RowsOf(ordered);
}

absl::Status PipelineImpl::CheckTarget(const at::Tensor& target, const at::Tensor& weights,
                                       const std::optional<LossSpec>& loss, int64_t rows) const {
  std::vector<TensorSignature> wanted = signature_.targets;
  std::unique_ptr<Loss> own;
  if (loss.has_value()) {
    PENSTOCK_ASSIGN_OR_RETURN(own, MakeLoss(*loss));
    PENSTOCK_ASSIGN_OR_RETURN(const int output, LossOutput(*loss, signature_.outputs, "loss"));
    wanted.clear();
    if (!signature_.outputs.empty()) {
      PENSTOCK_RETURN_IF_ERROR(own->CheckOutput(signature_.outputs[output]));
      if (own->needs_target()) wanted = {own->Target(signature_.outputs[output])};
    }
  } else if (loss_ == nullptr) {
    return Error(absl::StatusCode::kInvalidArgument, "LOSS_UNKNOWN",
                 "loss.name: is required, for the pipeline has no loss of its own, got nothing")
        .With("field", "loss.name")
        .With("value", "");
  }
  if (!(own != nullptr ? *own : *loss_).needs_target()) {
    if (weights.defined()) {
      return InvalidField("weights", "must not be set, for the loss is an output of the model",
                          ShapeText(weights.sizes()));
    }
    if (!target.defined()) return absl::OkStatus();
    return InvalidField("target", "must not be set, for the loss is an output of the model", ShapeText(target.sizes()));
  }
  if (!target.defined()) return InvalidField("target", "is required", "nothing");
  if (!wanted.empty()) {
    wanted[0].name = "target";
    PENSTOCK_RETURN_IF_ERROR(MatchSignature(wanted, NamedTensors{{"target", target}}, "target").status());
  }
  if (rows == 0) {
    const std::string got = "only whole tensors and plain values";
    return Error(absl::StatusCode::kInvalidArgument, "TENSOR_SIGNATURE",
                 "inputs: at least one must be a tensor that is split into rows, got " + got)
        .With("field", "inputs")
        .With("value", got);
  }
  if (target.dim() == 0 || target.size(0) != rows) {
    return Error(absl::StatusCode::kInvalidArgument, "TENSOR_SIGNATURE",
                 absl::StrCat("target.shape: must have ", rows, " rows as the inputs, got ", ShapeText(target.sizes())))
        .With("field", "target.shape")
        .With("value", ShapeText(target.sizes()));
  }
  return weights.defined() ? CheckWeights(weights, target) : absl::OkStatus();
}

absl::Status PipelineImpl::CheckMetrics(const std::vector<std::string>& metrics,
                                        const std::optional<LossSpec>& loss) const {
  return MakeMetrics(metrics, loss.value_or(spec_.loss)).status();
}

absl::Status PipelineImpl::CheckOutputs(const std::vector<std::string>& outputs) const {
  return MatchNames(signature_.outputs, outputs, "outputs").status();
}

absl::Status PipelineImpl::CheckGradients(const Graph& graph, const NamedTensors& gradients) const {
  std::vector<TensorSignature> wanted;
  for (size_t k = 0; k < graph.outputs.size(); ++k) {
    const at::Tensor* tensor = graph.outputs[k].value.tensor();
    if (tensor == nullptr) continue;
    const std::string& name = graph.outputs[k].name;
    const auto is_given = [&name](const NamedTensor& gradient) { return gradient.name == name; };
    const bool scalar = tensor->dim() == 0;
    if (scalar && std::none_of(gradients.begin(), gradients.end(), is_given)) continue;
    TensorSignature signature{name, ToDataType(tensor->scalar_type()).value_or(DataType{}), tensor->sizes().vec()};
    if (scalar) signature.shape.push_back(0);
    signature.shape[0] = scalar ? static_cast<int64_t>(graph.micro_batch_rows.size()) : TotalRows(graph.output_rows[k]);
    wanted.push_back(std::move(signature));
  }
  return MatchSignature(wanted, gradients, "gradients").status();
}

absl::StatusOr<NamedTensors> PipelineImpl::ExportState(bool with_optimizer) const {
  PENSTOCK_RETURN_IF_ERROR(health());
  return CopyToHost([&] { return ranks_.State(with_optimizer); });
}

absl::StatusOr<NamedTensors> PipelineImpl::CopyToHost(
    const std::function<absl::StatusOr<NamedTensors>()>& views) const {
  ranks_.SetIdle(StageState::kCheckpoint);
  absl::StatusOr<NamedTensors> copies;
  const absl::Status status = RunTorch([&] {
    const at::NoGradGuard no_graph;
    copies = views();
    if (!copies.ok()) return;
    for (NamedTensor& entry : *copies) {
      entry.tensor = entry.tensor.is_cpu() ? entry.tensor.clone() : ToHost(entry.tensor);
    }
  });
  ranks_.SetIdle(idle_.load());
  if (!status.ok()) return status;
  return copies;
}

NamedTensors PipelineImpl::StateShapes() const { return ranks_.Shapes(); }

// What to copy into each of `views`, in a form whose copy takes no memory of the host. Fails: as ImportState, nothing
// changed.
absl::StatusOr<std::vector<at::Tensor>> PipelineImpl::SourcesOf(const NamedTensors& views,
                                                                const NamedTensors& state) const {
  const auto mismatch = [](const std::string& name, const std::string& problem, const std::string& value) {
    return Error(absl::StatusCode::kFailedPrecondition, "MODEL_MISMATCH",
                 absl::StrCat(name, ": ", problem, ", got ", value))
        .With("field", name)
        .With("value", value);
  };
  std::unordered_map<std::string, const at::Tensor*> given;
  for (const NamedTensor& entry : state) {
    const auto [place, is_new] = given.emplace(entry.name, &entry.tensor);
    if (!is_new) return mismatch(entry.name, "is there twice", "two tensors");
  }
  std::vector<at::Tensor> sources;
  std::set<std::string> unused;
  for (const auto& [name, tensor] : given) unused.insert(name);
  for (const NamedTensor& view : views) {
    auto found = given.find(view.name);
    if (found == given.end()) return mismatch(view.name, "is missing", "nothing");
    const at::Tensor& tensor = *found->second;
    if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.is_meta()) {
      return mismatch(view.name, "must have elements", "none");
    }
    if (tensor.sizes() != view.tensor.sizes() || tensor.scalar_type() != view.tensor.scalar_type()) {
      return mismatch(view.name, absl::StrCat("must have the shape ", ShapeText(view.tensor.sizes())),
                      absl::StrCat(ShapeText(tensor.sizes()), " of ", c10::toString(tensor.scalar_type())));
    }
    unused.erase(view.name);
    PENSTOCK_RETURN_IF_ERROR(RunTorch([&] { sources.push_back(tensor.detach().contiguous()); }));
  }
  if (!unused.empty()) return mismatch(*unused.begin(), "is not part of this pipeline's state", "a tensor");
  return sources;
}

absl::Status PipelineImpl::ImportState(const NamedTensors& state, int64_t step) {
  NamedTensors views = rank_.StateViews(true);
  for (NamedTensor& view : rank_.ReplicaViews()) views.push_back(std::move(view));
  const size_t here = views.size();
  for (NamedTensor& shape : ranks_.ShapesElsewhere()) views.push_back(std::move(shape));
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<at::Tensor> sources, SourcesOf(views, state));

  absl::Notification granted;
  gate_.RequestExclusive([&granted] { granted.Notify(); });
  devices_->Wait(granted);
  const absl::Cleanup release = [this] {
    ranks_.SetIdle(idle_.load());
    gate_.ReleaseExclusive();
  };
  ranks_.SetIdle(StageState::kCheckpoint);
  absl::Status status = RunTorch([&] {
    at::NoGradGuard no_graph;
    for (size_t i = 0; i < here; ++i) {
      if (options_.fault_point) options_.fault_point(FaultPoint::kImport, static_cast<int>(i));
      views[i].tensor.copy_(sources[i]);
    }
  });
  if (status.ok()) status = ranks_.WriteElsewhere(state);
  if (status.ok()) {
    DiscardGradients();
    ChangeWeights(step);
    absl::MutexLock lock(&health_mu_);
    health_ = absl::OkStatus();
  } else {
    Break("the import of a state failed half-way", status);
    status = health();
  }
  return status;
}

absl::Status PipelineImpl::UpdateOptimizer(const OptimizerSpec& spec) {
  PENSTOCK_RETURN_IF_ERROR(health());
  if (accumulating_) return NotNow("ACCUMULATION_OPEN", "accumulated gradients wait for an OptimizerStep");
  if (const std::string name = optimizer().name; spec.name != name) {
    return Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID",
                 absl::StrCat("spec.optimizer.name: must stay ", name, ", got ", Shortened(spec.name)))
        .With("field", "spec.optimizer.name")
        .With("value", Shortened(spec.name));
  }
  PENSTOCK_RETURN_IF_ERROR(CheckGroups(spec.groups, ranks_.ParameterNames()));
  // Inference reads the parameters, too.
  absl::Notification granted;
  gate_.RequestExclusive([&granted] { granted.Notify(); });
  devices_->Wait(granted);
  const absl::Cleanup release = [this] { gate_.ReleaseExclusive(); };
  if (absl::Status updated = ranks_.UpdateOptimizer(spec); !updated.ok()) {
    const absl::Status back = ranks_.alone() ? absl::OkStatus() : ranks_.UpdateOptimizer(optimizer());
    if (!back.ok()) Break("some ranks have other settings of the optimizer", back);
    return updated;
  }
  absl::MutexLock lock(&optimizer_mu_);
  optimizer_ = spec;
  return absl::OkStatus();
}

OptimizerSpec PipelineImpl::optimizer() const {
  absl::MutexLock lock(&optimizer_mu_);
  return optimizer_;
}

int64_t PipelineImpl::parameter_count() const { return ranks_.parameter_count(); }

void PipelineImpl::SetIdleReason(IdleReason reason) {
  idle_ = reason == IdleReason::kWaitClient ? StageState::kWaitClient
          : reason == IdleReason::kPaused   ? StageState::kPaused
                                            : StageState::kNoWork;
  ranks_.SetIdle(idle_.load());
}

}  // namespace penstock
