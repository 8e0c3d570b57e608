// The reference models of the ancestors' benchmarks: their sizes to the digits that were printed, and tiny ones that
// run.

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_format.h"
#include "engine/base/error.h"
#include "engine/model/layer_registry.h"
#include "engine/model/model_signature.h"
#include "engine/model/run_layer.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;

ModelSpec Model(const std::string& name, OptionMap options) { return {name, std::move(options), {}}; }
OptionMap Ints(const std::vector<std::pair<std::string, int64_t>>& options) {
  OptionMap map;
  for (const auto& [name, value] : options) map[name] = value;
  return map;
}

int64_t Parameters(const ModelSpec& spec) {
  const auto specs = ExpandModel(spec);
  EXPECT_TRUE(specs.ok()) << specs.status();
  const auto layers = BuildLayerShapes(*specs);
  EXPECT_TRUE(layers.ok()) << layers.status();
  int64_t count = 0;
  for (const NamedLayer& layer : *layers) {
    for (const NamedTensor& parameter : layer.layer->parameters()) count += parameter.tensor.numel();
  }
  return count;
}

// As the ancestors' tables print it: 81.5M, 1.06B.
std::string Printed(int64_t count) {
  const auto number = static_cast<double>(count);
  return count < 1000000000 ? absl::StrFormat("%.1fM", number / 1e6) : absl::StrFormat("%.2fB", number / 1e9);
}

TEST(Resnet, HasTheSizesOfThePaper) {
  EXPECT_EQ(Parameters(Model("resnet", {})), 44549160);
  EXPECT_EQ(Parameters(Model("resnet", Ints({{"depth", 50}}))), 25557032);
  EXPECT_EQ(Parameters(Model("resnet", Ints({{"depth", 152}}))), 60192808);
  EXPECT_EQ(Parameters(Model("resnet", Ints({{"blocks1", 3}, {"blocks2", 4}, {"blocks3", 6}, {"blocks4", 3}}))),
            25557032);
  EXPECT_EQ(ExpandModel(Model("resnet", {}))->size(), 1u + 33u + 1u);
}

std::string UnetSize(int64_t convs, int64_t channels) {
  return Printed(Parameters(Model("unet", Ints({{"convs", convs}, {"channels", channels}}))));
}

TEST(Unet, HasTheSizesOfTheAncestorsTable) {
  EXPECT_EQ(UnetSize(6, 72), "362.2M");
  EXPECT_EQ(UnetSize(11, 128), "2.21B");
  EXPECT_EQ(UnetSize(24, 128), "4.99B");
  EXPECT_EQ(UnetSize(24, 160), "7.80B");
  EXPECT_EQ(UnetSize(48, 160), "15.82B");
}

TEST(Unet, HasTheLayersThatTheAncestorsBalanced) {
  const auto layers = *BuildLayerShapes(*ExpandModel(Model("unet", {})));
  EXPECT_EQ(layers.size(), 104u + 137u);
  std::vector<std::string> names;
  std::vector<SkipDeclaration> declarations;
  int stashes = 0;
  for (const NamedLayer& layer : layers) {
    names.push_back(layer.name);
    declarations.push_back(layer.layer->skips());
    stashes += static_cast<int>(declarations.back().stashes.size());
  }
  EXPECT_EQ(stashes, 5);
  EXPECT_TRUE(CheckSkips(names, declarations).ok());
}

std::string AmoebanetSize(int64_t layers, int64_t filters) {
  return Printed(Parameters(Model("amoebanet", Ints({{"layers", layers}, {"filters", filters}}))));
}

TEST(Amoebanet, HasTheSizesOfTheAncestorsTable) {
  EXPECT_EQ(AmoebanetSize(18, 208), "81.5M");
  EXPECT_EQ(AmoebanetSize(18, 416), "319.0M");
  EXPECT_EQ(AmoebanetSize(18, 544), "542.7M");
  EXPECT_EQ(AmoebanetSize(36, 544), "1.06B");
  EXPECT_EQ(AmoebanetSize(72, 512), "1.84B");
  EXPECT_EQ(ExpandModel(Model("amoebanet", {}))->size(), 18u + 6u);
}

