#include "engine/optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/check.h"
#include "engine/base/status_macros.h"
#include "engine/device/torch_status.h"
#include "engine/optim/learning_rate.h"
#include "engine/optim/optimizer_kinds.h"
#include "engine/optim/parameter_groups.h"
#include "engine/optim/spec_error.h"
#include "engine/wire/tensor_header.h"

namespace penstock {
namespace {

// Every rule by its name, sorted.
struct NamedRule {
  std::string_view name;
  RuleSpec (*read)(OptionReader& options);
};
constexpr NamedRule kRules[] = {{"adagrad", ReadAdagrad}, {"adam", ReadAdam},   {"adamw", ReadAdamw},
                                {"lion", ReadLion},       {"nadam", ReadNadam}, {"rmsprop", ReadRmsprop},
                                {"sgd", ReadSgd}};

absl::StatusOr<RuleSpec> ReadRule(const std::string& name, const OptionMap& options, const std::string& field) {
  for (const NamedRule& known : kRules) {
    if (known.name != name) continue;
    OptionReader reader(options, field);
    RuleSpec rule = known.read(reader);
    PENSTOCK_RETURN_IF_ERROR(reader.Finish());
    return rule;
  }
  return OptimizerError("spec.optimizer.name",
                        absl::StrCat("is not known; known are ", absl::StrJoin(OptimizerNames(), ", ")),
                        Shortened(name));
}

// The rule of parameters of no group first, then those of the groups, whose options go over the optimizer's.
absl::StatusOr<std::vector<RuleSpec>> ReadRules(const OptimizerSpec& spec) {
  std::vector<RuleSpec> rules;
  PENSTOCK_ASSIGN_OR_RETURN(rules.emplace_back(), ReadRule(spec.name, spec.options, "spec.optimizer.options"));
  for (size_t g = 0; g < spec.groups.size(); ++g) {
    OptionMap options = spec.groups[g].options;
    options.insert(spec.options.begin(), spec.options.end());
    const std::string field = absl::StrCat("spec.optimizer.groups[", g, "].options");
    PENSTOCK_ASSIGN_OR_RETURN(rules.emplace_back(), ReadRule(spec.name, options, field));
    if (rules[0].learning_rate == 0 && rules.back().learning_rate != 0) {
      return OptimizerError("spec.optimizer.options[learning_rate]",
                            "must be above 0 where a group has a rate of its own, which is in proportion to it", "0");
    }
  }
  return rules;
}

}  // namespace

Optimizer::Optimizer(NamedTensors parameters, std::vector<Part> parts, std::vector<Place> places)
    : parameters_(std::move(parameters)), parts_(std::move(parts)), places_(std::move(places)) {}

void Optimizer::Step(double learning_rate, double scale) {
  for (const Part& part : parts_) {
    if (!part.frozen) part.rule->Step(learning_rate * part.rate_ratio, scale);
  }
}

void Optimizer::StepKeepingGradients(double learning_rate, double scale) {
  for (const Part& part : parts_) {
    if (!part.frozen) part.rule->StepKeepingGradients(learning_rate * part.rate_ratio, scale);
  }
}

Tensors Optimizer::Changing(bool ever) const {
  Tensors changing;
  for (const Part& part : parts_) {
    if (part.frozen) continue;
    for (at::Tensor& tensor : part.rule->Changing(ever)) changing.push_back(std::move(tensor));
  }
  return changing;
}

NamedTensors Optimizer::State() const {
  NamedTensors state;
  for (const Place& place : places_) {
    for (NamedTensor& slot : parts_[place.part].rule->StateOf(place.index)) state.push_back(std::move(slot));
  }
  return state;
}

absl::StatusOr<std::unique_ptr<Optimizer>> Optimizer::WithSettings(const OptimizerSpec& spec) const {
  RuleTensors tensors{.parameters = parameters_};
  const NamedTensors now = State();
  for (const NamedTensor& slot : now) tensors.state.emplace(slot.name, slot.tensor);
  PENSTOCK_ASSIGN_OR_RETURN(std::unique_ptr<Optimizer> changed, MakeOptimizer(spec, std::move(tensors)));
  const NamedTensors then = changed->State();
  for (size_t i = 0; i < std::max(now.size(), then.size()); ++i) {
    if (i < now.size() && i < then.size() && now[i].name == then[i].name) continue;
    return OptimizerError("spec.optimizer.options",
                          "must keep the state that there is: make another pipeline for others",
                          i < then.size() ? Shortened(then[i].name) : "no " + Shortened(now[i].name));
  }
  return changed;
}

absl::Status CheckOptimizer(const OptimizerSpec& spec) {
  PENSTOCK_RETURN_IF_ERROR(ReadRules(spec).status());
  if (!std::isfinite(spec.clip_norm) || spec.clip_norm < 0) {
    return OptimizerError("spec.optimizer.clip_norm", "must be finite and not negative", absl::StrCat(spec.clip_norm));
  }
  return CheckLearningRate(spec.learning_rate_schedule);
}

absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(const OptimizerSpec& spec, RuleTensors tensors) {
  PENSTOCK_RETURN_IF_ERROR(CheckOptimizer(spec));
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<RuleSpec> rules, ReadRules(spec));
  std::vector<RuleTensors> of_part(rules.size());
  std::vector<Optimizer::Place> places;
  for (const NamedTensor& parameter : tensors.parameters) {
    const std::optional<size_t> group = GroupOf(spec.groups, parameter.name);
    const size_t part = group.has_value() ? *group + 1 : 0;
    places.push_back({part, of_part[part].parameters.size()});
    of_part[part].parameters.push_back(parameter);
  }
  std::vector<Optimizer::Part> parts;
  PENSTOCK_RETURN_IF_ERROR(RunTorch([&] {
    for (size_t i = 0; i < rules.size(); ++i) {
      of_part[i].state = tensors.state;
      const bool own_rate = rules[i].learning_rate != rules[0].learning_rate;
      parts.push_back({.frozen = i > 0 && spec.groups[i - 1].frozen,
                       .rate_ratio = own_rate ? rules[i].learning_rate / rules[0].learning_rate : 1,
                       .rule = rules[i].make(std::move(of_part[i]))});
    }
  }));
  return std::unique_ptr<Optimizer>(new Optimizer(std::move(tensors.parameters), std::move(parts), std::move(places)));
}

double OptimizerStateRatio(const OptimizerSpec& spec) {
  const absl::StatusOr<std::vector<RuleSpec>> rules = ReadRules(spec);
  if (!rules.ok()) return 0;
  double most = 0;
  for (const RuleSpec& rule : *rules) most = std::max(most, rule.state_ratio);
  return most;
}

double LearningRate(const OptimizerSpec& spec, int64_t step) {
  const absl::StatusOr<std::vector<RuleSpec>> rules = ReadRules(spec);
  PENSTOCK_CHECK(rules.ok());  // the specification was checked
  return rules->front().learning_rate * LearningRateFactor(spec.learning_rate_schedule, step);
}

std::vector<std::string> OptimizerNames() {
  std::vector<std::string> names;
  for (const NamedRule& rule : kRules) names.emplace_back(rule.name);
  return names;
}

}  // namespace penstock
