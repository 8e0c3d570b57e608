// The specification that a checkpoint keeps, and what a request puts over it.

#include "server/rpc/convert/checkpoint_convert.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "engine/base/error.h"
#include "google/protobuf/text_format.h"
#include "server/rpc/convert/proto_convert.h"

namespace penstock::testing {
namespace {

v1::PipelineSpec Spec(const std::string& text) {
  v1::PipelineSpec spec;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &spec)) << text;
  return spec;
}

constexpr char kAsked[] = R"(
  model { name: "gpt" options { key: "blocks" value { int_value: 8 } } ties { parameters: ["a", "b"] } }
  cut { stages: 2 } optimizer { name: "sgd" options { key: "momentum" value { double_value: 0.9 } } clip_norm: 1 }
  loss { name: "cross_entropy" } seed: 9
)";

// A checkpoint of a pipeline that was asked for with `text`, and planned as three stages and 4 micro-batches.
CheckpointInfo Checkpoint(const std::string& text = kAsked) {
  Plan plan;
  plan.schedule = {.kind = "zb-h1", .micro_batches = 4, .checkpoint = CheckpointMode::kNever};
  plan.stages = {{.layers = {"a", "b"}}, {.layers = {"c"}}, {.layers = {"d"}}};
  const v1::PipelineSpec asked = Spec(text);
  const OptimizerSpec optimizer = FromProto(asked.optimizer()).value();
  ModelSpec model;
  if (!asked.model().program().empty()) model.program_digest = "sha256:1";
  return {.pipeline = "gpt",
          .id = "mine",
          .specification = std::make_shared<const std::string>(SpecificationBytes(asked, plan, model, optimizer))};
}

v1::PipelineSpec From(const CheckpointInfo& info, const std::string& given) {
  const absl::StatusOr<CheckpointSpecifications> specs = SpecificationFrom(info, Spec(given));
  EXPECT_TRUE(specs.ok()) << specs.status();
  return specs.ok() ? specs->planned : v1::PipelineSpec();
}

TEST(CheckpointConvertTest, UnsetItIsAsItWasPlanned) {
  const v1::PipelineSpec spec = From(Checkpoint(), "");
  EXPECT_EQ(spec.model().name(), "gpt");
  EXPECT_EQ(spec.schedule().kind(), "zb-h1");
  EXPECT_EQ(spec.schedule().micro_batches(), 4);
  EXPECT_EQ(spec.schedule().checkpoint(), v1::CHECKPOINT_MODE_NEVER);
  EXPECT_EQ(spec.cut().stages(), 0);
  ASSERT_EQ(spec.cut().balance_size(), 3);
  EXPECT_EQ(spec.cut().balance(0), 2);
  EXPECT_EQ(spec.seed(), 9u);
  EXPECT_TRUE(FromProto(spec).ok()) << FromProto(spec).status();
  v1::PipelineSpec asked = Spec(kAsked);
  asked.mutable_optimizer()->mutable_learning_rate_schedule()->set_name("constant");
  EXPECT_EQ(SpecificationFrom(Checkpoint(), {})->asked.SerializeAsString(), asked.SerializeAsString());
  const v1::PipelineSpec program = From(Checkpoint(R"(model { program: "resnet.pt2" })"), "");
  EXPECT_EQ(program.model().program_digest(), "sha256:1") << "the file must be the same one";
}

TEST(CheckpointConvertTest, ACutByHandAndLayersWithDevicesStay) {
  EXPECT_EQ(From(Checkpoint(R"(model { name: "gpt" } cut { starts: "x" })"), "").cut().starts(0), "x");
  EXPECT_EQ(From(Checkpoint(R"(model { layers { kind: "relu" device: "cpu" } })"), "").cut().balance_size(), 0);
}

TEST(CheckpointConvertTest, AnotherCutIsTakenAsAWholeAndMicroBatchesStay) {
  const v1::PipelineSpec spec = From(Checkpoint(), "cut { balance: [1, 3] } devices: \"cpu:1\"");
  EXPECT_EQ(spec.cut().stages(), 0);
  ASSERT_EQ(spec.cut().balance_size(), 2);
  EXPECT_EQ(spec.devices(0), "cpu:1");
  EXPECT_EQ(spec.schedule().kind(), "") << "as it was asked for";
  EXPECT_EQ(spec.schedule().micro_batches(), 4);
  EXPECT_EQ(From(Checkpoint(), "schedule { kind: \"gpipe\" }").schedule().micro_batches(), 4);
  EXPECT_EQ(From(Checkpoint(), "schedule { micro_batches: 7 }").schedule().micro_batches(), 7);
  EXPECT_FALSE(From(Checkpoint(), "schedule { actions: \"0F0,0B0\" }").schedule().has_micro_batches());
}

