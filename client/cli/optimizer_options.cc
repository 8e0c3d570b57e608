#include "client/cli/optimizer_options.h"

#include "absl/strings/str_split.h"
#include "client/cli/exit_code.h"
#include "client/cli/option_pairs.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

absl::Status PutGroups(const OptimizerOptions& o, v1::OptimizerSpec* optimizer) {
  if (!o.groups.empty() || !o.freeze.empty()) optimizer->clear_groups();
  if (!o.freeze.empty()) {
    v1::ParameterGroup* frozen = optimizer->add_groups();
    frozen->mutable_patterns()->Assign(o.freeze.begin(), o.freeze.end());
    frozen->set_frozen(true);
  }
  for (const std::string& text : o.groups) {
    const size_t colon = text.find(':');
    if (colon == std::string::npos || colon == 0) {
      return UsageError("--group", "must be PATTERN,PATTERN:KEY=VALUE,KEY=VALUE, got '" + text + "'");
    }
    v1::ParameterGroup* group = optimizer->add_groups();
    for (const absl::string_view pattern : absl::StrSplit(text.substr(0, colon), ',', absl::SkipEmpty())) {
      group->add_patterns(std::string(pattern));
    }
    const std::vector<std::string> pairs = absl::StrSplit(text.substr(colon + 1), ',', absl::SkipEmpty());
    PENSTOCK_RETURN_IF_ERROR(PutPairs("--group", pairs, group->mutable_options()));
  }
  return absl::OkStatus();
}

// A schedule that is named begins anew.
void PutSchedule(const OptimizerOptions& o, v1::LearningRateSpec* rate) {
  if (!o.rate_schedule.empty()) {
    rate->Clear();
    rate->set_name(o.rate_schedule);
  } else if (o.total_steps.has_value() && (rate->name().empty() || rate->name() == "constant")) {
    rate->set_name("warmup_cosine");
  }
  if (o.total_steps.has_value()) rate->set_total_steps(*o.total_steps);
  if (o.warmup_steps.has_value()) rate->set_warmup_steps(*o.warmup_steps);
  if (o.final_ratio.has_value()) rate->set_final_ratio(*o.final_ratio);
  if (o.rate_step_size.has_value()) rate->set_step_size(*o.rate_step_size);
  if (o.rate_gamma.has_value()) rate->set_gamma(*o.rate_gamma);
  if (o.rate_power.has_value()) rate->set_power(*o.rate_power);
}

void AddScheduleOptions(CLI::App* command, OptimizerOptions* o) {
  command
      ->add_option("--rate-schedule", o->rate_schedule,
                   "How the learning rate changes: constant, warmup_cosine, linear, polynomial, step")
      ->type_name("NAME");
  command->add_option("--total-steps", o->total_steps, "Length of the rate's schedule; alone, that of a warmup_cosine")
      ->type_name("N");
  command->add_option("--warmup-steps", o->warmup_steps, "Steps of rising rate before")->type_name("N");
  command->add_option("--final-ratio", o->final_ratio, "Rate at the end, as a part of the peak")->type_name("X");
  command->add_option("--rate-step-size", o->rate_step_size, "With --rate-schedule step: steps of equal rate")
      ->type_name("N");
  command
      ->add_option("--rate-gamma", o->rate_gamma, "With --rate-schedule step: what follows them, as a part; unset: 0.1")
      ->type_name("X");
  command->add_option("--rate-power", o->rate_power, "With --rate-schedule polynomial: its exponent; unset: 1")
      ->type_name("X");
}

}  // namespace

void AddOptimizerOptions(CLI::App* command, OptimizerOptions* o) {
  command->add_option("--optimizer-option", o->options, "Setting of the optimizer, for example beta2=0.95; repeatable")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command->add_option("--learning-rate", o->learning_rate, "Learning rate, or its peak")->type_name("RATE");
  command->add_option("--weight-decay", o->weight_decay, "Weight decay")->type_name("X");
  command->add_option("--clip-norm", o->clip_norm, "Longest gradient; 0: any")->type_name("X");
  AddScheduleOptions(command, o);
  command
      ->add_option(
          "--group", o->groups,
          "Settings of parameters by name, for example '*.bias,*.norm.*:weight_decay=0'; repeatable, the first that "
          "matches has a parameter")
      ->type_name("PATTERN,...:KEY=VALUE,...")
      ->allow_extra_args(false);
  command->add_option("--freeze", o->freeze, "Parameters that are not learnt, for example 'block0.*'; repeatable")
      ->type_name("PATTERN")
      ->allow_extra_args(false);
}

absl::Status PutOptimizer(const OptimizerOptions& o, v1::OptimizerSpec* optimizer) {
  OptionMap* options = optimizer->mutable_options();
  PENSTOCK_RETURN_IF_ERROR(PutPairs("--optimizer-option", o.options, options));
  if (o.learning_rate.has_value()) (*options)["learning_rate"].set_double_value(*o.learning_rate);
  if (o.weight_decay.has_value()) (*options)["weight_decay"].set_double_value(*o.weight_decay);
  if (o.clip_norm.has_value()) optimizer->set_clip_norm(*o.clip_norm);
  PutSchedule(o, optimizer->mutable_learning_rate_schedule());
  return PutGroups(o, optimizer);
}

}  // namespace penstock
