#include "engine/model/loss.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "engine/autograd/seeds.h"
#include "engine/base/error.h"
#include "engine/device/torch_status.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

at::Tensor Logits(at::IntArrayRef shape) {
  return at::empty(shape).normal_(0, 1, InitialGenerator(1, LayerIndex(0))).requires_grad_(true);
}

std::unique_ptr<Loss> MakeNamedLoss(const std::string& name, OptionMap options = {}) {
  auto loss = MakeLoss({name, std::move(options)});
  EXPECT_TRUE(loss.ok()) << loss.status();
  return *std::move(loss);
}

TEST(CrossEntropy, IsTheMeanNegativeLogLikelihood) {
  const auto loss = MakeNamedLoss("cross_entropy");
  const at::Tensor logits = Logits({2, 3, 5});
  const at::Tensor labels = at::tensor({0, 4, 1, 2, 2, 3}, at::kLong).view({2, 3});
  const at::Tensor likelihood = logits.detach().to(at::kDouble).log_softmax(-1).gather(-1, labels.unsqueeze(-1));
  EXPECT_NEAR(loss->Mean(logits, labels, {}).item<double>(), -likelihood.mean().item<double>(), 1e-6);
  EXPECT_EQ(loss->Counted(labels, {}), 6);
}

TEST(CrossEntropy, LeavesOutIgnoredLabels) {
  for (int64_t ignored : {int64_t{-100}, int64_t{2}}) {
    const auto loss = MakeNamedLoss("cross_entropy", {{"ignore_index", ignored}});
    const at::Tensor logits = Logits({4, 5});
    const at::Tensor labels = at::tensor({int64_t{0}, ignored, int64_t{4}, ignored}, at::kLong);
    EXPECT_EQ(loss->Counted(labels, {}), 2);
    const at::Tensor all = -logits.detach().to(at::kDouble).log_softmax(-1);
    EXPECT_NEAR(loss->Mean(logits, labels, {}).item<double>(),
                (all[0][0].item<double>() + all[2][4].item<double>()) / 2, 1e-6);
  }
}

TEST(CrossEntropy, IsZeroWithAGraphWhereNothingCounts) {
  const auto loss = MakeNamedLoss("cross_entropy");
  const at::Tensor logits = Logits({3, 5});
  const at::Tensor none = at::full({3}, -100, at::kLong);
  EXPECT_EQ(loss->Counted(none, {}), 0);
  const at::Tensor mean = loss->Mean(logits, none, {});
  EXPECT_EQ(mean.item<double>(), 0);
  mean.backward();
  EXPECT_TRUE(logits.grad().eq(0).all().item<bool>());
}

TEST(CrossEntropy, NamesALabelOutsideTheClasses) {
  const auto loss = MakeNamedLoss("cross_entropy");
  for (int64_t bad : {int64_t{5}, int64_t{-1}, int64_t{1} << 40}) {
    const absl::Status status = RunTorch([&] {
      loss->Mean(Logits({3, 5}), at::tensor({int64_t{-100}, bad, int64_t{0}}, at::kLong), {});
    });
    EXPECT_EQ(ReasonOf(status), "TENSOR_SIGNATURE");
    EXPECT_EQ(ValuesOf(status)["field"], "target");
    EXPECT_EQ(ValuesOf(status)["value"], std::to_string(bad));
    EXPECT_THAT(std::string(status.message()), HasSubstr("[0, 4]"));
  }
}

TEST(Losses, NameATargetThatDoesNotFit) {
  const auto field = [](const Loss& loss, const at::Tensor& output, const at::Tensor& target) {
    return ValuesOf(RunTorch([&] { loss.Mean(output, target, {}); }))["field"];
  };
  const auto entropy = MakeNamedLoss("cross_entropy");
  EXPECT_EQ(field(*entropy, Logits({3, 5}), at::zeros({3})), "target.type");
  EXPECT_EQ(field(*entropy, Logits({3, 5}), at::zeros({4}, at::kLong)), "target.shape");
  EXPECT_EQ(field(*entropy, Logits({5}), at::zeros({}, at::kLong)), "output.shape");
  const auto squared = MakeNamedLoss("mean_squared_error");
  EXPECT_EQ(field(*squared, Logits({3, 5}), at::zeros({3, 1})), "target.shape") << "no broadcasting";
  EXPECT_EQ(field(*squared, Logits({3, 5}), at::zeros({3, 5}, at::kLong)), "target.type");
}

TEST(Losses, AreOfFloatingOutputs) {
  for (const std::string name : {"cross_entropy", "binary_cross_entropy", "mean_squared_error"}) {
    const at::Tensor target = name == "cross_entropy" ? at::zeros({2}, at::kLong) : at::zeros({2, 3});
    const absl::Status status = RunTorch([&] { MakeNamedLoss(name)->Mean(at::ones({2, 3}, at::kInt), target, {}); });
    EXPECT_EQ(ReasonOf(status), "TENSOR_SIGNATURE") << name;
    EXPECT_EQ(ValuesOf(status)["field"], "output.type") << name << ": " << status;
    EXPECT_EQ(ValuesOf(status)["value"], "Int") << name;
  }
}

