#include "client/cli/pipeline_spec_options.h"

#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/exit_code.h"
#include "client/cli/option_pairs.h"
#include "client/cli/spec_file.h"
#include "client/lib/large_inputs.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

v1::CheckpointMode CheckpointModeOf(const std::string& word) {
  if (word == "always") return v1::CHECKPOINT_MODE_ALWAYS;
  if (word == "never") return v1::CHECKPOINT_MODE_NEVER;
  if (word == "skip_adjacent") return v1::CHECKPOINT_MODE_SKIP_ADJACENT;
  return v1::CHECKPOINT_MODE_EXCEPT_LAST;
}

// The layer of that name, or at that position from 0; null if there is none.
v1::LayerSpec* FindLayer(v1::ModelSpec* model, const std::string& layer) {
  for (v1::LayerSpec& one : *model->mutable_layers()) {
    if (one.name() == layer) return &one;
  }
  int position = 0;
  const bool is_position = absl::SimpleAtoi(layer, &position) && position >= 0 && position < model->layers_size();
  return is_position ? model->mutable_layers(position) : nullptr;
}

absl::Status PutDevices(const std::vector<std::string>& pairs, v1::ModelSpec* model) {
  for (const std::string& pair : pairs) {
    const size_t equals = pair.rfind('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == pair.size()) {
      return UsageError("--device-of", "must be LAYER=DEVICE, got '" + pair + "'");
    }
    if (model->layers().empty()) {
      (*model->mutable_layer_devices())[pair.substr(0, equals)] = pair.substr(equals + 1);
      continue;
    }
    v1::LayerSpec* layer = FindLayer(model, pair.substr(0, equals));
    if (layer == nullptr) {
      return UsageError("--device-of", "must name one of the specification's " + absl::StrCat(model->layers_size()) +
                                           " layers, got '" + pair.substr(0, equals) + "'");
    }
    layer->set_device(pair.substr(equals + 1));
  }
  return absl::OkStatus();
}

absl::Status PutTies(const std::vector<std::string>& ties, v1::ModelSpec* model) {
  for (const std::string& tie : ties) {
    const std::vector<std::string> parameters = absl::StrSplit(tie, ',', absl::SkipEmpty());
    if (parameters.size() < 2) return UsageError("--tie", "must be PARAMETER,PARAMETER, got '" + tie + "'");
    model->add_ties()->mutable_parameters()->Assign(parameters.begin(), parameters.end());
  }
  return absl::OkStatus();
}

absl::Status PutModel(const PipelineSpecOptions& o, v1::ModelSpec* model) {
  if (!o.model.empty()) {
    model->set_name(o.model);
    model->clear_program();
  }
  if (!o.model_program.empty()) {
    model->set_program(o.model_program);
    model->clear_name();
  }
  if (!o.program_cuts.empty()) {
    model->set_program_cuts(o.program_cuts == "nodes" ? v1::PROGRAM_CUTS_NODES : v1::PROGRAM_CUTS_MODULES);
  }
  if (!o.program_digest.empty()) model->set_program_digest(o.program_digest);
  PENSTOCK_RETURN_IF_ERROR(PutPairs("--option", o.model_options, model->mutable_options()));
  PENSTOCK_RETURN_IF_ERROR(PutDevices(o.device_of, model));
  PENSTOCK_RETURN_IF_ERROR(PutTies(o.ties, model));
  if (o.deferred_batch_norm.has_value()) model->set_deferred_batch_norm(*o.deferred_batch_norm);
  if (o.tuple_as_one_argument.has_value()) model->set_tuple_as_one_argument(*o.tuple_as_one_argument);
  if (!o.dtype.empty()) model->set_dtype(o.dtype);
  if (!o.autocast.empty()) model->set_autocast(o.autocast);
  return absl::OkStatus();
}

void PutCut(const PipelineSpecOptions& o, v1::Cut* cut) {
  if (o.stages.has_value()) {
    cut->clear_balance();
    cut->clear_starts();
    cut->set_stages(*o.stages);
  }
  if (!o.balance.empty()) {
    cut->clear_stages();
    cut->clear_starts();
    cut->mutable_balance()->Assign(o.balance.begin(), o.balance.end());
  }
  if (!o.starts.empty()) {
    cut->clear_stages();
    cut->clear_balance();
    cut->mutable_starts()->Assign(o.starts.begin(), o.starts.end());
  }
  if (!o.ranks.empty()) cut->mutable_ranks()->Assign(o.ranks.begin(), o.ranks.end());
  if (!o.cut_cost.empty()) cut->set_cost(o.cut_cost == "size" ? v1::CUT_COST_SIZE : v1::CUT_COST_TIME);
  if (!o.cut_method.empty()) {
    cut->set_method(o.cut_method == "exact" ? v1::CUT_METHOD_EXACT : v1::CUT_METHOD_BLOCK_PARTITION);
  }
  if (o.parameter_scale.has_value()) cut->set_parameter_scale(*o.parameter_scale);
}