TEST(CheckpointConvertTest, WhatIsSetGoesOverTheCheckpointsFieldByField) {
  const v1::PipelineSpec spec = From(Checkpoint(), R"(
    model { autocast: "bf16" options { key: "width" value { int_value: 4 } } ties { parameters: ["c", "d"] } }
    optimizer { options { key: "learning_rate" value { double_value: 0.5 } } } loss { output: "y" } seed: 3)");
  EXPECT_EQ(spec.model().name(), "gpt");
  EXPECT_EQ(spec.model().autocast(), "bf16");
  EXPECT_EQ(spec.model().options().size(), 2u);
  ASSERT_EQ(spec.model().ties_size(), 1) << "a list is taken as a whole";
  EXPECT_EQ(spec.model().ties(0).parameters(0), "c");
  EXPECT_EQ(spec.optimizer().name(), "sgd");
  EXPECT_EQ(spec.optimizer().options().size(), 2u);
  EXPECT_EQ(spec.optimizer().clip_norm(), 1);
  EXPECT_EQ(spec.loss().name(), "cross_entropy");
  EXPECT_EQ(spec.loss().output(), "y");
  EXPECT_EQ(spec.seed(), 3u);
}

TEST(CheckpointConvertTest, AnotherModelOptimizerOrLossIsTakenAsAWhole) {
  const v1::PipelineSpec spec =
      From(Checkpoint(), R"(model { name: "mlp" } optimizer { name: "adamw" } loss { name: "mean_squared_error" })");
  EXPECT_EQ(spec.model().options().size(), 0u);
  EXPECT_EQ(spec.optimizer().options().size(), 0u);
  EXPECT_EQ(spec.optimizer().clip_norm(), 0);
  EXPECT_EQ(spec.loss().name(), "mean_squared_error");
  EXPECT_EQ(From(Checkpoint(R"(model { name: "gpt" } optimizer { clip_norm: 2 })"), R"(optimizer { name: "adamw" })")
                .optimizer()
                .clip_norm(),
            2)
      << "it is the default";
  const CheckpointInfo weighted = Checkpoint(
      R"(model { name: "gpt" }
         loss { name: "cross_entropy" class_weights: [1, 2]
                options { key: "label_smoothing" value { double_value: 0.1 } } })");
  EXPECT_EQ(From(weighted, "").loss().class_weights_size(), 2);
  const v1::LossSpec loss = From(weighted, R"(loss { name: "mean_squared_error" })").loss();
  EXPECT_EQ(loss.options().size(), 0u);
  EXPECT_EQ(loss.class_weights_size(), 0);
}

TEST(CheckpointConvertTest, TheOptimizersSettingsAreThoseOfTheTimeOfTheSave) {
  OptimizerSpec changed = FromProto(Spec(kAsked).optimizer()).value();
  changed.options["momentum"] = 0.5;
  changed.groups = {{.patterns = {"a"}, .frozen = true}};
  CheckpointInfo info = Checkpoint();
  info.specification = std::make_shared<const std::string>(SpecificationBytes(Spec(kAsked), {}, {}, changed));
  const v1::OptimizerSpec optimizer = From(info, "").optimizer();
  EXPECT_EQ(optimizer.options().at("momentum").double_value(), 0.5);
  ASSERT_EQ(optimizer.groups_size(), 1);
  EXPECT_TRUE(optimizer.groups(0).frozen());
}

TEST(CheckpointConvertTest, AnotherLearningRateScheduleIsTakenAsAWhole) {
  const CheckpointInfo info = Checkpoint(
      R"(model { name: "gpt" }
         optimizer { clip_norm: 1 learning_rate_schedule { name: "step" step_size: 3 gamma: 0.5 warmup_steps: 2 } })");
  const v1::OptimizerSpec optimizer =
      From(info, R"(optimizer { learning_rate_schedule { name: "linear" total_steps: 9 } })").optimizer();
  EXPECT_EQ(optimizer.clip_norm(), 1);
  const v1::LearningRateSpec& rate = optimizer.learning_rate_schedule();
  EXPECT_EQ(rate.total_steps(), 9);
  EXPECT_EQ(rate.warmup_steps(), 0);
  EXPECT_EQ(rate.step_size(), 0);
  EXPECT_FALSE(rate.has_gamma());
  EXPECT_EQ(From(info, R"(optimizer { learning_rate_schedule { warmup_steps: 4 } })")
                .optimizer()
                .learning_rate_schedule()
                .step_size(),
            3)
      << "field by field";
}