TEST(MeanSquaredError, TakesOutputsThatAutocastMadeNarrower) {
  const auto loss = MakeNamedLoss("mean_squared_error");
  const at::Tensor output = Logits({3, 4}).detach().to(at::kBFloat16).requires_grad_(true);
  const at::Tensor target = Logits({3, 4}).detach();
  const at::Tensor mean = loss->Mean(output, target, {});
  EXPECT_EQ(mean.scalar_type(), at::kFloat);
  EXPECT_TRUE(mean.equal(loss->Mean(output.detach().to(at::kFloat), target, {})));
  mean.backward();
  EXPECT_EQ(output.grad().scalar_type(), at::kBFloat16);
  // A target of a narrower type than the output is still none.
  const absl::Status narrow = RunTorch([&] { loss->Mean(target, target.to(at::kBFloat16), {}); });
  EXPECT_EQ(ValuesOf(narrow)["field"], "target.type");
}

TEST(MeanSquaredError, IsTheMeanOverElements) {
  const auto loss = MakeNamedLoss("mean_squared_error");
  const at::Tensor output = Logits({3, 2});
  const at::Tensor target = at::ones({3, 2});
  EXPECT_NEAR(loss->Mean(output, target, {}).item<double>(),
              (output.detach().to(at::kDouble) - 1).square().mean().item<double>(), 1e-6);
  EXPECT_EQ(loss->Counted(target, {}), 6);
  EXPECT_EQ(loss->Mean(Logits({0, 2}), at::zeros({0, 2}), {}).item<double>(), 0);
}

TEST(CrossEntropy, TakesClassesInDimensionOne) {
  const auto loss = MakeNamedLoss("cross_entropy", {{"class_dimension", int64_t{1}}});
  const at::Tensor logits = Logits({2, 5, 3});
  const at::Tensor labels = at::tensor({0, 4, 1, 2, 2, 3}, at::kLong).view({2, 3});
  const at::Tensor last = MakeNamedLoss("cross_entropy")->Mean(logits.transpose(1, 2), labels, {});
  EXPECT_NEAR(loss->Mean(logits, labels, {}).item<double>(), last.item<double>(), 1e-6);
  EXPECT_EQ(loss->Target({"logits", DataType::kFp32, {-1, 5, 3}}).shape, (std::vector<int64_t>{-1, 3}));
  EXPECT_EQ(ValuesOf(MakeLoss({"cross_entropy", {{"class_dimension", int64_t{0}}}}).status())["field"],
            "spec.loss.options[class_dimension]");
}

TEST(BinaryCrossEntropy, OfLogitsEqualsThatOfTheirProbabilities) {
  const at::Tensor logits = Logits({3, 2});
  const at::Tensor target = at::tensor({0.0f, 1.0f, 0.25f, 1.0f, 0.0f, 0.5f}).view({3, 2});
  const auto of_logits = MakeNamedLoss("binary_cross_entropy");
  const auto of_probabilities = MakeNamedLoss("binary_cross_entropy", {{"logits", false}});
  const at::Tensor wide = logits.detach().to(at::kDouble);
  const at::Tensor expected = -(target * wide.sigmoid().log() + (1 - target) * (1 - wide.sigmoid()).log()).mean();
  EXPECT_NEAR(of_logits->Mean(logits, target, {}).item<double>(), expected.item<double>(), 1e-6);
  EXPECT_NEAR(of_probabilities->Mean(logits.sigmoid(), target, {}).item<double>(), expected.item<double>(), 1e-6);
  EXPECT_EQ(of_logits->Counted(target, {}), 6);
}

TEST(BinaryCrossEntropy, NamesWhatIsNoProbability) {
  const auto loss = MakeNamedLoss("binary_cross_entropy", {{"logits", false}});
  const at::Tensor half = at::full({2, 2}, 0.5);
  const absl::Status output = RunTorch([&] { loss->Mean(half + 1, half, {}); });
  EXPECT_EQ(ReasonOf(output), "TENSOR_SIGNATURE");
  EXPECT_EQ(ValuesOf(output)["field"], "output");
  EXPECT_EQ(ValuesOf(output)["value"], "1.5");
  const absl::Status target = RunTorch([&] { loss->Counted(half - 1, {}); });
  EXPECT_EQ(ValuesOf(target)["field"], "target");
  // What is not finite is told by the step, as with every other loss.
  const at::Tensor nan = at::full({2, 2}, std::numeric_limits<float>::quiet_NaN()).requires_grad_(true);
  EXPECT_TRUE(std::isnan(loss->Mean(nan, half, {}).item<double>()));
}

