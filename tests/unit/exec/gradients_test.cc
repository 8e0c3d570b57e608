// The gradients of an open accumulation, read.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "engine/base/error.h"
#include "tests/unit/exec/function_layers.h"

namespace penstock::testing {
namespace {

constexpr int64_t kGradientWidth = 4;

class ExportedGradients : public ::testing::Test {
 protected:
  static PipelineSpec Linears(std::vector<int> balance, bool tied) {
    const OptionMap options = {{"in", kGradientWidth}, {"out", kGradientWidth}};
    PipelineSpec spec =
        Pipe({Built("linear", options, "a"), Built("linear", options, "b"), Built("linear", options, "c")},
             std::move(balance), 2);
    if (tied) spec.model.ties = {{{"a.weight", "c.weight"}}};
    spec.optimizer.clip_norm = 0.01;
    return spec;
  }
  static ContributionRequest Numbered(int number) {
    return Contribution(Range({6, kGradientWidth}).mul(number + 1), Range({6, kGradientWidth}).add(number));
  }
  static NamedTensors Contribute(Pipeline& pipeline, PlainReference& plain, int number) {
    const ContributionRequest batch = Numbered(number);
    EXPECT_TRUE(pipeline.ForwardBackward(batch).ok());
    plain.Contribute({batch.inputs[0].value}, batch.target, 2);
    return plain.Gradients();
  }

  PipeWorld world_;
};

TEST_F(ExportedGradients, AreTheSumOfTheContributionsNotClippedForEveryCut) {
  for (const bool tied : {false, true}) {
    for (const std::vector<int>& balance : {std::vector<int>{3}, {1, 2}, {1, 1, 1}}) {
      const PipelineSpec spec = Linears(balance, tied);
      const auto pipeline = world_.Make(spec);
      PlainReference plain = PlainOf(spec);
      for (int i = 0; i < 2; ++i) {
        const NamedTensors want = Contribute(*pipeline, plain, i);
        EXPECT_TRUE(SameTensors(pipeline->ExportGradients().value(), want)) << i << tied;
        EXPECT_EQ(want.size(), tied ? 5u : 6u);
      }
      ASSERT_TRUE(pipeline->OptimizerStep({}).ok());
      plain.Step();
      EXPECT_TRUE(SameState(*pipeline, plain)) << "reading has changed nothing";
    }
  }
}

TEST_F(ExportedGradients, AreCopiesThatTheNextContributionDoesNotChange) {
  const PipelineSpec spec = Linears({2, 1}, false);
  const auto pipeline = world_.Make(spec);
  PlainReference plain = PlainOf(spec);
  Contribute(*pipeline, plain, 0);
  const NamedTensors first = pipeline->ExportGradients().value();
  const at::Tensor kept = first[0].tensor.clone();
  Contribute(*pipeline, plain, 1);
  EXPECT_TRUE(at::equal(first[0].tensor, kept));
}

TEST_F(ExportedGradients, LeaveOutWhatHasNone) {
  const auto unused = [](const Batch& inputs, const LayerContext&, const Tensors& parameters) -> Batch {
    return inputs.TensorAt(0).mul(parameters.at(0));
  };
  const auto pipeline =
      world_.Make(Pipe({Function({.forward = unused, .parameters = {{1}, {2}}, .name = "half"})}, {1}));
  ASSERT_TRUE(pipeline->ForwardBackward(Contribution(Range({4, 2}), Range({4, 2}))).ok());
  const NamedTensors gradients = pipeline->ExportGradients().value();
  ASSERT_EQ(gradients.size(), 1u);
  EXPECT_EQ(gradients[0].name, pipeline->ExportState(false).value()[0].name);
}

TEST_F(ExportedGradients, AreThereBetweenTheFirstContributionAndTheStepOnly) {
  const auto pipeline = world_.Make(Linears({2, 1}, false));
  const auto reason = [&] { return ReasonOf(pipeline->ExportGradients().status()); };
  EXPECT_EQ(reason(), "ACCUMULATION_EMPTY");
  ASSERT_TRUE(pipeline->TrainStep(Numbered(0), {}).ok());
  EXPECT_EQ(reason(), "ACCUMULATION_EMPTY");
  ASSERT_TRUE(pipeline->ForwardBackward(Numbered(0)).ok());
  EXPECT_EQ(reason(), "");
  pipeline->DiscardGradients();
  EXPECT_EQ(reason(), "ACCUMULATION_EMPTY");
}

}  // namespace
}  // namespace penstock::testing
