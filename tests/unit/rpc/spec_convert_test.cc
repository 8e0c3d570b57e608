// Specifications and plans between messages and engine values: everything arrives, and what can't be is refused by
// name.

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "engine/base/error.h"
#include "server/rpc/convert/proto_convert.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

v1::PipelineSpec Parse(const std::string& text) {
  v1::PipelineSpec message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << text;
  return message;
}

// The specification must be refused with this field and sentence.
void ExpectRefused(const v1::PipelineSpec& message, const std::string& field, const std::string& sentence) {
  const absl::StatusOr<PipelineSpec> spec = FromProto(message);
  ASSERT_FALSE(spec.ok()) << field;
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(spec.status()), "SPEC_INVALID");
  EXPECT_EQ(ValuesOf(spec.status()).at("field"), field);
  EXPECT_THAT(std::string(spec.status().message()), StartsWith(field + ": "));
  EXPECT_THAT(std::string(spec.status().message()), HasSubstr(sentence));
}

// `depth` layers of kind sequential within each other, the innermost empty.
v1::PipelineSpec Nested(int depth) {
  v1::PipelineSpec message;
  auto* layers = message.mutable_model()->mutable_layers();
  for (int i = 0; i < depth; ++i) {
    v1::LayerSpec* layer = layers->Add();
    layer->set_kind("sequential");
    layers = layer->mutable_layers();
  }
  return message;
}

TEST(SpecConvert, EverythingOfAModelArrives) {
  const absl::StatusOr<PipelineSpec> spec = FromProto(Parse(R"(
    model {
      layers { kind: "linear" name: "first" device: "cpu:0" options { key: "width" value { int_value: 4 } } }
      layers {
        kind: "sequential" name: "outer" device: "cpu:1"
        isolate { skip_namespace: "ns" only: "a" only: "b" }
        isolate { skip_namespace: "other" }
        layers { kind: "relu" layers { kind: "gelu" name: "deep" } }
      }
      ties { parameters: "first.weight" parameters: "outer.weight" }
      deferred_batch_norm: true
      tuple_as_one_argument: true
      dtype: "bf16"
      autocast: "fp16"
    })"));
  ASSERT_TRUE(spec.ok()) << spec.status();
  const ModelSpec& model = spec->model;
  ASSERT_EQ(model.layers.size(), 2u);
  EXPECT_EQ(model.layers[0].device, "cpu:0");
  EXPECT_EQ(std::get<int64_t>(model.layers[0].options.at("width")), 4);
  const LayerSpec& outer = model.layers[1];
  EXPECT_EQ(outer.device, "cpu:1");
  ASSERT_EQ(outer.isolate.size(), 2u);
  EXPECT_EQ(outer.isolate[0].skip_namespace, "ns");
  EXPECT_THAT(outer.isolate[0].only, ElementsAre("a", "b"));
  EXPECT_TRUE(outer.isolate[1].only.empty());
  EXPECT_EQ(outer.layers.at(0).kind, "relu");
  EXPECT_EQ(outer.layers.at(0).layers.at(0).name, "deep");
  EXPECT_THAT(model.ties.at(0).parameters, ElementsAre("first.weight", "outer.weight"));
  EXPECT_TRUE(model.deferred_batch_norm);
  EXPECT_TRUE(model.tuple_as_one_argument);
  EXPECT_EQ(model.dtype, "bf16");
  EXPECT_EQ(model.autocast, "fp16");
}

TEST(SpecConvert, TheSpecificationComesBackAsItWasSent) {
  const v1::PipelineSpec sent = Parse(R"(
    model {
      layers { kind: "linear" name: "first" device: "cpu:0" options { key: "bias" value { bool_value: true } } }
      layers { kind: "sequential" name: "outer" isolate { skip_namespace: "ns" only: "a" } layers { kind: "relu" } }
      ties { parameters: "a" parameters: "b" }
      deferred_batch_norm: true tuple_as_one_argument: true dtype: "fp64" autocast: "bf16"
    }
    cut {
      balance: 1 balance: 1 cost: CUT_COST_SIZE method: CUT_METHOD_BLOCK_PARTITION parameter_scale: 0 ranks: 0 ranks: 1
    }
    devices: "cpu:0"
    schedule { kind: "gpipe" micro_batches: 3 checkpoint: CHECKPOINT_MODE_ALWAYS chunks: 1 }
    optimizer {
      name: "sgd" clip_norm: 1
      learning_rate_schedule { name: "step" warmup_steps: 2 step_size: 3 gamma: 0.5 }
      groups { patterns: "*.bias" patterns: "a" options { key: "weight_decay" value { double_value: 0 } } }
      groups { patterns: "b" frozen: true }
    }
    loss { name: "cross_entropy" class_weights: 0.5 class_weights: 2 }
    seed: 7
    bubble_filling { mode: BUBBLE_FILLING_OFF inference_share: 0.25 max_wait_seconds: 2 }
    planning_seconds: 7.5
    dynamic_batching { max_rows: 32 micro_batch_rows: 8 max_delay_seconds: 0.5 })");
  const absl::StatusOr<PipelineSpec> spec = FromProto(sent);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(ToProto(*spec).DebugString(), sent.DebugString());
}

TEST(SpecConvert, ThePowerOfAPolynomialComesBackAsItWasSent) {
  v1::PipelineSpec sent;
  v1::LearningRateSpec* rate = sent.mutable_optimizer()->mutable_learning_rate_schedule();
  rate->set_name("polynomial");
  rate->set_total_steps(9);
  EXPECT_EQ(FromProto(sent)->optimizer.learning_rate_schedule.power, 1);
  rate->set_power(2);
  EXPECT_EQ(FromProto(sent)->optimizer.learning_rate_schedule.power, 2);
  EXPECT_EQ(ToProto(*FromProto(sent)).optimizer().learning_rate_schedule().power(), 2);
}

TEST(SpecConvert, WhatIsUnsetIsTheDefault) {
  const absl::StatusOr<PipelineSpec> spec = FromProto(v1::PipelineSpec());
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->schedule.micro_batches, 1);
  EXPECT_EQ(spec->schedule.checkpoint, CheckpointMode::kExceptLast);
  EXPECT_EQ(spec->cut.cost, CutSpec::Cost::kTime);
  EXPECT_EQ(spec->cut.method, CutSpec::Method::kExact);
  EXPECT_EQ(spec->cut.parameter_scale, 2);
  EXPECT_FALSE(spec->model.deferred_batch_norm);
  EXPECT_FALSE(spec->model.tuple_as_one_argument);
  EXPECT_TRUE(spec->bubble_filling.enabled);
  EXPECT_EQ(spec->limits.planning_seconds, 20);
  EXPECT_EQ(spec->bubble_filling.inference_share, 0.02);
}

