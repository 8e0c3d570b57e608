#include "engine/model/loss.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/autograd/seeds.h"
#include "engine/base/error.h"
#include "engine/device/torch_status.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

at::Tensor Logits(at::IntArrayRef shape) {
  return at::empty(shape).normal_(0, 1, InitialGenerator(1, LayerIndex(0))).requires_grad_(true);
}

std::unique_ptr<Loss> Make(const std::string& name, OptionMap options = {}) {
  auto loss = MakeLoss({name, std::move(options)});
  EXPECT_TRUE(loss.ok()) << loss.status();
  return *std::move(loss);
}

TEST(CrossEntropy, IsTheMeanNegativeLogLikelihood) {
  const auto loss = Make("cross_entropy");
  const at::Tensor logits = Logits({2, 3, 5});
  const at::Tensor labels = at::tensor({0, 4, 1, 2, 2, 3}, at::kLong).view({2, 3});
  const at::Tensor likelihood = logits.detach().to(at::kDouble).log_softmax(-1).gather(-1, labels.unsqueeze(-1));
  EXPECT_NEAR(loss->Mean(logits, labels).item<double>(), -likelihood.mean().item<double>(), 1e-6);
  EXPECT_EQ(loss->Counted(labels), 6);
}

TEST(CrossEntropy, LeavesOutIgnoredLabels) {
  for (int64_t ignored : {int64_t{-100}, int64_t{2}}) {
    const auto loss = Make("cross_entropy", {{"ignore_index", ignored}});
    const at::Tensor logits = Logits({4, 5});
    const at::Tensor labels = at::tensor({int64_t{0}, ignored, int64_t{4}, ignored}, at::kLong);
    EXPECT_EQ(loss->Counted(labels), 2);
    const at::Tensor all = -logits.detach().to(at::kDouble).log_softmax(-1);
    EXPECT_NEAR(loss->Mean(logits, labels).item<double>(), (all[0][0].item<double>() + all[2][4].item<double>()) / 2,
                1e-6);
  }
}

TEST(CrossEntropy, IsZeroWithAGraphWhereNothingCounts) {
  const auto loss = Make("cross_entropy");
  const at::Tensor logits = Logits({3, 5});
  const at::Tensor none = at::full({3}, -100, at::kLong);
  EXPECT_EQ(loss->Counted(none), 0);
  const at::Tensor mean = loss->Mean(logits, none);
  EXPECT_EQ(mean.item<double>(), 0);
  mean.backward();
  EXPECT_TRUE(logits.grad().eq(0).all().item<bool>());
}

TEST(CrossEntropy, NamesALabelOutsideTheClasses) {
  const auto loss = Make("cross_entropy");
  for (int64_t bad : {int64_t{5}, int64_t{-1}, int64_t{1} << 40}) {
    const absl::Status status = RunTorch([&] {
      loss->Mean(Logits({3, 5}), at::tensor({int64_t{-100}, bad, int64_t{0}}, at::kLong));
    });
    EXPECT_EQ(ReasonOf(status), "TENSOR_SIGNATURE");
    EXPECT_EQ(ValuesOf(status)["field"], "target");
    EXPECT_EQ(ValuesOf(status)["value"], std::to_string(bad));
    EXPECT_THAT(std::string(status.message()), HasSubstr("[0, 4]"));
  }
}

TEST(Losses, NameATargetThatDoesNotFit) {
  const auto field = [](const Loss& loss, const at::Tensor& output, const at::Tensor& target) {
    return ValuesOf(RunTorch([&] { loss.Mean(output, target); }))["field"];
  };
  const auto entropy = Make("cross_entropy");
  EXPECT_EQ(field(*entropy, Logits({3, 5}), at::zeros({3})), "target.type");
  EXPECT_EQ(field(*entropy, Logits({3, 5}), at::zeros({4}, at::kLong)), "target.shape");
  EXPECT_EQ(field(*entropy, Logits({5}), at::zeros({}, at::kLong)), "output.shape");
  const auto squared = Make("mean_squared_error");
  EXPECT_EQ(field(*squared, Logits({3, 5}), at::zeros({3, 1})), "target.shape") << "no broadcasting";
  EXPECT_EQ(field(*squared, Logits({3, 5}), at::zeros({3, 5}, at::kLong)), "target.type");
}

TEST(MeanSquaredError, TakesOutputsThatAutocastMadeNarrower) {
  const auto loss = Make("mean_squared_error");
  const at::Tensor output = Logits({3, 4}).detach().to(at::kBFloat16).requires_grad_(true);
  const at::Tensor target = Logits({3, 4}).detach();
  const at::Tensor mean = loss->Mean(output, target);
  EXPECT_EQ(mean.scalar_type(), at::kFloat);
  EXPECT_TRUE(mean.equal(loss->Mean(output.detach().to(at::kFloat), target)));
  mean.backward();
  EXPECT_EQ(output.grad().scalar_type(), at::kBFloat16);
  // A target of a narrower type than the output is still none.
  const absl::Status narrow = RunTorch([&] { loss->Mean(target, target.to(at::kBFloat16)); });
  EXPECT_EQ(ValuesOf(narrow)["field"], "target.type");
}

TEST(MeanSquaredError, IsTheMeanOverElements) {
  const auto loss = Make("mean_squared_error");
  const at::Tensor output = Logits({3, 2});
  const at::Tensor target = at::ones({3, 2});
  EXPECT_NEAR(loss->Mean(output, target).item<double>(),
              (output.detach().to(at::kDouble) - 1).square().mean().item<double>(), 1e-6);
  EXPECT_EQ(loss->Counted(target), 6);
  EXPECT_EQ(loss->Mean(Logits({0, 2}), at::zeros({0, 2})).item<double>(), 0);
}

TEST(MakeLoss, NamesWhatIsWrong) {
  for (const char* name : {"", "hinge"}) {
    const absl::Status status = MakeLoss({name, {}}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ReasonOf(status), "LOSS_UNKNOWN");
    EXPECT_EQ(ValuesOf(status)["value"], name);
    EXPECT_THAT(std::string(status.message()), HasSubstr("cross_entropy, mean_squared_error"));
  }
  const absl::Status option = MakeLoss({"mean_squared_error", {{"ignore_index", int64_t{1}}}}).status();
  EXPECT_EQ(ReasonOf(option), "SPEC_INVALID");
  EXPECT_EQ(ValuesOf(option)["field"], "spec.loss.options[ignore_index]");
}

}  // namespace
}  // namespace penstock