// A flag that may also be given as false, to go over a file's. CLI11 makes flags of what they set, and has none for what
// may be unset.
void AddSwitch(CLI::App* command, const std::string& name, std::optional<bool>* value, const std::string& help) {
  const CLI::callback_t read = [value](const CLI::results_t& given) {
    return ReadSwitch(given.at(0), &value->emplace());
  };
  command->add_option(name, read, help)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)->expected(0);
}

void AddScheduleOptions(CLI::App* command, PipelineSpecOptions* o) {
  CLI::Option* kind =
      command
          ->add_option(
              "--schedule", o->schedule,
              "Training schedule, as `penstock schedule list` names them; without a --balance or --device, what is not "
              "given of the schedule is the planner's choice")
          ->type_name("KIND");
  command
      ->add_option("--schedule-file", o->schedule_file,
                   "A training schedule of your own, as text or CSV: penstock schedule show --as csv; - is stdin")
      ->type_name("FILE")
      ->excludes(kind);
  command->add_option("--micro-batches", o->micro_batches, "Parts of each mini-batch")->type_name("M");
  command->add_option("--chunks", o->chunks, "Stages on each device, of kinds that place several")->type_name("V");
  command->add_option("--lag", o->lag, "With --schedule lag: micro-batches that weight gradients may stay behind")
      ->type_name("K");
  command->add_option("--limit", o->live_limit, "With --schedule auto: micro-batches that a device may hold")
      ->type_name("L");
  command->add_option("--checkpoint", o->checkpoint, "What to recompute: always, except_last, never, skip_adjacent")
      ->check(CLI::IsMember({"always", "except_last", "never", "skip_adjacent"}))
      ->type_name("MODE");
  command->add_option("--mini-batch-rows", o->mini_batch_rows, "Rows of the mini-batch that the planner plans for")
      ->type_name("N");
  command
      ->add_option("--planning-seconds", o->planning_seconds,
                   "Time to measure and choose in; 0: measure nothing; unset: 20")
      ->type_name("SECONDS");
}

absl::Status PutSchedule(const PipelineSpecOptions& o, Session& session, v1::ScheduleSpec* schedule) {
  if (!o.schedule.empty()) {
    schedule->set_kind(o.schedule);
    schedule->clear_actions();
  }
  if (!o.schedule_file.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(*schedule->mutable_actions(),
                              session.ReadFile(o.schedule_file, kMaxUnaryBytes, "a schedule here"));
    if (schedule->actions().empty()) return UsageError("--schedule-file", "is empty, got " + o.schedule_file);
    schedule->clear_kind();
  }
  if (o.micro_batches.has_value()) schedule->set_micro_batches(*o.micro_batches);
  if (o.chunks.has_value()) schedule->set_chunks(*o.chunks);
  if (o.lag.has_value()) schedule->set_lag(*o.lag);
  if (o.live_limit.has_value()) schedule->set_live_limit(*o.live_limit);
  if (!o.checkpoint.empty()) schedule->set_checkpoint(CheckpointModeOf(o.checkpoint));
  if (o.mini_batch_rows.has_value()) schedule->set_mini_batch_rows(*o.mini_batch_rows);
  return absl::OkStatus();
}

// Any of its options asks for batching, unless the flag says that there is to be none.
absl::Status PutBatching(const PipelineSpecOptions& o, v1::PipelineSpec* spec) {
  const bool off = o.dynamic_batching == false;
  if (off) spec->clear_dynamic_batching();
  if (o.dynamic_batching == true) spec->mutable_dynamic_batching();
  const auto put = [&](std::string_view option, const auto& given, const auto& set) -> absl::Status {
    if (!given.has_value()) return absl::OkStatus();
    if (off) {
      return UsageError(option, absl::StrCat("belongs to --dynamic-batching, which is false, got ", *given));
    }
    (spec->mutable_dynamic_batching()->*set)(*given);
    return absl::OkStatus();
  };
  using Batching = v1::DynamicBatching;
  PENSTOCK_RETURN_IF_ERROR(put("--batch-rows", o.batch_rows, &Batching::set_max_rows));
  PENSTOCK_RETURN_IF_ERROR(put("--batch-micro-batch-rows", o.batch_micro_batch_rows, &Batching::set_micro_batch_rows));
  return put("--batch-delay", o.batch_delay, &Batching::set_max_delay_seconds);
}