TEST(ScalarOutput, IsWhatTheModelSays) {
  const auto loss = MakeNamedLoss("scalar_output");
  EXPECT_FALSE(loss->needs_target());
  const at::Tensor own = at::full({}, 2.5).requires_grad_(true);
  EXPECT_EQ(loss->Mean(own, {}, {}).item<double>(), 2.5);
  EXPECT_EQ(loss->Mean(own.reshape({1}), {}, {}).dim(), 0);
  for (const at::Tensor& bad : {Logits({2}), at::ones({}, at::kLong), Logits({1, 1})}) {
    const absl::Status status = RunTorch([&] { loss->Mean(bad, {}, {}); });
    EXPECT_EQ(ReasonOf(status), "TENSOR_SIGNATURE");
    EXPECT_EQ(ValuesOf(status)["field"], "output");
  }
}

TEST(LossOutput, FindsNamesAndPositions) {
  const std::vector<TensorSignature> outputs = {{"logits"}, {"hidden"}, {"0"}};
  const auto position = [&](const std::string& output) {
    return LossOutput({"mean_squared_error", {}, output}, outputs, "loss");
  };
  EXPECT_EQ(*position(""), 0);
  EXPECT_EQ(*position("hidden"), 1);
  EXPECT_EQ(*position("1"), 1);
  EXPECT_EQ(*position("0"), 2) << "a name goes first";
  for (const char* bad : {"3", "-1", "nowhere", "99999999999999999999"}) {
    const absl::Status status = position(bad).status();
    EXPECT_EQ(ReasonOf(status), "FIELD_INVALID");
    EXPECT_EQ(ValuesOf(status)["field"], "loss.output");
    EXPECT_EQ(ValuesOf(status)["value"], bad);
    EXPECT_THAT(std::string(status.message()), HasSubstr("logits, hidden, 0"));
  }
  EXPECT_EQ(*LossOutput({"mean_squared_error", {}, "4"}, {}, "loss"), 4) << "only a run can tell";
  EXPECT_FALSE(LossOutput({"mean_squared_error", {}, "logits"}, {}, "loss").ok());
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

TEST(CrossEntropy, WeighsClassesAndSmoothsLabelsAsPyTorch) {
  const at::Tensor logits = Logits({6, 3});
  const at::Tensor labels = at::tensor({0, 2, 1, -100, 2, 2}, at::kLong);
  const std::vector<double> weights = {0.5, 1, 4};
  const auto loss = *MakeLoss({"cross_entropy", {{"label_smoothing", 0.3}}, "", weights});
  EXPECT_TRUE(loss->weighs());
  EXPECT_DOUBLE_EQ(loss->Counted(labels, {}), 0.5 + 4 + 1 + 4 + 4);
  // Of each row 0.7 of its label's loss and 0.1 of every class's, each times what the class weighs.
  const at::Tensor losses = -logits.detach().to(at::kDouble).log_softmax(-1) * at::tensor(weights, at::kDouble);
  double sum = 0;
  for (const int64_t row : {0, 1, 2, 4, 5}) {
    sum += 0.7 * losses[row][labels[row].item<int64_t>()].item<double>() + 0.1 * losses[row].sum().item<double>();
  }
  EXPECT_NEAR(loss->Mean(logits, labels, {}).item<double>(), sum / 13.5, 1e-6);
  // Two parts, each by its share, are the whole.
  const auto part = [&](int64_t begin) {
    const at::Tensor some = labels.narrow(0, begin, 3);
    return loss->Mean(logits.narrow(0, begin, 3), some, {}).item<double>() * loss->Counted(some, {}) / 13.5;
  };
  EXPECT_NEAR(part(0) + part(3), sum / 13.5, 1e-6);
  EXPECT_FALSE(MakeNamedLoss("cross_entropy")->weighs());
}

TEST(CrossEntropy, NamesWhatIsWrongWithClassWeights) {
  const auto error = [](const std::string& name, std::vector<double> weights, OptionMap options = {}) {
    const absl::Status status = MakeLoss({name, std::move(options), "", std::move(weights)}).status();
    EXPECT_EQ(ReasonOf(status), "SPEC_INVALID") << status;
    EXPECT_EQ(ValuesOf(status)["field"], "spec.loss.class_weights");
    return ValuesOf(status)["value"];
  };
  EXPECT_EQ(error("cross_entropy", {1, -0.5}), "-0.5");
  EXPECT_EQ(error("cross_entropy", {1, std::nan("")}), "nan");
  EXPECT_EQ(error("cross_entropy", {1, 0}, {{"label_smoothing", 0.1}}), "0");
  EXPECT_EQ(error("mean_squared_error", {1, 2}), "2 numbers");
  const auto loss = *MakeLoss({"cross_entropy", {}, "", {1, 0, 2}});
  EXPECT_TRUE(loss->CheckOutput({"logits", DataType::kFp32, {-1, 3}}).ok());
  EXPECT_TRUE(loss->CheckOutput({"logits", DataType::kFp32, {-1, -1}}).ok());
  EXPECT_EQ(ValuesOf(loss->CheckOutput({"logits", DataType::kFp32, {-1, 4}}))["value"], "3");
  const absl::Status late = RunTorch([&] { loss->Mean(Logits({2, 4}), at::zeros({2}, at::kLong), {}); });
  EXPECT_EQ(ValuesOf(late)["field"], "spec.loss.class_weights");
  const absl::Status label = RunTorch([&] { loss->Counted(at::full({2}, 3, at::kLong), {}); });
  EXPECT_EQ(ValuesOf(label)["field"], "target");
}

TEST(Losses, WeighElementsByRowsOrOneByOne) {
  const at::Tensor output = Logits({2, 3});
  const at::Tensor target = at::tensor({0.f, 1.f, 1.f, 1.f, 0.f, 1.f}).view({2, 3});
  const at::Tensor rows = at::tensor({0.5f, 2.f});
  const at::Tensor each = at::tensor({0.f, 1.f, 2.f, 3.f, 0.5f, 0.5f}).view({2, 3});
  for (const char* name : {"mean_squared_error", "binary_cross_entropy"}) {
    const auto loss = MakeNamedLoss(name);
    for (const at::Tensor& weights : {rows, rows.view({2, 1}), each}) {
      ASSERT_TRUE(CheckWeights(weights, target).ok());
      const at::Tensor wide = (weights.dim() == 1 ? weights.view({2, 1}) : weights).expand({2, 3});
      EXPECT_DOUBLE_EQ(loss->Counted(target, weights), wide.sum(at::kDouble).item<double>());
      double sum = 0;
      for (int i = 0; i < 6; ++i) {
        const auto one = [&](const at::Tensor& t) { return t.reshape({-1}).narrow(0, i, 1).view({1, 1}); };
        sum += wide.reshape({-1})[i].item<double>() * loss->Mean(one(output), one(target), {}).item<double>();
      }
      EXPECT_NEAR(loss->Mean(output, target, weights).item<double>(), sum / wide.sum().item<double>(), 1e-6) << name;
    }
    const at::Tensor none = loss->Mean(output, target, at::zeros({2}));
    EXPECT_EQ(none.item<double>(), 0);
    EXPECT_TRUE(none.requires_grad());
  }
  const auto cross_entropy = *MakeLoss({"cross_entropy", {}, "", {1, 2, 3}});
  EXPECT_DOUBLE_EQ(cross_entropy->Counted(at::tensor({2, -100, 0}, at::kLong), at::tensor({0.5, 9., 4.})), 5.5);
}

TEST(Losses, NameWhatIsWrongWithWeights) {
  const at::Tensor target = at::zeros({2, 3});
  const auto field = [&](const at::Tensor& weights) { return ValuesOf(CheckWeights(weights, target))["field"]; };
  EXPECT_EQ(field(at::ones({2, 3}, at::kLong)), "");
  EXPECT_EQ(field(at::ones({2, 1}, at::kBool)), "");
  EXPECT_EQ(field(at::ones({})), "weights.shape");
  EXPECT_EQ(field(at::ones({1})), "weights.shape");
  EXPECT_EQ(field(at::ones({3})), "weights.shape");
  EXPECT_EQ(field(at::ones({2, 2})), "weights.shape");
  EXPECT_EQ(field(at::ones({2, 3, 1})), "weights.shape");
  EXPECT_EQ(field(at::ones({2}, at::kComplexFloat)), "weights.type");
  for (const float bad : {-1.f, std::nanf(""), std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(field(at::tensor({1.f, bad})), "weights") << bad;
  }
}

TEST(BinaryCrossEntropy, WeighsTheLossOfAOne) {
  const auto loss = MakeNamedLoss("binary_cross_entropy", {{"pos_weight", 3.0}});
  const at::Tensor logits = Logits({4});
  const at::Tensor target = at::tensor({0.f, 1.f, 0.25f, 1.f});
  const at::Tensor p = logits.detach().to(at::kDouble).sigmoid();
  const at::Tensor expected = -(3 * target * p.log() + (1 - target) * (1 - p).log()).mean();
  EXPECT_NEAR(loss->Mean(logits, target, {}).item<double>(), expected.item<double>(), 1e-6);
  EXPECT_EQ(ValuesOf(MakeLoss({"binary_cross_entropy", {{"logits", false}, {"pos_weight", 3.0}}}).status())["field"],
            "spec.loss.options[pos_weight]");
}

}  // namespace
}  // namespace penstock