struct Tiny {
  ModelSpec model;
  std::vector<int64_t> output;  // for five images of 37 x 32
  std::string output_name;
};

std::vector<Tiny> TinyModels() {
  return {
      {Model("resnet", Ints({{"depth", 14}, {"width", 8}, {"classes", 7}, {"image", 32}})), {5, 7}, "logits"},
      {Model("unet", Ints({{"depth", 2}, {"convs", 2}, {"channels", 8}, {"out", 2}, {"image", 32}})),
       {5, 2, 37, 32},
       "output"},
      {Model("amoebanet", Ints({{"layers", 3}, {"filters", 16}, {"classes", 10}, {"image", 32}})), {5, 10}, "logits"}};
}

std::vector<NamedLayer> BuildTiny(const ModelSpec& spec, uint64_t seed = 3) {
  auto layers = BuildLayers(*ExpandModel(spec), seed, BuildOptionsOf(spec));
  EXPECT_TRUE(layers.ok()) << layers.status();
  return *std::move(layers);
}

at::Tensor Forward(const std::vector<NamedLayer>& layers, const at::Tensor& images, bool training, int64_t step = 0) {
  SkipTracker tracker;
  Batch values = images;
  for (size_t i = 0; i < layers.size(); ++i) {
    KeyedRandom random(1, StepId(step), MicroBatchIndex(0), LayerIndex(static_cast<int32_t>(i)));
    values = RunLayer(layers[i], values, {.training = training, .random = &random}, tracker);
  }
  EXPECT_TRUE(tracker.empty());
  EXPECT_TRUE(values.atomic());
  return values.TensorAt(0);
}

at::Tensor Images() { return at::empty({5, 3, 37, 32}).normal_(0, 1, InitialGenerator(8, LayerIndex(2))); }

TEST(TinyModels, SayWhatTheyTakeAndGive) {
  for (const Tiny& tiny : TinyModels()) {
    const auto layers = BuildTiny(tiny.model);
    const auto signature = SignatureOf(layers, nullptr);
    ASSERT_TRUE(signature.ok()) << signature.status();
    ASSERT_EQ(signature->inputs.size(), 1u);
    EXPECT_EQ(signature->inputs[0].name, "image");
    EXPECT_EQ(signature->inputs[0].type, DataType::kFp32);
    EXPECT_THAT(signature->inputs[0].shape, ElementsAre(-1, 3, -1, -1));
    EXPECT_EQ(layers[0].layer->LargestOpenDimension(), 32);
    ASSERT_EQ(signature->outputs.size(), 1u) << tiny.model.name;
    EXPECT_EQ(signature->outputs[0].name, tiny.output_name);
    EXPECT_EQ(signature->outputs[0].shape.size(), tiny.output.size());
    EXPECT_EQ(signature->outputs[0].shape[1], tiny.output[1]);
  }
}

TEST(TinyModels, RunForwardAndBackwardThroughEveryParameter) {
  for (const Tiny& tiny : TinyModels()) {
    const auto layers = BuildTiny(tiny.model);
    const at::Tensor output = Forward(layers, Images(), /*training=*/true);
    EXPECT_EQ(output.sizes(), at::IntArrayRef(tiny.output));
    EXPECT_TRUE(output.isfinite().all().item<bool>());
    output.square().sum().backward();
    for (const NamedLayer& layer : layers) {
      for (const NamedTensor& parameter : layer.layer->parameters()) {
        ASSERT_TRUE(parameter.tensor.grad().defined()) << tiny.model.name << " " << layer.name << "." << parameter.name;
        EXPECT_TRUE(parameter.tensor.grad().isfinite().all().item<bool>());
      }
    }
  }
}