TEST(SpecConvert, AnOptimizerHasBounds) {
  v1::PipelineSpec message;
  v1::OptimizerSpec* optimizer = message.mutable_optimizer();
  for (int i = 0; i <= 64; ++i) optimizer->add_groups();
  ExpectRefused(message, "spec.optimizer.groups", "must have at most 64 groups, got 65");
  optimizer->clear_groups();
  v1::ParameterGroup* group = optimizer->add_groups();
  for (int i = 0; i <= 64; ++i) group->add_patterns("*");
  ExpectRefused(message, "spec.optimizer.groups[0].patterns", "must have at most 64 patterns, got 65");
  group->clear_patterns();
  group->add_patterns(std::string(257, 'x'));
  ExpectRefused(message, "spec.optimizer.groups[0].patterns[0]", "must have at most 256 bytes, got 257 bytes");
  optimizer->clear_groups();
  message.mutable_loss()->mutable_class_weights()->Resize(16385, 1);
  ExpectRefused(message, "spec.loss.class_weights", "must have at most 16384 numbers, got 16385");
}

TEST(SpecConvert, HowInferenceRunsBesideTrainingIsChecked) {
  v1::PipelineSpec message;
  v1::BubbleFillingSpec* filling = message.mutable_bubble_filling();
  filling->set_mode(static_cast<v1::BubbleFilling>(9));
  ExpectRefused(message, "spec.bubble_filling.mode", "must be a known mode, got 9");
  filling->set_mode(v1::BUBBLE_FILLING_ON);
  filling->set_inference_share(1.5);
  ExpectRefused(message, "spec.bubble_filling.inference_share", "must be 0 to 1, got 1.5");
  filling->set_inference_share(0);
  filling->set_max_wait_seconds(-1);
  ExpectRefused(message, "spec.bubble_filling.max_wait_seconds", "must be 0 to a day, got -1");
  filling->set_max_wait_seconds(3);
  const absl::StatusOr<PipelineSpec> spec = FromProto(message);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->bubble_filling.inference_share, 0);
  EXPECT_EQ(spec->bubble_filling.max_wait_seconds, 3);
}

