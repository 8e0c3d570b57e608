// The specification of a pipeline.

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/schedule/generators.h"
#include "engine/schedule/imported.h"
#include "server/rpc/convert/proto_convert.h"
#include "server/rpc/convert/spec_fields.h"

namespace penstock {
namespace {

constexpr int kMaxListedStages = 1024;
constexpr int kMaxLimits = 64;
constexpr int kMaxGroups = 64;
constexpr int kMaxPatterns = 64;         // of a group
constexpr int kMaxClassWeights = 16384;  // 128 KiB, as kMaxActionBytes
constexpr int kMaxPlanningSeconds = 3600;
constexpr size_t kMaxActionBytes = size_t{128} << 10;  // so that a list of pipelines fits into an answer

absl::StatusOr<CheckpointMode> ReadMode(v1::CheckpointMode mode) {
  switch (mode) {
    case v1::CHECKPOINT_MODE_ALWAYS:
      return CheckpointMode::kAlways;
    case v1::CHECKPOINT_MODE_NEVER:
      return CheckpointMode::kNever;
    case v1::CHECKPOINT_MODE_SKIP_ADJACENT:
      return CheckpointMode::kSkipAdjacent;
    case v1::CHECKPOINT_MODE_UNSPECIFIED:
    case v1::CHECKPOINT_MODE_EXCEPT_LAST:
      return CheckpointMode::kExceptLast;
    default:
      return SpecInvalid("spec.schedule.checkpoint", "checkpoint is not one of 'always', 'except_last', or 'never'",
                         absl::StrCat(static_cast<int>(mode)));
  }
}

bool NamesDevice(const google::protobuf::RepeatedPtrField<v1::LayerSpec>& layers) {
  return std::any_of(layers.begin(), layers.end(),
                     [](const v1::LayerSpec& layer) { return !layer.device().empty() || NamesDevice(layer.layers()); });
}

// What the planner may choose: what is unset, but nothing where the client has made a plan of its own, for who gives a
// balance or devices expects what an ancestor would have done.
OpenChoices ReadOpenChoices(const v1::PipelineSpec& spec) {
  const bool cut_by_hand = spec.cut().balance_size() > 0 || spec.cut().starts_size() > 0;
  if (cut_by_hand || spec.devices_size() > 0 || NamesDevice(spec.model().layers()) ||
      !spec.model().layer_devices().empty()) {
    return {};
  }
  const v1::ScheduleSpec& schedule = spec.schedule();
  const bool listed = !schedule.actions().empty();
  return {.kind = schedule.kind().empty() && !listed,
          .chunks = !schedule.has_chunks() && !listed && spec.cut().stages() == 0,  // they are a number of devices too
          .micro_batches = !schedule.has_micro_batches() && !listed,
          .checkpoint = schedule.checkpoint() == v1::CHECKPOINT_MODE_UNSPECIFIED};
}

// What the room of schedules says of lists, as a field of the specification. An error is one line: place and cause of a
// failed verification, without its drawing.
absl::Status OfActions(const absl::Status& status) {
  const std::vector<std::string> lines = absl::StrSplit(status.message(), absl::MaxSplits('\n', 2));
  std::string problem(absl::StripPrefix(lines[0], "schedule: "));
  if (lines.size() > 1) {
    absl::StrAppend(&problem, ": ", absl::StripAsciiWhitespace(lines[1]), "; penstock schedule verify draws it");
  }
  Error error(status.code(), "SPEC_INVALID", absl::StrCat("spec.schedule.actions: ", problem));
  std::map<std::string, std::string> values = ValuesOf(status);
  if (values.contains("action")) values.try_emplace("value", values["action"]);
  for (const auto& [name, value] : values) error.With(name, value);
  return error.With("field", "spec.schedule.actions");
}

// Lists instead of a kind. What is given beside them must agree.
absl::Status ReadActions(const v1::ScheduleSpec& schedule, ScheduleSpec& spec) {
  if (schedule.actions().size() > kMaxActionBytes) {
    return SpecInvalid("spec.schedule.actions", absl::StrCat("must have at most ", kMaxActionBytes, " bytes"),
                       absl::StrCat(schedule.actions().size(), " bytes"));
  }
  absl::StatusOr<ImportedSchedule> imported = ImportSchedule(schedule.actions());
  if (!imported.ok()) return OfActions(imported.status());
  const auto agrees = [](std::string_view field, int given, int found) {
    if (given == found) return absl::OkStatus();
    return SpecInvalid(absl::StrCat("spec.schedule.", std::string(field)),
                       absl::StrCat("must be unset or ", found, ", as in spec.schedule.actions"), absl::StrCat(given));
  };
  const int micro_batches = imported->actions.micro_batches;
  if (schedule.has_micro_batches()) {
    PENSTOCK_RETURN_IF_ERROR(agrees("micro_batches", schedule.micro_batches(), micro_batches));
  }
  if (schedule.has_chunks()) PENSTOCK_RETURN_IF_ERROR(agrees("chunks", schedule.chunks(), imported->chunks));
  if (!schedule.kind().empty() && schedule.kind() != kImportedKind) {
    return SpecInvalid("spec.schedule.kind",
                       absl::StrCat("must be unset or ", std::string(kImportedKind), " beside spec.schedule.actions"),
                       Shortened(schedule.kind()));
  }
  spec.kind = std::string(kImportedKind);
  spec.micro_batches = micro_batches;
  spec.chunks = imported->chunks;
  spec.imported = std::make_shared<const ImportedSchedule>(*std::move(imported));
  return absl::OkStatus();
}

// What is unset is as without a planner.
absl::StatusOr<ScheduleSpec> ReadSchedule(const v1::ScheduleSpec& schedule) {
  ScheduleSpec spec;
  if (schedule.has_micro_batches()) {
    if (schedule.micro_batches() < 1) {
      return SpecInvalid("spec.schedule.micro_batches", "number of micro-batches must be a positive integer",
                         absl::StrCat(schedule.micro_batches()));
    }
    spec.micro_batches = schedule.micro_batches();
  }
  PENSTOCK_ASSIGN_OR_RETURN(spec.checkpoint, ReadMode(schedule.checkpoint()));
  PENSTOCK_RETURN_IF_ERROR(CheckText(schedule.kind(), "spec.schedule.kind"));
  if (!schedule.kind().empty()) spec.kind = schedule.kind();
  if (schedule.has_chunks()) {
    if (schedule.chunks() < 1) {
      return SpecInvalid("spec.schedule.chunks", "must be a positive integer", absl::StrCat(schedule.chunks()));
    }
    spec.chunks = schedule.chunks();
  } else if (const absl::StatusOr<ScheduleKind> kind = FindScheduleKind(spec.kind); kind.ok()) {
    spec.chunks = kind->usual_chunks;
  }
  if (!schedule.actions().empty()) PENSTOCK_RETURN_IF_ERROR(ReadActions(schedule, spec));
  const auto goes_with = [&](std::string_view field, std::string_view kind, int value) {
    if (spec.kind == kind && !schedule.kind().empty()) return absl::OkStatus();
    return SpecInvalid(absl::StrCat("spec.schedule.", std::string(field)),
                       absl::StrCat("must be unset unless kind is ", std::string(kind)), absl::StrCat(value));
  };
  if (schedule.has_lag()) {
    PENSTOCK_RETURN_IF_ERROR(goes_with("lag", "lag", schedule.lag()));
    spec.lag = schedule.lag();
  }
  if (schedule.has_live_limit()) {
    PENSTOCK_RETURN_IF_ERROR(goes_with("live_limit", "auto", schedule.live_limit()));
    spec.live_limit = schedule.live_limit();
  }
  if (schedule.has_mini_batch_rows() && schedule.mini_batch_rows() < 1) {
    return SpecInvalid("spec.schedule.mini_batch_rows", "must be positive", absl::StrCat(schedule.mini_batch_rows()));
  }
  return spec;
}

// Only what is decided: what the planner chose stands in the plan.
v1::ScheduleSpec ToProto(const ScheduleSpec& schedule, const PlanLimits& limits) {
  v1::ScheduleSpec message = ToProto(schedule);
  if (limits.open.kind) message.clear_kind();
  if (limits.open.chunks) message.clear_chunks();
  if (limits.open.micro_batches) message.clear_micro_batches();
  if (limits.open.checkpoint) message.clear_checkpoint();
  if (limits.mini_batch_rows > 0) message.set_mini_batch_rows(limits.mini_batch_rows);
  return message;
}

// A balance of wrong numbers is the planner's to judge, after the layers.
absl::StatusOr<CutSpec> ReadCut(const v1::Cut& cut) {
  CutSpec spec;
  PENSTOCK_RETURN_IF_ERROR(CheckCount(cut.balance_size(), kMaxListedStages, "spec.cut.balance", "stages"));
  spec.balance.assign(cut.balance().begin(), cut.balance().end());
  PENSTOCK_RETURN_IF_ERROR(CheckCount(cut.ranks_size(), kMaxListedStages, "spec.cut.ranks", "ranks"));
  spec.ranks.assign(cut.ranks().begin(), cut.ranks().end());
  PENSTOCK_RETURN_IF_ERROR(CheckCount(cut.starts_size(), kMaxListedStages, "spec.cut.starts", "names"));
  for (int i = 0; i < cut.starts_size(); ++i) {
    PENSTOCK_RETURN_IF_ERROR(CheckText(cut.starts(i), absl::StrCat("spec.cut.starts[", i, "]")));
    spec.starts.push_back(cut.starts(i));
  }
  spec.stages = cut.stages();
  if (spec.stages < 0) {
    return SpecInvalid(
        "spec.cut.stages",
        absl::StrCat("partitions must be a positive integer (", spec.stages, " < 1), or 0: one per device"),
        absl::StrCat(spec.stages));
  }
  if (spec.stages > kMaxListedStages) {
    return SpecInvalid("spec.cut.stages", absl::StrCat("must be at most ", kMaxListedStages),
                       absl::StrCat(spec.stages));
  }
  if (!v1::CutCost_IsValid(cut.cost())) {
    return SpecInvalid("spec.cut.cost", "must be TIME or SIZE", absl::StrCat(static_cast<int>(cut.cost())));
  }
  if (cut.cost() == v1::CUT_COST_SIZE) spec.cost = CutSpec::Cost::kSize;
  if (!v1::CutMethod_IsValid(cut.method())) {
    return SpecInvalid("spec.cut.method", "must be EXACT or BLOCK_PARTITION",
                       absl::StrCat(static_cast<int>(cut.method())));
  }
  if (cut.method() == v1::CUT_METHOD_BLOCK_PARTITION) spec.method = CutSpec::Method::kBlockPartition;
  if (cut.has_parameter_scale()) {
    spec.parameter_scale = cut.parameter_scale();
    if (!std::isfinite(spec.parameter_scale) || spec.parameter_scale < 0) {
      return SpecInvalid("spec.cut.parameter_scale", "must be finite and at least 0",
                         absl::StrCat(spec.parameter_scale));
    }
  }
  return spec;
}

// What a schedule does not have is unset.
v1::LearningRateSpec ToProto(const LearningRateSpec& spec) {
  v1::LearningRateSpec message;
  message.set_name(spec.name);
  message.set_warmup_steps(spec.warmup_steps);
  message.set_total_steps(spec.total_steps);
  message.set_final_ratio(spec.final_ratio);
  message.set_step_size(spec.step_size);
  if (spec.name == "step") message.set_gamma(spec.gamma);
  if (spec.name == "polynomial") message.set_power(spec.power);
  return message;
}

v1::Cut ToProto(const CutSpec& spec) {
  v1::Cut message;
  for (int layers : spec.balance) message.add_balance(layers);
  for (int rank : spec.ranks) message.add_ranks(rank);
  for (const std::string& name : spec.starts) message.add_starts(name);
  message.set_stages(spec.stages);
  message.set_cost(spec.cost == CutSpec::Cost::kSize ? v1::CUT_COST_SIZE : v1::CUT_COST_TIME);
  message.set_method(spec.method == CutSpec::Method::kBlockPartition ? v1::CUT_METHOD_BLOCK_PARTITION
                                                                     : v1::CUT_METHOD_EXACT);
  message.set_parameter_scale(spec.parameter_scale);
  return message;
}

absl::StatusOr<LearningRateSpec> ReadLearningRate(const v1::LearningRateSpec& rate) {
  LearningRateSpec spec;
  PENSTOCK_RETURN_IF_ERROR(CheckText(rate.name(), "spec.optimizer.learning_rate_schedule.name"));
  if (!rate.name().empty()) spec.name = rate.name();
  spec.warmup_steps = rate.warmup_steps();
  spec.total_steps = rate.total_steps();
  spec.final_ratio = rate.final_ratio();
  spec.step_size = rate.step_size();
  if (rate.has_gamma()) spec.gamma = rate.gamma();
  if (rate.has_power()) spec.power = rate.power();
  return spec;
}

absl::StatusOr<ParameterGroup> ReadGroup(const v1::ParameterGroup& group, const std::string& field) {
  ParameterGroup spec;
  PENSTOCK_RETURN_IF_ERROR(CheckCount(group.patterns_size(), kMaxPatterns, field + ".patterns", "patterns"));
  for (int i = 0; i < group.patterns_size(); ++i) {
    PENSTOCK_RETURN_IF_ERROR(CheckText(group.patterns(i), absl::StrCat(field, ".patterns[", i, "]")));
    spec.patterns.push_back(group.patterns(i));
  }
  PENSTOCK_ASSIGN_OR_RETURN(spec.options, ReadOptions(group.options(), field + ".options"));
  spec.frozen = group.frozen();
  return spec;
}

}  // namespace

absl::StatusOr<OptimizerSpec> FromProto(const v1::OptimizerSpec& optimizer) {
  OptimizerSpec spec;
  PENSTOCK_RETURN_IF_ERROR(CheckText(optimizer.name(), "spec.optimizer.name"));
  if (!optimizer.name().empty()) spec.name = optimizer.name();
  PENSTOCK_ASSIGN_OR_RETURN(spec.options, ReadOptions(optimizer.options(), "spec.optimizer.options"));
  if (!std::isfinite(optimizer.clip_norm()) || optimizer.clip_norm() < 0) {
    return SpecInvalid("spec.optimizer.clip_norm", "must be finite and at least 0",
                       absl::StrCat(optimizer.clip_norm()));
  }
  spec.clip_norm = optimizer.clip_norm();
  PENSTOCK_ASSIGN_OR_RETURN(spec.learning_rate_schedule, ReadLearningRate(optimizer.learning_rate_schedule()));
  PENSTOCK_RETURN_IF_ERROR(CheckCount(optimizer.groups_size(), kMaxGroups, "spec.optimizer.groups", "groups"));
  for (int i = 0; i < optimizer.groups_size(); ++i) {
    PENSTOCK_ASSIGN_OR_RETURN(spec.groups.emplace_back(),
                              ReadGroup(optimizer.groups(i), absl::StrCat("spec.optimizer.groups[", i, "]")));
  }
  return spec;
}

namespace {

absl::StatusOr<BubbleFillingSpec> ReadFilling(const v1::BubbleFillingSpec& filling) {
  BubbleFillingSpec spec;
  if (!v1::BubbleFilling_IsValid(filling.mode())) {
    return SpecInvalid("spec.bubble_filling.mode", "must be a known mode",
                       absl::StrCat(static_cast<int>(filling.mode())));
  }
  spec.enabled = filling.mode() != v1::BUBBLE_FILLING_OFF;
  if (filling.has_inference_share()) spec.inference_share = filling.inference_share();
  if (!(spec.inference_share >= 0 && spec.inference_share <= 1)) {
    return SpecInvalid("spec.bubble_filling.inference_share", "must be 0 to 1", absl::StrCat(spec.inference_share));
  }
  constexpr double kMaxSeconds = 86'400;
  spec.max_wait_seconds = filling.max_wait_seconds();
  if (!(spec.max_wait_seconds >= 0 && spec.max_wait_seconds <= kMaxSeconds)) {
    return SpecInvalid("spec.bubble_filling.max_wait_seconds", "must be 0 to a day",
                       absl::StrCat(spec.max_wait_seconds));
  }
  return spec;
}

absl::StatusOr<DynamicBatchingSpec> ReadBatching(const v1::DynamicBatching& batching) {
  constexpr int64_t kMaxRows = 65'536;
  constexpr double kMaxSeconds = 60;
  DynamicBatchingSpec spec;
  if (batching.has_max_rows()) spec.max_rows = batching.max_rows();
  if (spec.max_rows < 1 || spec.max_rows > kMaxRows) {
    return SpecInvalid("spec.dynamic_batching.max_rows", absl::StrCat("must be 1 to ", kMaxRows),
                       absl::StrCat(spec.max_rows));
  }
  spec.micro_batch_rows = batching.micro_batch_rows();
  if (batching.has_micro_batch_rows() && (spec.micro_batch_rows < 1 || spec.micro_batch_rows > spec.max_rows)) {
    return SpecInvalid("spec.dynamic_batching.micro_batch_rows", absl::StrCat("must be 1 to max_rows, ", spec.max_rows),
                       absl::StrCat(spec.micro_batch_rows));
  }
  if (!batching.has_max_delay_seconds()) return spec;
  spec.max_delay_seconds = batching.max_delay_seconds();
  if (!(*spec.max_delay_seconds >= 0 && *spec.max_delay_seconds <= kMaxSeconds)) {
    return SpecInvalid("spec.dynamic_batching.max_delay_seconds", absl::StrCat("must be 0 to ", kMaxSeconds),
                       absl::StrCat(*spec.max_delay_seconds));
  }
  return spec;
}

v1::DynamicBatching ToProto(const DynamicBatchingSpec& spec) {
  v1::DynamicBatching message;
  message.set_max_rows(spec.max_rows);
  if (spec.micro_batch_rows > 0) message.set_micro_batch_rows(spec.micro_batch_rows);
  if (spec.max_delay_seconds.has_value()) message.set_max_delay_seconds(*spec.max_delay_seconds);
  return message;
}

}  // namespace

absl::StatusOr<LossSpec> FromProto(const v1::LossSpec& loss, std::string_view field) {
  LossSpec spec;
  PENSTOCK_RETURN_IF_ERROR(CheckText(loss.name(), std::string(field) + ".name"));
  spec.name = loss.name();
  PENSTOCK_ASSIGN_OR_RETURN(spec.options, ReadOptions(loss.options(), std::string(field) + ".options"));
  PENSTOCK_RETURN_IF_ERROR(CheckText(loss.output(), std::string(field) + ".output"));
  spec.output = loss.output();
  PENSTOCK_RETURN_IF_ERROR(
      CheckCount(loss.class_weights_size(), kMaxClassWeights, std::string(field) + ".class_weights", "numbers"));
  spec.class_weights.assign(loss.class_weights().begin(), loss.class_weights().end());
  return spec;
}

absl::StatusOr<PipelineSpec> FromProto(const v1::PipelineSpec& message) {
  PipelineSpec spec;
  // Several faults are told in the ancestors' order: numbers of the schedule before layers, layers before the cut.
  PENSTOCK_ASSIGN_OR_RETURN(spec.schedule, ReadSchedule(message.schedule()));
  spec.limits.open = ReadOpenChoices(message);
  spec.limits.mini_batch_rows = message.schedule().mini_batch_rows();
  if (message.has_planning_seconds()) spec.limits.planning_seconds = message.planning_seconds();
  if (!(spec.limits.planning_seconds >= 0 && spec.limits.planning_seconds <= kMaxPlanningSeconds)) {
    return SpecInvalid("spec.planning_seconds", absl::StrCat("must be 0 to ", kMaxPlanningSeconds),
                       absl::StrCat(message.planning_seconds()));
  }
  PENSTOCK_ASSIGN_OR_RETURN(spec.model, FromProto(message.model(), "spec.model"));
  PENSTOCK_ASSIGN_OR_RETURN(spec.cut, ReadCut(message.cut()));
  PENSTOCK_RETURN_IF_ERROR(CheckCount(message.devices_size(), kMaxListedStages, "spec.devices", "entries"));
  for (int i = 0; i < message.devices_size(); ++i) {
    PENSTOCK_RETURN_IF_ERROR(CheckText(message.devices(i), absl::StrCat("spec.devices[", i, "]")));
    spec.devices.push_back(message.devices(i));
  }
  PENSTOCK_ASSIGN_OR_RETURN(spec.optimizer, FromProto(message.optimizer()));
  PENSTOCK_ASSIGN_OR_RETURN(spec.loss, FromProto(message.loss(), "spec.loss"));
  spec.seed = message.seed();
  PENSTOCK_ASSIGN_OR_RETURN(spec.bubble_filling, ReadFilling(message.bubble_filling()));
  if (message.has_dynamic_batching()) {
    PENSTOCK_ASSIGN_OR_RETURN(spec.batching, ReadBatching(message.dynamic_batching()));
  }
  return spec;
}

absl::StatusOr<PipelineSpec> FromProto(const v1::PlanPipelineRequest& request) {
  PENSTOCK_ASSIGN_OR_RETURN(PipelineSpec spec, FromProto(request.spec()));
  const v1::ScheduleSpec& schedule = request.spec().schedule();
  const v1::SearchLimits& limits = request.limits();
  PENSTOCK_RETURN_IF_ERROR(CheckCount(limits.kinds_size(), kMaxLimits, "limits.kinds", "kinds"));
  for (int i = 0; i < limits.kinds_size(); ++i) {
    PENSTOCK_RETURN_IF_ERROR(CheckText(limits.kinds(i), absl::StrCat("limits.kinds[", i, "]")));
    spec.limits.kinds.push_back(limits.kinds(i));
  }
  PENSTOCK_RETURN_IF_ERROR(CheckCount(limits.micro_batches_size(), kMaxLimits, "limits.micro_batches", "numbers"));
  spec.limits.micro_batches.assign(limits.micro_batches().begin(), limits.micro_batches().end());
  if (limits.max_chunks() != 0) spec.limits.max_chunks = limits.max_chunks();
  if (limits.mini_batch_rows() != 0) spec.limits.mini_batch_rows = limits.mini_batch_rows();
  OpenChoices& open = spec.limits.open;
  if (!schedule.actions().empty()) return spec;  // they are decided
  if (limits.kinds_size() > 0 && schedule.kind().empty()) open.kind = true;
  if ((limits.max_chunks() > 0 || open.kind) && !schedule.has_chunks()) open.chunks = true;
  if (limits.micro_batches_size() > 0 && !schedule.has_micro_batches()) open.micro_batches = true;
  return spec;
}

v1::OptimizerSpec ToProto(const OptimizerSpec& spec) {
  v1::OptimizerSpec message;
  message.set_name(spec.name);
  WriteOptions(spec.options, message.mutable_options());
  message.set_clip_norm(spec.clip_norm);
  *message.mutable_learning_rate_schedule() = ToProto(spec.learning_rate_schedule);
  for (const ParameterGroup& group : spec.groups) {
    v1::ParameterGroup* added = message.add_groups();
    added->mutable_patterns()->Add(group.patterns.begin(), group.patterns.end());
    WriteOptions(group.options, added->mutable_options());
    added->set_frozen(group.frozen);
  }
  return message;
}

v1::LossSpec ToProto(const LossSpec& loss) {
  v1::LossSpec message;
  message.set_name(loss.name);
  WriteOptions(loss.options, message.mutable_options());
  message.set_output(loss.output);
  message.mutable_class_weights()->Add(loss.class_weights.begin(), loss.class_weights.end());
  return message;
}

v1::PipelineSpec ToProto(const PipelineSpec& spec) {
  v1::PipelineSpec message;
  *message.mutable_model() = ToProto(spec.model);
  *message.mutable_cut() = ToProto(spec.cut);
  for (const std::string& device : spec.devices) message.add_devices(device);
  *message.mutable_schedule() = ToProto(spec.schedule, spec.limits);
  *message.mutable_optimizer() = ToProto(spec.optimizer);
  *message.mutable_loss() = ToProto(spec.loss);
  message.set_seed(spec.seed);
  v1::BubbleFillingSpec* filling = message.mutable_bubble_filling();
  filling->set_mode(spec.bubble_filling.enabled ? v1::BUBBLE_FILLING_ON : v1::BUBBLE_FILLING_OFF);
  filling->set_inference_share(spec.bubble_filling.inference_share);
  filling->set_max_wait_seconds(spec.bubble_filling.max_wait_seconds);
  message.set_planning_seconds(spec.limits.planning_seconds);
  if (spec.batching.has_value()) *message.mutable_dynamic_batching() = ToProto(*spec.batching);
  return message;
}

}  // namespace penstock
