// Which parameters a group has, and what an optimizer with groups does.

#include "engine/optim/parameter_groups.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/optim/optimizer.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

TEST(MatchesPattern, TakesStarsAndQuestionMarks) {
  for (const char* pattern : {"block_0.norm.bias", "*", "*.bias", "block_0.*", "block_?.norm.*", "*norm*", "b*k_0*.*s",
                              "**.bias", "block_0.norm.bias*", "*o*o*"}) {
    EXPECT_TRUE(MatchesPattern(pattern, "block_0.norm.bias")) << pattern;
  }
  for (const char* pattern : {"", "bias", "block_0", "block_1.*", "*.weight", "block_0.norm.bias?",
                              "?block_0.norm.bias", "*o*o*o*", "block_0.norm.bia"}) {
    EXPECT_FALSE(MatchesPattern(pattern, "block_0.norm.bias")) << pattern;
  }
  EXPECT_TRUE(MatchesPattern("*", ""));
  EXPECT_FALSE(MatchesPattern("?", ""));
  // Without end where every star tries all that the one before it left.
  EXPECT_FALSE(MatchesPattern(std::string(200, '*') + "a*a*a*a*a*a*a*a*b", std::string(250, 'a')));
}

TEST(Groups, TheFirstThatMatchesHasAParameter) {
  const std::vector<ParameterGroup> groups = {{.patterns = {"head.*", "*.bias"}}, {.patterns = {"*"}, .frozen = true}};
  EXPECT_EQ(GroupOf(groups, "head.weight"), 0u);
  EXPECT_EQ(GroupOf(groups, "body.bias"), 0u);
  EXPECT_EQ(GroupOf(groups, "body.weight"), 1u);
  EXPECT_EQ(GroupOf({}, "body.weight"), std::nullopt);
  EXPECT_FALSE(IsFrozen(groups, "head.weight"));
  EXPECT_TRUE(IsFrozen(groups, "body.weight"));
}

TEST(CheckGroups, NamesAPatternOfNoParameterAndWhatComesNear) {
  const std::vector<std::string> names = {"embedding.weight", "block_0.norm.bias", "block_1.norm.bias", "head.bias",
                                          "head.weight"};
  EXPECT_TRUE(CheckGroups({{.patterns = {"*.bias", "head.*"}}}, names).ok());
  const absl::Status wrong = CheckGroups({{.patterns = {"*"}}, {.patterns = {"head.*", "block_2.norm.bias"}}}, names);
  EXPECT_EQ(ReasonOf(wrong), "SPEC_INVALID");
  EXPECT_EQ(ValuesOf(wrong)["field"], "spec.optimizer.groups[1].patterns[1]");
  EXPECT_EQ(ValuesOf(wrong)["value"], "block_2.norm.bias");
  EXPECT_THAT(std::string(wrong.message()), HasSubstr("near are block_0.norm.bias, block_1.norm.bias, "));
  EXPECT_THAT(std::string(CheckGroups({{.patterns = {"*.bais"}}}, names).message()),
              HasSubstr("near are block_0.norm.bias"));
  EXPECT_THAT(std::string(CheckGroups({{.patterns = {"a*b"}}}, {"cxb", "b"}).message()), HasSubstr("near are b, cxb"))
      << "one character each";
  EXPECT_EQ(ValuesOf(CheckGroups({{.patterns = {}}}, names))["field"], "spec.optimizer.groups[0].patterns");
}

constexpr double kPlainRate = 0.5;

NamedTensors BodyAndHead() {
  NamedTensors parameters;
  for (const char* name : {"body.weight", "body.bias", "head.weight"}) {
    parameters.push_back({name, at::full({2}, 1.0).requires_grad_(true)});
    parameters.back().tensor.mutable_grad() = at::full({2}, 0.25);
  }
  return parameters;
}

double ValueOf(const NamedTensor& parameter) { return parameter.tensor[0].item<double>(); }

OptimizerSpec Grouped() {
  return {.name = "sgd",
          .options = {{"learning_rate", 0.5}, {"weight_decay", 0.5}},
          .groups = {{.patterns = {"*.bias"}, .options = {{"weight_decay", 0.0}}},
                     {.patterns = {"head.*"}, .options = {{"learning_rate", 1.0}}}}};
}

TEST(GroupedOptimizer, GivesEachGroupItsOptionsAndItsShareOfTheRate) {
  for (const bool keeps : {false, true}) {
    for (const double rate : {kPlainRate, kPlainRate / 4}) {  // by a schedule, or by a call
      const NamedTensors parameters = BodyAndHead();
      const auto optimizer = *MakeOptimizer(Grouped(), {parameters});
      keeps ? optimizer->StepKeepingGradients(rate, 1) : optimizer->Step(rate, 1);
      EXPECT_NEAR(ValueOf(parameters[0]), 1 - rate * 0.75, 1e-6);
      EXPECT_NEAR(ValueOf(parameters[1]), 1 - rate * 0.25, 1e-6);
      EXPECT_NEAR(ValueOf(parameters[2]), 1 - 2 * rate * 0.75, 1e-6);
    }
  }
}