TEST(SpecConvert, HowRequestsAreBatchedIsChecked) {
  v1::PipelineSpec message;
  EXPECT_FALSE(FromProto(message)->batching.has_value());
  v1::DynamicBatching* batching = message.mutable_dynamic_batching();
  EXPECT_EQ(FromProto(message)->batching->max_rows, 64);
  EXPECT_EQ(ToProto(*FromProto(message)).dynamic_batching().max_rows(), 64);
  for (const int64_t rows : {0, 65'537}) {
    batching->set_max_rows(rows);
    ExpectRefused(message, "spec.dynamic_batching.max_rows", absl::StrCat("must be 1 to 65536, got ", rows));
  }
  batching->set_max_rows(8);
  for (const int64_t rows : {0, 9}) {
    batching->set_micro_batch_rows(rows);
    ExpectRefused(message, "spec.dynamic_batching.micro_batch_rows",
                  absl::StrCat("must be 1 to max_rows, 8, got ", rows));
  }
  batching->set_micro_batch_rows(8);
  batching->set_max_delay_seconds(61);
  ExpectRefused(message, "spec.dynamic_batching.max_delay_seconds", "must be 0 to 60, got 61");
  batching->set_max_delay_seconds(std::numeric_limits<double>::quiet_NaN());
  ExpectRefused(message, "spec.dynamic_batching.max_delay_seconds", "must be 0 to 60, got nan");
}

TEST(SpecConvert, APlanIsRefusedForTheBatchingThatAPipelineIsRefusedFor) {
  for (const char* batching : {"max_rows: 0", "max_rows: 65537", "max_rows: 8 micro_batch_rows: 9", "max_rows: -1",
                               "micro_batch_rows: 0", "max_delay_seconds: -1", "max_delay_seconds: inf"}) {
    v1::PlanPipelineRequest request;
    *request.mutable_spec() = Parse(absl::StrCat("dynamic_batching { ", batching, " }"));
    const absl::Status refused = FromProto(request).status();
    EXPECT_EQ(ReasonOf(refused), "SPEC_INVALID") << batching;
    EXPECT_EQ(refused, FromProto(request.spec()).status()) << batching;
  }
}

TEST(SpecConvert, ChunksAndCheckpointInTheAncestorsWords) {
  for (const int chunks : {0, -1}) {
    v1::PipelineSpec message;
    message.mutable_schedule()->set_micro_batches(chunks);
    ExpectRefused(message, "spec.schedule.micro_batches", "number of micro-batches must be a positive integer");
  }
  v1::PipelineSpec message;
  message.mutable_schedule()->set_checkpoint(static_cast<v1::CheckpointMode>(99));
  ExpectRefused(message, "spec.schedule.checkpoint", "checkpoint is not one of 'always', 'except_last', or 'never'");
}

TEST(SpecConvert, ChunksComeBeforeCheckpointAndBothBeforeLayersAndCut) {
  v1::PipelineSpec message = Nested(40);
  message.mutable_cut()->set_stages(-1);
  message.mutable_schedule()->set_checkpoint(static_cast<v1::CheckpointMode>(99));
  message.mutable_schedule()->set_micro_batches(0);
  ExpectRefused(message, "spec.schedule.micro_batches", "number of micro-batches");
  message.mutable_schedule()->clear_micro_batches();
  ExpectRefused(message, "spec.schedule.checkpoint", "checkpoint is not one of");
  message.mutable_schedule()->clear_checkpoint();
  EXPECT_THAT(std::string(FromProto(message).status().message()), HasSubstr("nested"));
  message.clear_model();
  ExpectRefused(message, "spec.cut.stages", "partitions must be a positive integer (-1 < 1)");
}

OpenChoices OpenIn(const std::string& text) {
  const absl::StatusOr<PipelineSpec> spec = FromProto(Parse(text));
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec.ok() ? spec->limits.open : OpenChoices();
}

TEST(SpecConvert, WhatIsUnsetIsThePlanners) {
  OpenChoices open = OpenIn("model { name: 'gpt' }");
  EXPECT_TRUE(open.kind && open.chunks && open.micro_batches && open.checkpoint);
  open = OpenIn("model { name: 'gpt' } cut { stages: 2 } schedule { kind: 'gpipe' micro_batches: 4 }");
  EXPECT_TRUE(!open.kind && !open.chunks && !open.micro_batches && open.checkpoint);
  open = OpenIn("schedule { chunks: 2 checkpoint: CHECKPOINT_MODE_SKIP_ADJACENT }");
  EXPECT_TRUE(open.kind && !open.chunks && open.micro_batches && !open.checkpoint);
}

TEST(SpecConvert, UnsetChunksAreOneWhereABalanceOrDevicesAreGiven) {
  for (const char* text : {"cut { balance: 2 balance: 1 }", "devices: 'cpu:0'", "model { layers { device: 'cpu:1' } }",
                           "model { layers { kind: 'sequential' layers { device: 'cpu' } } }"}) {
    EXPECT_FALSE(OpenIn(text).any()) << text;
    const absl::StatusOr<PipelineSpec> spec = FromProto(Parse(text));
    EXPECT_EQ(spec->schedule.micro_batches, 1);
    EXPECT_EQ(spec->schedule.kind, "1f1b");
    EXPECT_EQ(spec->schedule.checkpoint, CheckpointMode::kExceptLast);
  }
}

TEST(SpecConvert, AllOfAScheduleComesAndGoes) {
  const v1::PipelineSpec message = Parse(R"(
    schedule { kind: "lag" micro_batches: 8 checkpoint: CHECKPOINT_MODE_SKIP_ADJACENT chunks: 1 lag: 5
               mini_batch_rows: 64 })");
  const absl::StatusOr<PipelineSpec> spec = FromProto(message);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->schedule.lag, 5);
  EXPECT_EQ(spec->schedule.checkpoint, CheckpointMode::kSkipAdjacent);
  EXPECT_EQ(spec->limits.mini_batch_rows, 64);
  EXPECT_EQ(ToProto(*spec).schedule().SerializeAsString(), message.schedule().SerializeAsString());
  const v1::PipelineSpec open = Parse("model { name: 'gpt' }");
  EXPECT_EQ(ToProto(*FromProto(open)).schedule().SerializeAsString(), open.schedule().SerializeAsString());
  // The kinds of several chunks have two if nobody says how many.
  EXPECT_EQ(FromProto(Parse("devices: 'cpu:0' schedule { kind: 'zbv' }"))->schedule.chunks, 2);
}