void AddSpecFile(CLI::App* command, PipelineSpecOptions* o) {
  command->add_option("--spec", o->file, "PipelineSpec as protobuf text or JSON; the options below go over it")
      ->type_name("FILE");
}

void AddModelOptions(CLI::App* command, PipelineSpecOptions* o) {
  command->add_option("--model", o->model, "Reference model, for example gpt, mlp, resnet, unet, amoebanet")
      ->type_name("NAME");
  command->add_option("--model-program", o->model_program, "Exported program in the model root, for example resnet.pt2")
      ->type_name("ID")
      ->excludes("--model");
  command->add_option("--program-cuts", o->program_cuts, "Where it may be cut: modules, nodes")
      ->check(CLI::IsMember({"modules", "nodes"}))
      ->type_name("WHERE");
  command->add_option("--program-digest", o->program_digest, "That its file must have: sha256:...")
      ->type_name("DIGEST");
  command->add_option("--option", o->model_options, "Setting of the model, for example blocks=8; repeatable")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command->add_option("--dtype", o->dtype, "Of the parameters: fp32, fp64, bf16, fp16")->type_name("TYPE");
  command->add_option("--autocast", o->autocast, "Let operators choose their precision: bf16, fp16")->type_name("TYPE");
  command->add_option("--tie", o->ties, "One parameter for several layers: embedding.weight,head.weight; repeatable")
      ->type_name("A,B")
      ->allow_extra_args(false);
  AddSwitch(command, "--deferred-batch-norm", &o->deferred_batch_norm,
            "Running statistics follow mini-batches instead of micro-batches");
  AddSwitch(command, "--tuple-as-one-argument", &o->tuple_as_one_argument,
            "A layer gets several values as one tuple instead of as its arguments");
}

void AddCutOptions(CLI::App* command, PipelineSpecOptions* o) {
  CLI::Option* stages = command->add_option("--stages", o->stages, "Cut into so many stages by cost")->type_name("N");
  CLI::Option* balance =
      command->add_option("--balance", o->balance, "Cut by hand: layers of each stage, for example 5,5")
          ->delimiter(',')
          ->type_name("N,N")
          ->excludes(stages);
  command->add_option("--cut-at", o->starts, "Cut by hand: layers or modules that begin a stage, for example layer3,fc")
      ->delimiter(',')
      ->type_name("NAME,NAME")
      ->excludes(stages)
      ->excludes(balance);
  command->add_option("--ranks", o->ranks, "With --balance: process of each stage, for example 0,0,1")
      ->delimiter(',')
      ->type_name("N,N");
  command->add_option("--device", o->devices, "Device of the next stage, for example cpu:0; repeatable")
      ->type_name("DEVICE")
      ->allow_extra_args(false);
  command
      ->add_option("--device-of", o->device_of,
                   "Device of one layer, or of a module of a program, for example head=cpu:1; repeatable")
      ->type_name("LAYER=DEVICE")
      ->allow_extra_args(false);
  command->add_option("--cut-cost", o->cut_cost, "What a cut weighs: time, size")
      ->check(CLI::IsMember({"time", "size"}))
      ->type_name("COST");
  command->add_option("--cut-method", o->cut_method, "How it is found: exact, block-partition")
      ->check(CLI::IsMember({"exact", "block-partition"}))
      ->type_name("METHOD");
  command->add_option("--parameter-scale", o->parameter_scale, "Bytes that a parameter's byte weighs by size")
      ->type_name("X");
}

void AddLearningOptions(CLI::App* command, PipelineSpecOptions* o) {
  command->add_option("--optimizer", o->optimizer, "adagrad, adam, adamw, lion, nadam, rmsprop, sgd; unset: adamw")
      ->type_name("NAME");
  AddOptimizerOptions(command, &o->of_optimizer);
  command->add_option("--loss", o->loss, "cross_entropy, mean_squared_error, binary_cross_entropy, scalar_output")
      ->type_name("NAME");
  command->add_option("--loss-option", o->loss_options, "Setting of the loss, for example label_smoothing=0.1")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command->add_option("--class-weights", o->class_weights, "Of cross_entropy: one for each class, for example 1,2.5,1")
      ->delimiter(',')
      ->type_name("X,X");
  command
      ->add_option("--loss-output", o->loss_output, "Output that the loss is of, by name or position; unset: the first")
      ->type_name("OUTPUT");
  command->add_option("--seed", o->seed, "Of weights and dropout")->type_name("N");
}