TEST(TinyModels, RepeatToABitWithTheSameKeysAndWeights) {
  for (const Tiny& tiny : TinyModels()) {
    const auto one = BuildTiny(tiny.model);
    const auto two = BuildTiny(tiny.model);
    for (const bool training : {false, true}) {
      const at::Tensor left = Forward(one, Images(), training);
      const at::Tensor right = Forward(two, Images(), training);
      EXPECT_TRUE(left.equal(right)) << tiny.model.name;
      left.square().sum().backward();
      right.square().sum().backward();
    }
    for (size_t i = 0; i < one.size(); ++i) {
      for (size_t p = 0; p < one[i].layer->parameters().size(); ++p) {
        EXPECT_TRUE(one[i].layer->parameters()[p].tensor.grad().equal(two[i].layer->parameters()[p].tensor.grad()));
      }
    }
    EXPECT_FALSE(Forward(one, Images(), false).equal(Forward(BuildTiny(tiny.model, 4), Images(), false)));
    const bool has_dropout = tiny.model.name == "unet";
    EXPECT_EQ(Forward(one, Images(), true, 0).equal(Forward(one, Images(), true, 1)), !has_dropout);
  }
}

TEST(TinyModels, BatchNormsFollowTheModelsOption) {
  for (const char* name : {"resnet", "amoebanet"}) {
    for (const bool deferred : {false, true}) {
      ModelSpec spec = name == std::string("resnet") ? TinyModels()[0].model : TinyModels()[2].model;
      spec.deferred_batch_norm = deferred;
      const auto layers = BuildTiny(spec);
      for (int micro_batch = 0; micro_batch < 3; ++micro_batch) {
        SkipTracker tracker;
        Batch values = Images();
        const LayerContext context = {.training = true, .micro_batch = MicroBatchIndex(micro_batch)};
        for (const NamedLayer& layer : layers) values = RunLayer(layer, values, context, tracker);
      }
      int norms = 0;
      for (const NamedLayer& layer : layers) {
        layer.layer->CommitStatistics();
        layer.layer->DiscardStatistics(MicroBatchIndex(0));
        for (const NamedTensor& buffer : layer.layer->buffers()) {
          if (buffer.tensor.dim() > 0) continue;
          ++norms;
          EXPECT_EQ(buffer.tensor.item<int64_t>(), deferred ? 1 : 3) << layer.name << "." << buffer.name;
        }
      }
      EXPECT_GT(norms, 10);
    }
  }
}

TEST(Amoebanet, TakesTuplesAsOneArgumentToo) {
  ModelSpec spec = TinyModels()[2].model;
  const at::Tensor want = Forward(BuildTiny(spec), Images(), false);
  spec.tuple_as_one_argument = true;
  EXPECT_TRUE(Forward(BuildTiny(spec), Images(), false).equal(want));
}

TEST(ReferenceModels, RefuseOptionsThatDoNotFit) {
  const auto field = [](const std::string& name, const std::vector<std::pair<std::string, int64_t>>& options) {
    const absl::Status status = ExpandModel(Model(name, Ints(options))).status();
    EXPECT_EQ(ReasonOf(status), "SPEC_INVALID") << status;
    return ValuesOf(status)["field"];
  };
  EXPECT_EQ(field("resnet", {{"depth", 34}}), "spec.model.options[depth]");
  EXPECT_EQ(field("resnet", {{"convs", 3}}), "spec.model.options[convs]");
  EXPECT_EQ(field("unet", {{"channels", 4096}}), "spec.model.options[channels]");
  EXPECT_EQ(field("amoebanet", {{"layers", 4}}), "spec.model.options[layers]");
  EXPECT_EQ(field("amoebanet", {{"filters", 20}}), "spec.model.options[filters]");
}

}  // namespace
}  // namespace penstock