TEST(SpecConvert, ParametersOfOtherKindsAreRefused) {
  ExpectRefused(Parse("schedule { chunks: 0 }"), "spec.schedule.chunks", "must be a positive integer");
  ExpectRefused(Parse("schedule { lag: 3 }"), "spec.schedule.lag", "must be unset unless kind is lag");
  ExpectRefused(Parse("schedule { kind: '1f1b' live_limit: 3 }"), "spec.schedule.live_limit", "unless kind is auto");
  ExpectRefused(Parse("schedule { mini_batch_rows: 0 }"), "spec.schedule.mini_batch_rows", "must be positive");
}

v1::PipelineSpec Listed(const std::string& lists) {
  v1::PipelineSpec message = Parse("model { name: 'gpt' }");
  message.mutable_schedule()->set_actions(lists);
  return message;
}

TEST(SpecConvert, ListsDecideAboutTheSchedule) {
  const std::string lists = "0F0,0F1,3F0,3F1,3B0,3B1,0B0,0B1\n1F0,1F1,2F0,2F1,2B0,2B1,1B0,1B1\n";
  v1::PipelineSpec message = Listed(lists);
  const absl::StatusOr<PipelineSpec> spec = FromProto(message);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->schedule.kind, "imported");
  EXPECT_EQ(spec->schedule.micro_batches, 2);
  EXPECT_EQ(spec->schedule.chunks, 2);
  EXPECT_EQ(ToCsv(spec->schedule.imported->actions), lists);
  const OpenChoices open = spec->limits.open;
  EXPECT_TRUE(!open.kind && !open.chunks && !open.micro_batches && open.checkpoint);
  // What is answered may be sent again.
  const v1::PipelineSpec answered = ToProto(*spec);
  EXPECT_EQ(answered.schedule().kind(), "imported");
  EXPECT_EQ(answered.schedule().actions(), lists);
  EXPECT_EQ(ToProto(*FromProto(answered)).SerializeAsString(), answered.SerializeAsString());
  // A search has nothing more to choose.
  v1::PlanPipelineRequest request;
  *request.mutable_spec() = message;
  request.mutable_limits()->add_kinds("1f1b");
  request.mutable_limits()->add_micro_batches(4);
  EXPECT_FALSE(FromProto(request)->limits.open.kind || FromProto(request)->limits.open.micro_batches);
}