void AddInferenceOptions(CLI::App* command, PipelineSpecOptions* o) {
  command->add_option("--bubble-filling", o->bubble_filling, "Inference in the gaps of training: on, off")
      ->check(CLI::IsMember({"on", "off"}))
      ->type_name("MODE");
  command->add_option("--inference-share", o->inference_share, "Of training's time, for inference that found no gap")
      ->type_name("X");
  command->add_option("--inference-max-wait", o->inference_max_wait, "Until it may; 0: as long as it takes alone")
      ->type_name("SECONDS");
  AddSwitch(command, "--dynamic-batching", &o->dynamic_batching, "Requests of inference that wait together run as one");
  command->add_option("--batch-rows", o->batch_rows, "Of a batch of requests at most; unset: 64")->type_name("N");
  command->add_option("--batch-micro-batch-rows", o->batch_micro_batch_rows, "That it is split into for the stages")
      ->type_name("N");
  command
      ->add_option("--batch-delay", o->batch_delay,
                   "That a request waits for others where it could run; unset: on one lane, after a batch, a quarter "
                   "of its time")
      ->type_name("SECONDS");
}

}  // namespace

void AddPipelineSpecOptions(CLI::App* command, PipelineSpecOptions* options) {
  AddSpecFile(command, options);
  AddModelOptions(command, options);
  AddCutOptions(command, options);
  AddScheduleOptions(command, options);
  AddLearningOptions(command, options);
  AddInferenceOptions(command, options);
}

void AddReplanOptions(CLI::App* command, PipelineSpecOptions* options) {
  AddSpecFile(command, options);
  AddCutOptions(command, options);
  AddScheduleOptions(command, options);
  AddInferenceOptions(command, options);
}

absl::StatusOr<v1::PipelineSpec> BuildPipelineSpec(const PipelineSpecOptions& o, Session& session, bool needs_model) {
  v1::PipelineSpec spec;
  if (!o.file.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(spec, ReadSpecFile(o.file, session));
  }
  if (needs_model && o.file.empty() && o.model.empty() && o.model_program.empty()) {
    return UsageError("--model",
                      "missing; or give an exported program by --model-program, or a specification by --spec");
  }

  PENSTOCK_RETURN_IF_ERROR(PutModel(o, spec.mutable_model()));
  PutCut(o, spec.mutable_cut());
  if (!o.devices.empty()) spec.mutable_devices()->Assign(o.devices.begin(), o.devices.end());

  PENSTOCK_RETURN_IF_ERROR(PutSchedule(o, session, spec.mutable_schedule()));

  v1::OptimizerSpec* optimizer = spec.mutable_optimizer();
  if (!o.optimizer.empty()) optimizer->set_name(o.optimizer);
  PENSTOCK_RETURN_IF_ERROR(PutOptimizer(o.of_optimizer, optimizer));

  if (!o.loss.empty()) spec.mutable_loss()->set_name(o.loss);
  PENSTOCK_RETURN_IF_ERROR(PutPairs("--loss-option", o.loss_options, spec.mutable_loss()->mutable_options()));
  if (!o.loss_output.empty()) spec.mutable_loss()->set_output(o.loss_output);
  if (!o.class_weights.empty()) {
    spec.mutable_loss()->mutable_class_weights()->Assign(o.class_weights.begin(), o.class_weights.end());
  }
  if (o.seed.has_value()) spec.set_seed(*o.seed);
  if (!o.bubble_filling.empty()) {
    spec.mutable_bubble_filling()->set_mode(o.bubble_filling == "off" ? v1::BUBBLE_FILLING_OFF : v1::BUBBLE_FILLING_ON);
  }
  if (o.inference_share.has_value()) spec.mutable_bubble_filling()->set_inference_share(*o.inference_share);
  if (o.inference_max_wait.has_value()) spec.mutable_bubble_filling()->set_max_wait_seconds(*o.inference_max_wait);
  if (o.planning_seconds.has_value()) spec.set_planning_seconds(*o.planning_seconds);
  PENSTOCK_RETURN_IF_ERROR(PutBatching(o, &spec));
  return spec;
}

}  // namespace penstock
