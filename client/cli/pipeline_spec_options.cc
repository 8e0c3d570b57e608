#include "client/cli/pipeline_spec_options.h"

#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/cli/exit_code.h"
#include "engine/base/status_macros.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"

namespace penstock {
namespace {

using OptionMap = google::protobuf::Map<std::string, v1::Option>;

// true, false, 12, 1e-3, anything else as text.
v1::Option ParseValue(const std::string& text) {
  v1::Option option;
  int64_t integer = 0;
  double number = 0;
  if (text == "true" || text == "false") {
    option.set_bool_value(text == "true");
  } else if (absl::SimpleAtoi(text, &integer)) {
    option.set_int_value(integer);
  } else if (absl::SimpleAtod(text, &number)) {
    option.set_double_value(number);
  } else {
    option.set_string_value(text);
  }
  return option;
}

absl::Status PutOptions(std::string_view argument, const std::vector<std::string>& pairs, OptionMap* map) {
  for (const std::string& pair : pairs) {
    const size_t equals = pair.find('=');
    if (equals == std::string::npos || equals == 0) {
      return UsageError(argument, "must be KEY=VALUE, got '" + pair + "'");
    }
    (*map)[pair.substr(0, equals)] = ParseValue(pair.substr(equals + 1));
  }
  return absl::OkStatus();
}

// Keeps the first complaint of the text parser.
class FirstComplaint : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, google::protobuf::io::ColumnNumber column, const std::string& message) override {
    if (text_.empty()) text_ = absl::StrCat("line ", line + 1, ", column ", column + 1, ": ", message);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

absl::Status ReadSpecFile(const std::string& path, Session& session, v1::PipelineSpec* spec) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::string text, session.ReadFile(path));
  FirstComplaint complaint;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&complaint);
  if (!parser.ParseFromString(text, spec)) return UsageError("--spec", complaint.text());
  return absl::OkStatus();
}

v1::CheckpointMode CheckpointModeOf(const std::string& word) {
  if (word == "always") return v1::CHECKPOINT_MODE_ALWAYS;
  if (word == "never") return v1::CHECKPOINT_MODE_NEVER;
  return v1::CHECKPOINT_MODE_EXCEPT_LAST;
}

void SetDouble(OptionMap* map, const char* name, const std::optional<double>& value) {
  if (value.has_value()) (*map)[name].set_double_value(*value);
}

}  // namespace

void AddPipelineSpecOptions(CLI::App* command, PipelineSpecOptions* o) {
  command->add_option("--spec", o->file, "PipelineSpec in protobuf text form; the options below go over it")
      ->type_name("FILE");
  command->add_option("--model", o->model, "Reference model: gpt, mlp")->type_name("NAME");
  command->add_option("--option", o->model_options, "Setting of the model, for example blocks=8; repeatable")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  CLI::Option* stages =
      command->add_option("--stages", o->stages, "Cut into so many stages by measured time")->type_name("N");
  command->add_option("--balance", o->balance, "Cut by hand: layers of each stage, for example 5,5")
      ->delimiter(',')
      ->type_name("N,N")
      ->excludes(stages);
  command->add_option("--device", o->devices, "Device of the next stage, for example cpu:0; repeatable")
      ->type_name("DEVICE")
      ->allow_extra_args(false);
  command->add_option("--schedule", o->schedule, "Training schedule: 1f1b, gpipe")->type_name("KIND");
  command->add_option("--micro-batches", o->micro_batches, "Parts of each mini-batch")->type_name("M");
  command->add_option("--checkpoint", o->checkpoint, "What to recompute: always, except_last, never")
      ->check(CLI::IsMember({"always", "except_last", "never"}))
      ->type_name("MODE");
  command->add_option("--optimizer", o->optimizer, "adamw, sgd")->type_name("NAME");
  command->add_option("--optimizer-option", o->optimizer_options, "Setting of the optimizer, for example beta2=0.95")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command->add_option("--learning-rate", o->learning_rate, "Learning rate, or its peak")->type_name("RATE");
  command->add_option("--weight-decay", o->weight_decay, "Weight decay")->type_name("X");
  command->add_option("--clip-norm", o->clip_norm, "Longest gradient; 0: any")->type_name("X");
  CLI::Option* total =
      command->add_option("--total-steps", o->total_steps, "Length of the cosine schedule")->type_name("N");
  command->add_option("--warmup-steps", o->warmup_steps, "Steps of rising rate before the cosine")
      ->type_name("N")
      ->needs(total);
  command->add_option("--final-ratio", o->final_ratio, "Rate at the end, as a part of the peak")
      ->type_name("X")
      ->needs(total);
  command->add_option("--loss", o->loss, "cross_entropy, mean_squared_error")->type_name("NAME");
  command->add_option("--loss-option", o->loss_options, "Setting of the loss, for example ignore_index=-100")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command->add_option("--seed", o->seed, "Of weights and dropout")->type_name("N");
}

absl::StatusOr<v1::PipelineSpec> BuildPipelineSpec(const PipelineSpecOptions& o, Session& session) {
  v1::PipelineSpec spec;
  if (!o.file.empty()) PENSTOCK_RETURN_IF_ERROR(ReadSpecFile(o.file, session, &spec));
  if (o.file.empty() && o.model.empty()) return UsageError("--model", "missing; or give a specification by --spec");

  if (!o.model.empty()) spec.mutable_model()->set_name(o.model);
  PENSTOCK_RETURN_IF_ERROR(PutOptions("--option", o.model_options, spec.mutable_model()->mutable_options()));

  if (o.stages.has_value()) {
    spec.mutable_cut()->clear_balance();
    spec.mutable_cut()->set_stages(*o.stages);
  }
  if (!o.balance.empty()) {
    spec.mutable_cut()->clear_stages();
    spec.mutable_cut()->mutable_balance()->Assign(o.balance.begin(), o.balance.end());
  }
  if (!o.devices.empty()) spec.mutable_devices()->Assign(o.devices.begin(), o.devices.end());

  if (!o.schedule.empty()) spec.mutable_schedule()->set_kind(o.schedule);
  if (o.micro_batches.has_value()) spec.mutable_schedule()->set_micro_batches(*o.micro_batches);
  if (!o.checkpoint.empty()) spec.mutable_schedule()->set_checkpoint(CheckpointModeOf(o.checkpoint));

  v1::OptimizerSpec* optimizer = spec.mutable_optimizer();
  if (!o.optimizer.empty()) optimizer->set_name(o.optimizer);
  PENSTOCK_RETURN_IF_ERROR(PutOptions("--optimizer-option", o.optimizer_options, optimizer->mutable_options()));
  SetDouble(optimizer->mutable_options(), "learning_rate", o.learning_rate);
  SetDouble(optimizer->mutable_options(), "weight_decay", o.weight_decay);
  if (o.clip_norm.has_value()) optimizer->set_clip_norm(*o.clip_norm);
  if (o.total_steps.has_value()) {
    v1::LearningRateSpec* rate = optimizer->mutable_learning_rate_schedule();
    rate->set_name("warmup_cosine");
    rate->set_total_steps(*o.total_steps);
    if (o.warmup_steps.has_value()) rate->set_warmup_steps(*o.warmup_steps);
    if (o.final_ratio.has_value()) rate->set_final_ratio(*o.final_ratio);
  }

  if (!o.loss.empty()) spec.mutable_loss()->set_name(o.loss);
  PENSTOCK_RETURN_IF_ERROR(PutOptions("--loss-option", o.loss_options, spec.mutable_loss()->mutable_options()));
  if (o.seed.has_value()) spec.set_seed(*o.seed);
  return spec;
}

}  // namespace penstock