TEST(SpecConvert, ListsThatCannotBeAreRefusedWithTheirPlace) {
  const std::string field = "spec.schedule.actions";
  ExpectRefused(Listed("0F0,0B0\n1F0,1X0\n"), field, "row of lane 1, cell 1");
  EXPECT_EQ(ValuesOf(FromProto(Listed("0F0,0B0\n1F0,1X0\n")).status())["cell"], "1");
  EXPECT_EQ(ValuesOf(FromProto(Listed("0F0,0B0\n1F0\n")).status())["value"], "1B0");
  ExpectRefused(Listed("0F0,0B0\n1F0\n"), field,
                "): 1B0 is missing: stage 1 has no gradient of micro-batch 0; penstock schedule verify draws it");
  EXPECT_EQ(std::string(FromProto(Listed("0F0,0B0\n1F0\n")).status().message()).find('\n'), std::string::npos);
  ExpectRefused(Listed("1F0,0F0,0B0,1B0\n"), field, "deadlock");
  ExpectRefused(Listed(std::string((128 << 10) + 1, ',')), field, "must have at most 131072 bytes");
  v1::PipelineSpec message = Listed("0F0,0B0\n1F0,1B0\n");
  message.mutable_schedule()->set_micro_batches(3);
  ExpectRefused(message, "spec.schedule.micro_batches", "must be unset or 1, as in spec.schedule.actions, got 3");
  message.mutable_schedule()->set_micro_batches(1);
  message.mutable_schedule()->set_chunks(2);
  ExpectRefused(message, "spec.schedule.chunks", "must be unset or 1, as in spec.schedule.actions, got 2");
  message.mutable_schedule()->clear_chunks();
  message.mutable_schedule()->set_kind("gpipe");
  ExpectRefused(message, "spec.schedule.kind", "must be unset or imported beside spec.schedule.actions, got gpipe");
  message.mutable_schedule()->clear_kind();
  message.mutable_schedule()->set_lag(1);
  ExpectRefused(message, "spec.schedule.lag", "must be unset unless kind is lag");
}

TEST(SpecConvert, LimitsOfASearchOpenChoices) {
  v1::PlanPipelineRequest request;
  *request.mutable_spec() = Parse("cut { balance: 2 balance: 1 }");
  EXPECT_FALSE(FromProto(request)->limits.open.any());
  request.mutable_limits()->add_kinds("1f1b");
  request.mutable_limits()->add_kinds("zbv");
  request.mutable_limits()->set_mini_batch_rows(16);
  absl::StatusOr<PipelineSpec> spec = FromProto(request);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_TRUE(spec->limits.open.kind && spec->limits.open.chunks && !spec->limits.open.micro_batches);
  EXPECT_EQ(spec->limits.max_chunks, 4);
  EXPECT_EQ(spec->limits.mini_batch_rows, 16);
  request.mutable_limits()->add_micro_batches(2);
  request.mutable_limits()->set_max_chunks(7);
  request.mutable_spec()->mutable_schedule()->set_kind("gpipe");
  request.mutable_spec()->mutable_schedule()->set_micro_batches(3);
  spec = FromProto(request);
  EXPECT_FALSE(spec->limits.open.kind);  // the specification has chosen
  EXPECT_FALSE(spec->limits.open.micro_batches);
  EXPECT_EQ(spec->limits.max_chunks, 7);
}

TEST(SpecConvert, LayersMayBeNestedSixteenDeep) {
  EXPECT_TRUE(FromProto(Nested(17)).ok());  // the model's own layers, and sixteen below
  std::string field = "spec.model.layers";
  for (int i = 0; i < 17; ++i) field += "[0].layers";
  ExpectRefused(Nested(18), field, "must not be nested more than 16 deep, got 17 deep");
}

TEST(SpecConvert, LayersAreCountedOverAllDepths) {
  v1::PipelineSpec message;
  for (int i = 0; i < 2; ++i) {
    v1::LayerSpec* layer = message.mutable_model()->add_layers();
    for (int k = 0; k < 2047; ++k) layer->add_layers()->set_kind("relu");
  }
  EXPECT_TRUE(FromProto(message).ok());
  message.mutable_model()->mutable_layers(1)->add_layers();
  ExpectRefused(message, "spec.model.layers[1].layers", "must have at most 4096 layers over all depths, got 4097");
}