TEST(CheckpointConvertTest, OneWithoutASpecificationNeedsAModel) {
  CheckpointInfo info = Checkpoint();
  info.specification = nullptr;
  const absl::Status status = SpecificationFrom(info, Spec("seed: 1")).status();
  EXPECT_EQ(ReasonOf(status), "CHECKPOINT_SPEC_MISSING");
  EXPECT_EQ(ValuesOf(status)["checkpoint"], "mine");
  EXPECT_EQ(ValuesOf(status)["field"], "spec");
  EXPECT_EQ(From(info, R"(model { name: "mlp" } seed: 1)").model().name(), "mlp");
}

TEST(CheckpointConvertTest, BytesThatAreNoSpecificationAreDamage) {
  CheckpointInfo info = Checkpoint();
  const std::string good = *info.specification;
  for (const std::string& bytes :
       {std::string("x"), good.substr(0, good.size() / 2), std::string(5 << 20, '\0'), std::string()}) {
    info.specification = std::make_shared<const std::string>(bytes);
    EXPECT_EQ(ReasonOf(SpecificationFrom(info, {}).status()), "CHECKPOINT_CORRUPT") << bytes.size();
    EXPECT_FALSE(CheckpointMessages().Make(info, true).has_specification());
  }
  info = Checkpoint();
  info.damage = "state.safetensors is missing";
  const absl::Status damaged = SpecificationFrom(info, {}).status();
  EXPECT_EQ(ReasonOf(damaged), "CHECKPOINT_CORRUPT");
  EXPECT_EQ(std::string(damaged.message()), "checkpoint mine is damaged: state.safetensors is missing");
  EXPECT_EQ(ValuesOf(damaged)["checkpoint"], "mine");
}

TEST(CheckpointConvertTest, MessagesTellTheModelOfEach) {
  CheckpointMessages messages;
  const CheckpointInfo gpt = Checkpoint();
  const CheckpointInfo program = Checkpoint(R"(model { program: "resnet.pt2" })");
  EXPECT_EQ(messages.Make(gpt, true).model(), "gpt");
  EXPECT_EQ(messages.Make(gpt, false).model(), "gpt");
  EXPECT_FALSE(messages.Make(gpt, false).pipeline_exists());
  EXPECT_EQ(messages.Make(program, true).model(), "resnet.pt2");
  EXPECT_EQ(messages.Make(program, true).program_digest(), "sha256:1");
  EXPECT_EQ(messages.Make({.pipeline = "old", .id = "x"}, true).model(), "");
  EXPECT_EQ(messages.Make(gpt, true).model(), "gpt");
}

TEST(CheckpointConvertTest, DifferencesOfSpecificationsAreNamed) {
  PipelineEntry entry;
  entry.name = "gpt";
  entry.spec = FromProto(Spec(kAsked)).value();
  const auto check = [&](const std::string& text) {
    return CheckSameSpecification(entry, {FromProto(Spec(text)).value()});
  };
  EXPECT_TRUE(check(kAsked).ok());
  EXPECT_TRUE(check(std::string(kAsked) + "bubble_filling { mode: BUBBLE_FILLING_ON }").ok()) << "the default";
  const absl::Status status = check(std::string(kAsked) + "planning_seconds: 3");
  EXPECT_EQ(ReasonOf(status), "PIPELINE_EXISTS");
  EXPECT_EQ(ValuesOf(status)["field"], "spec.planning_seconds");
  EXPECT_TRUE(CheckSameSpecification(
                  entry, {FromProto(Spec(R"(model { name: "mlp" })")).value(), FromProto(Spec(kAsked)).value()})
                  .ok());
  entry.spec = FromProto(Spec(R"(model { program: "resnet.pt2" program_digest: "sha256:1" })")).value();
  EXPECT_TRUE(check(R"(model { program: "resnet.pt2" })").ok()) << "a digest counts if it is given";
  EXPECT_TRUE(check(R"(model { program: "resnet.pt2" program_digest: "sha256:1" })").ok());
  EXPECT_EQ(ReasonOf(check(R"(model { program: "resnet.pt2" program_digest: "sha256:2" })")), "PIPELINE_EXISTS");
}

}  // namespace
}  // namespace penstock::testing