TEST(GroupedOptimizer, LeavesFrozenParametersAndTheirStateAlone) {
  OptimizerSpec spec{.name = "adamw", .groups = {{.patterns = {"body.*"}, .frozen = true}}};
  const NamedTensors parameters = BodyAndHead();
  const auto optimizer = *MakeOptimizer(spec, {parameters});
  EXPECT_EQ(optimizer->Changing().size(), 4u);  // the head, its moments and its steps
  optimizer->Step(kPlainRate, 1);
  optimizer->StepKeepingGradients(kPlainRate, 1);
  for (const NamedTensor& slot : optimizer->State()) {
    EXPECT_EQ(slot.tensor.eq(0).all().item<bool>(), slot.name.starts_with("body.")) << slot.name;
  }
  EXPECT_EQ(ValueOf(parameters[0]), 1);
  EXPECT_EQ(ValueOf(parameters[1]), 1);
  EXPECT_NE(ValueOf(parameters[2]), 1);
}

TEST(GroupedOptimizer, HasItsStateInTheOrderOfTheParameters) {
  OptimizerSpec spec{.name = "sgd", .options = {{"momentum", 0.9}}, .groups = {{.patterns = {"body.weight"}}}};
  const auto optimizer = *MakeOptimizer(spec, {BodyAndHead()});
  std::vector<std::string> names;
  for (const NamedTensor& slot : optimizer->State()) names.push_back(slot.name);
  EXPECT_THAT(names, ::testing::ElementsAre("body.weight/momentum", "body.bias/momentum", "head.weight/momentum"));
}

TEST(GroupedOptimizer, TakesOtherSettingsAndKeepsItsState) {
  OptimizerSpec spec{.name = "sgd", .options = {{"momentum", 0.5}, {"learning_rate", kPlainRate}}};
  const NamedTensors parameters = BodyAndHead();
  const auto before = *MakeOptimizer(spec, {parameters});
  before->StepKeepingGradients(kPlainRate, 1);  // 1 - 0.5 * 0.25
  spec.groups = {{.patterns = {"body.*"}, .options = {{"learning_rate", kPlainRate / 2}}}};
  const auto after = before->WithSettings(spec);
  ASSERT_TRUE(after.ok()) << after.status();
  (*after)->StepKeepingGradients(kPlainRate, 1);  // the momentum is 0.25, then 0.5 * 0.25 + 0.25
  EXPECT_NEAR(ValueOf(parameters[0]), 0.875 - kPlainRate / 2 * 0.375, 1e-6);
  EXPECT_NEAR(ValueOf(parameters[2]), 0.875 - kPlainRate * 0.375, 1e-6);

  spec.groups[0].options["momentum"] = 0.0;
  EXPECT_EQ(ValuesOf((*after)->WithSettings(spec).status())["field"], "spec.optimizer.options");
  spec.options = {};
  spec.groups.clear();
  EXPECT_EQ(ValuesOf((*after)->WithSettings(spec).status())["value"], "no body.weight/momentum");
  EXPECT_EQ(ValuesOf((*MakeOptimizer(spec, {parameters}))
                         ->WithSettings({.name = "sgd", .options = {{"momentum", 0.5}}})
                         .status())["value"],
            "body.weight/momentum");
}

TEST(CheckOptimizer, NamesWhatIsWrongWithAGroup) {
  const auto field = [](const OptimizerSpec& spec) { return ValuesOf(CheckOptimizer(spec))["field"]; };
  OptimizerSpec spec = Grouped();
  EXPECT_TRUE(CheckOptimizer(spec).ok());
  spec.groups[1].options["beta1"] = 0.9;
  EXPECT_EQ(field(spec), "spec.optimizer.groups[1].options[beta1]");
  spec = Grouped();
  spec.groups[0].options["weight_decay"] = -1.0;
  EXPECT_EQ(field(spec), "spec.optimizer.groups[0].options[weight_decay]");
  spec = Grouped();
  spec.options["learning_rate"] = 0.0;
  EXPECT_EQ(field(spec), "spec.optimizer.options[learning_rate]");
  spec.groups[1].options["learning_rate"] = 0.0;
  EXPECT_TRUE(CheckOptimizer(spec).ok());
  spec = {.name = "sgd", .groups = {{.patterns = {"*"}, .options = {{"momentum", 0.9}}}}};
  EXPECT_EQ(OptimizerStateRatio(spec), 1);  // the most of any group
}

}  // namespace
}  // namespace penstock