TEST(SpecConvert, LongListsAndTextsAreRefused) {
  const std::string long_text(257, 'x');
  v1::PipelineSpec message;
  message.mutable_model()->add_layers()->set_device(long_text);
  ExpectRefused(message, "spec.model.layers[0].device", "must have at most 256 bytes");
  message.mutable_model()->mutable_layers(0)->clear_device();
  v1::SkipIsolation* isolation = message.mutable_model()->mutable_layers(0)->add_isolate();
  isolation->set_skip_namespace(long_text);
  ExpectRefused(message, "spec.model.layers[0].isolate[0].skip_namespace", "must have at most 256 bytes");
  isolation->clear_skip_namespace();
  for (int i = 0; i < 65; ++i) isolation->add_only("a");
  ExpectRefused(message, "spec.model.layers[0].isolate[0].only", "must have at most 64 names, got 65");
  message.clear_model();
  message.mutable_model()->add_ties()->add_parameters(long_text);
  ExpectRefused(message, "spec.model.ties[0].parameters[0]", "must have at most 256 bytes");
  message.clear_model();
  message.mutable_model()->set_dtype(long_text);
  ExpectRefused(message, "spec.model.dtype", "must have at most 256 bytes");
  message.mutable_model()->clear_dtype();
  message.mutable_model()->set_autocast(long_text);
  ExpectRefused(message, "spec.model.autocast", "must have at most 256 bytes");
}

TEST(SpecConvert, CutsThatCannotBeAreRefused) {
  v1::PipelineSpec message;
  message.mutable_cut()->set_cost(static_cast<v1::CutCost>(9));
  ExpectRefused(message, "spec.cut.cost", "must be TIME or SIZE, got 9");
  message.mutable_cut()->clear_cost();
  message.mutable_cut()->set_method(static_cast<v1::CutMethod>(9));
  ExpectRefused(message, "spec.cut.method", "must be EXACT or BLOCK_PARTITION, got 9");
  message.mutable_cut()->clear_method();
  for (const double scale : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    message.mutable_cut()->set_parameter_scale(scale);
    ExpectRefused(message, "spec.cut.parameter_scale", "must be finite and at least 0");
  }
}

TEST(PlanConvert, LayersSkipsAndReasonsArrive) {
  Plan plan;
  plan.stages = {{.first_layer = 0, .layers = {"a"}, .device = "cpu:0"},
                 {.first_layer = 1, .layers = {"b", "c"}, .device = "cpu:1", .rank = Rank(1)}};
  LayerPlan layer;
  layer.name = "b";
  layer.stage = 1;
  layer.forward_seconds = 1;
  layer.backward_seconds = 2;
  layer.stash_bytes = 3;
  layer.parameter_bytes = 4;
  layer.output_bytes = 5;
  layer.cost = 6;
  plan.layers = {LayerPlan{}, layer};
  SkipRoute route;
  route.edge = {.from = 0, .to = 1};
  route.names = {{.skip_namespace = "", .name = "x"}, {.skip_namespace = "ns", .name = "x"}};
  route.bytes = 7;
  plan.skips = {route};
  plan.why = {"because", "therefore"};
  const v1::Plan message = ToProto(plan);
  EXPECT_EQ(message.stages(1).device(), "cpu:1");
  EXPECT_EQ(message.stages(1).rank(), 1);
  ASSERT_EQ(message.layers_size(), 2);
  EXPECT_EQ(message.layers(1).ShortDebugString(),
            "name: \"b\" stage: 1 forward_seconds: 1 backward_seconds: 2 stash_bytes: 3 output_bytes: 5 "
            "parameter_bytes: 4 cost: 6");
  EXPECT_EQ(message.skips(0).ShortDebugString(), "to_stage: 1 names: \"x\" names: \"ns/x\" bytes: 7");
  EXPECT_THAT(message.why(), ElementsAre("because", "therefore"));
}

TEST(SignatureConvert, AnyValueHasNoTypeAndNoShape) {
  ModelSignature signature;
  signature.inputs = {{.name = "x", .type = DataType::kFp32, .shape = {-1, 4}},
                      {.name = "y", .type = DataType::kFp32, .shape = {1}, .any = true}};
  const v1::ModelSignature message = ToProto(signature);
  EXPECT_EQ(message.inputs(0).ShortDebugString(), "name: \"x\" type: DATA_TYPE_FP32 shape: -1 shape: 4");
  EXPECT_EQ(message.inputs(1).ShortDebugString(), "name: \"y\" any: true");
}

}  // namespace
}  // namespace penstock
