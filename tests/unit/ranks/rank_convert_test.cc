// What ranks say of plans, runs and stages, as messages and back.

#include "server/ranks/rank_convert.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

#include "engine/base/error.h"
#include "server/ranks/build_convert.h"
#include "server/rpc/convert/proto_convert.h"

namespace penstock {
namespace {

Plan TwoStages() {
  Plan plan;
  plan.stages = {
      {.first_layer = 0, .layers = {"a", "b"}, .device = "cpu:0", .lane = 0, .stash_bytes = 11},
      {.first_layer = 2, .layers = {"c"}, .device = "1/cpu:0", .lane = 1, .rank = Rank(1), .input_bytes = 5}};
  plan.skips = {{.edge = {.from = 0, .to = 1}, .names = {{"space", "x"}, {"", "y"}}, .bytes = 9}};
  plan.schedule = {.kind = "zb-h1", .micro_batches = 6, .checkpoint = CheckpointMode::kNever};
  plan.micro_batch_rows = 4;
  plan.undo = true;
  plan.hop_seconds = 0.5;
  plan.transfers = {{.from = 0, .to = 1, .bytes = 14, .latency_seconds = 0.1, .transfer_seconds = 0.7}};
  return plan;
}

PipelineSpec Spec() {
  PipelineSpec spec;
  spec.model.layers = {{.kind = "linear", .name = "a", .device = "cpu:1"}};
  spec.model.layer_devices = {{"a", "cpu:0"}};
  spec.devices = {"cpu:0", "1/cpu:0"};
  spec.optimizer.name = "sgd";
  spec.seed = 99;
  spec.bubble_filling.inference_share = 0.25;
  return spec;
}

TEST(RankConvert, StagesToBuildHaveThePlanAndNoDevicesOfTheLeader) {
  const auto built = FromProto(ToProto("gpt", 3, Spec(), TwoStages()));
  ASSERT_TRUE(built.ok()) << built.status();
  EXPECT_EQ(built->name, "gpt");
  EXPECT_TRUE(built->spec.devices.empty());
  EXPECT_TRUE(built->spec.model.layer_devices.empty());
  EXPECT_EQ(built->spec.model.layers.at(0).device, "");
  EXPECT_EQ(built->spec.optimizer.name, "sgd");
  EXPECT_EQ(built->spec.seed, 99u);
  EXPECT_EQ(built->spec.bubble_filling.inference_share, 0.25);
  const Plan wanted = TwoStages();
  const Plan& plan = built->plan;
  ASSERT_EQ(plan.stages.size(), 2u);
  EXPECT_EQ(plan.stages[0].layers, wanted.stages[0].layers);
  EXPECT_EQ(plan.stages[0].stash_bytes, 11);
  EXPECT_EQ(plan.stages[1].device, "1/cpu:0");
  EXPECT_EQ(plan.stages[1].rank, Rank(1));
  EXPECT_EQ(plan.stages[1].lane, 1);
  EXPECT_EQ(plan.stages[1].input_bytes, 5);
  EXPECT_EQ(plan.skips, wanted.skips);
  EXPECT_EQ(plan.schedule.kind, "zb-h1");
  EXPECT_EQ(plan.schedule.micro_batches, 6);
  EXPECT_EQ(plan.schedule.checkpoint, CheckpointMode::kNever);
  EXPECT_EQ(plan.micro_batch_rows, 4);
  EXPECT_TRUE(plan.undo);
  EXPECT_EQ(plan.hop_seconds, 0.5);
  EXPECT_EQ(plan.transfers, wanted.transfers);  // bit for bit: lists may depend on them
}

TEST(RankConvert, LinksComeBackAsTheyWereMeasured) {
  const std::vector<Link> links = {
      {.one = Rank(1), .other = Rank(2), .measured = true, .latency_seconds = 1e-4, .bytes_per_second = 3e8},
      {.one = Rank(0), .other = Rank(1), .problem = "no echo"}};
  const auto read = FromProto(Rank(1), ToProto(Rank(1), links));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, links);
  peer::v1::MeasuredLinks lie = ToProto(Rank(1), links);
  lie.mutable_links(0)->set_bytes_per_second(0);
  EXPECT_EQ(ReasonOf(FromProto(Rank(1), lie).status()), "RANK_MESSAGE");
  lie = ToProto(Rank(1), links);
  lie.mutable_links(0)->set_latency_seconds(std::nan(""));
  EXPECT_EQ(ReasonOf(FromProto(Rank(1), lie).status()), "RANK_MESSAGE");
}

TEST(RankConvert, StagesThatDoNotFollowOneAnotherAreRefused) {
  const auto refused = [](const std::function<void(peer::v1::BuildStages&)>& change) {
    peer::v1::BuildStages message = ToProto("gpt", 3, Spec(), TwoStages());
    change(message);
    return std::string(FromProto(message).status().message());
  };
  EXPECT_EQ(refused([](auto& m) { m.mutable_stages(1)->set_first_layer(1); }),
            "build.stages.first_layer: must be 2, got 1");
  EXPECT_EQ(refused([](auto& m) { m.mutable_stages(1)->set_lane(2); }), "build.stages.lane: must lie in [0, 2), got 2");
  EXPECT_EQ(refused([](auto& m) { m.mutable_stages(1)->set_lane(0); }),
            "build.stages.rank: must be that of the others on lane 0, 0, got 1");
  EXPECT_EQ(refused([](auto& m) { m.clear_stages(); }), "build.stages: must not be empty, got none");
  EXPECT_EQ(refused([](auto& m) { m.mutable_skips(0)->set_to(2); }),
            "build.skips: must go from a stage to a later one, got 0 to 2");
  EXPECT_EQ(refused([](auto& m) { m.mutable_transfers(0)->set_from(1); }),
            "build.transfers: must go from a stage to a later one, got 1 to 1");
}

TEST(RankConvert, ARunArrivesAsItIs) {
  RunOrder order;
  order.spec = {.id = 5,
                .purpose = SchedulePurpose::kBackwardOnly,
                .micro_batches = 2,
                .rows = {3, 4},
                .seed = 8,
                .step = StepId(9),
                .micro_batch_base = 1,
                .training = true,
                .keep_graph = true,
                .retain_graph = true,
                .accumulating = true,
                .graph = 4,
                .keep_outputs = true,
                .input_gradients = true};
  order.loss = LossSpec{.name = "cross_entropy", .output = "logits", .class_weights = {0.5, 2}};
  order.output = 1;
  order.targets = true;
  order.shares = {0.25, 0.75};
  order.metrics = {"accuracy"};
  order.order = {.priority = -2, .turn = 6, .sequence = 7};
  const auto back = FromProto(ToProto(order));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(ToProto(*back).SerializeAsString(), ToProto(order).SerializeAsString());
  EXPECT_EQ(back->spec.purpose, SchedulePurpose::kBackwardOnly);
  EXPECT_EQ(back->spec.rows, order.spec.rows);
  EXPECT_EQ(back->spec.step, StepId(9));
  EXPECT_TRUE(back->spec.training && back->spec.keep_graph && back->spec.retain_graph && back->spec.accumulating &&
              back->spec.keep_outputs && back->spec.input_gradients && back->targets);
  EXPECT_EQ(back->spec.graph, 4);
  EXPECT_EQ(back->loss->class_weights, order.loss->class_weights);
  EXPECT_EQ(back->shares, order.shares);
  EXPECT_EQ(back->order, order.order);

  RunOrder inference;
  inference.spec = {.id = 6, .micro_batches = 1, .rows = {3}, .inference = true};
  EXPECT_TRUE(FromProto(ToProto(inference))->spec.inference);
}

TEST(RankConvert, ARunThatLacksWhatItsLanesTakeIsRefused) {
  RunOrder order;
  order.spec = {.id = 5, .purpose = SchedulePurpose::kTrainingStep, .micro_batches = 2, .rows = {3, 4}};
  order.targets = true;
  order.shares = {0.25, 0.75};
  const auto refused = [&](const std::function<void(peer::v1::StartRun&)>& change) {
    peer::v1::StartRun message = ToProto(order);
    change(message);
    return std::string(FromProto(message).status().message());
  };
  constexpr int kForward = static_cast<int>(SchedulePurpose::kForwardOnly);
  constexpr int kStepAlone = static_cast<int>(SchedulePurpose::kOptimizerOnly);
  EXPECT_EQ(refused([](auto&) {}), "");
  EXPECT_EQ(refused([](auto& m) { m.set_purpose(99); }), "start.purpose: must lie in [0, 4], got 99");
  EXPECT_EQ(refused([](auto& m) { m.set_run(0); }), "start.run: must be above 0, got 0");
  EXPECT_EQ(refused([](auto& m) { m.set_micro_batches(3); }),
            "start.rows: must be one for each of the 3 micro-batches, got 2");
  EXPECT_EQ(refused([](auto& m) { m.set_micro_batches(0); }), "start.micro_batches: must be at least 1, got 0");
  EXPECT_EQ(refused([](auto& m) { m.set_purpose(kStepAlone); }),
            "start.micro_batches: must be 0 for a step alone, got 2");
  EXPECT_EQ(refused([](auto& m) { m.mutable_shares()->RemoveLast(); }),
            "start.shares: must be one for each of the 2 micro-batches, got 1");
  EXPECT_EQ(refused([](auto& m) { m.clear_shares(); }),
            "start.shares: must be one for each of the 2 micro-batches, got 0");
  EXPECT_EQ(refused([](auto& m) {
              m.clear_shares();
              m.clear_targets();
            }),
            "");
  EXPECT_EQ(refused([](auto& m) {
              m.clear_shares();
              m.clear_targets();
              m.add_metrics("accuracy");
            }),
            "start.shares: must be one for each of the 2 micro-batches, got 0");
  EXPECT_EQ(refused([](auto& m) { m.set_inference(true); }),
            "start.inference: must be a forward that keeps nothing, got another run");
  EXPECT_EQ(refused([](auto& m) {
              m.set_purpose(kForward);
              m.set_inference(true);
              m.set_keep_graph(true);
            }),
            "start.inference: must be a forward that keeps nothing, got another run");
}

TEST(RankConvert, MeasuresAndFactsArriveAsTheyAre) {
  const Measures measures = {.losses = {1.5, 2.5},
                             .metric_sums = {{{.sum = 3, .counted = 4}}, {{.sum = 5, .counted = 6}}}};
  const auto back = FromProto(ToProto(measures));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->losses, measures.losses);
  EXPECT_EQ(back->metric_sums.at(1).at(0).counted, 6);

  FactsOfRank facts;
  facts.shapes = {{.stage = 1,
                   .saved = ShapesOf({{"c.weight", at::ones({2, 3})}}),
                   .optimizer = ShapesOf({{"optimizer/c.weight/step", at::ones({}, at::kLong)}})}};
  facts.parameters = {{1, {"c.weight"}}};
  facts.parameter_count = 6;
  peer::v1::Facts message;
  ASSERT_TRUE(SetFacts(facts, &message).ok());
  const auto known = FromProto(message);
  ASSERT_TRUE(known.ok()) << known.status();
  EXPECT_EQ(known->shapes.at(0).saved.at(0).tensor.sizes(), at::IntArrayRef({2, 3}));
  EXPECT_TRUE(known->shapes.at(0).saved.at(0).tensor.is_meta());
  EXPECT_EQ(known->shapes.at(0).optimizer.at(0).tensor.scalar_type(), at::kLong);
  EXPECT_EQ(known->parameters, facts.parameters);
  EXPECT_EQ(known->parameter_count, 6);
  message.mutable_states()->mutable_stages(0)->set_saved(2);
  EXPECT_EQ(ReasonOf(FromProto(message).status()), "RANK_MESSAGE");
}

}  // namespace
}  // namespace penstock
