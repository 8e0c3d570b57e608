#include "engine/model/metric.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/base/error.h"
#include "engine/device/torch_status.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

MetricSum SumOf(const std::string& name, const LossSpec& loss, const at::Tensor& output, const at::Tensor& target) {
  auto metrics = MakeMetrics({name}, loss);
  EXPECT_TRUE(metrics.ok()) << metrics.status();
  return (*metrics)[0]->Sum(output, target);
}

// Rows of scores whose order is told; of classes 0, 1, 2, 3.
const at::Tensor& Scores() {
  static const auto* const scores =
      new at::Tensor(at::tensor({4.0f, 3.0f, 2.0f, 1.0f, 1.0f, 2.0f, 3.0f, 4.0f, 2.0f, 4.0f, 1.0f, 3.0f}).view({3, 4}));
  return *scores;
}

TEST(EvaluationMetric, AccuracyCountsLabelsWithTheHighestScore) {
  const MetricSum sum = SumOf("accuracy", {"cross_entropy", {}}, Scores(), at::tensor({0, 0, 1}, at::kLong));
  EXPECT_EQ(sum.sum, 2);
  EXPECT_EQ(sum.counted, 3);
}

TEST(EvaluationMetric, TopKCountsLabelsAmongTheHighest) {
  const at::Tensor labels = at::tensor({2, 1, 3}, at::kLong);  // third, third, second
  const LossSpec loss{"cross_entropy", {}};
  EXPECT_EQ(SumOf("top_1_accuracy", loss, Scores(), labels).sum, 0);
  EXPECT_EQ(SumOf("top_2_accuracy", loss, Scores(), labels).sum, 1);
  EXPECT_EQ(SumOf("top_3_accuracy", loss, Scores(), labels).sum, 3);
  const auto too_many = MakeMetrics({"top_5_accuracy"}, loss);
  const absl::Status status = RunTorch([&] { (*too_many)[0]->Sum(Scores(), labels); });
  EXPECT_EQ(ReasonOf(status), "FIELD_INVALID");
  EXPECT_EQ(ValuesOf(status)["value"], "top_5_accuracy");
  EXPECT_THAT(std::string(status.message()), HasSubstr("the 4 classes"));
}

TEST(EvaluationMetric, IgnoredLabelsAreNotCounted) {
  const at::Tensor labels = at::tensor({0, -100, 0}, at::kLong);
  const MetricSum usual = SumOf("accuracy", {"cross_entropy", {}}, Scores(), labels);
  EXPECT_EQ(usual.sum, 1);
  EXPECT_EQ(usual.counted, 2);
  // The label that is ignored may be a class, and the right one.
  const MetricSum own =
      SumOf("accuracy", {"cross_entropy", {{"ignore_index", int64_t{0}}}}, Scores(), at::tensor({0, 3, 0}, at::kLong));
  EXPECT_EQ(own.sum, 1);
  EXPECT_EQ(own.counted, 1);
}

TEST(EvaluationMetric, ClassesMayStandInDimensionOne) {
  const LossSpec loss{"cross_entropy", {{"class_dimension", int64_t{1}}}};
  const at::Tensor scores = Scores().t().unsqueeze(0);  // [1, classes, 3]
  const at::Tensor labels = at::tensor({0, 3, 2}, at::kLong).unsqueeze(0);
  EXPECT_EQ(SumOf("accuracy", loss, scores, labels).sum, 2);
  EXPECT_EQ(SumOf("top_2_accuracy", loss, scores, labels).sum, 2);
  EXPECT_EQ(SumOf("accuracy", loss, scores, labels).counted, 3);
}

TEST(EvaluationMetric, BinaryAccuracyLooksAtTheSideOfAHalf) {
  const at::Tensor target = at::tensor({1.0f, 1.0f, 0.0f, 0.25f});
  const MetricSum logits =
      SumOf("accuracy", {"binary_cross_entropy", {}}, at::tensor({0.1f, -0.1f, 0.1f, -3.0f}), target);
  EXPECT_EQ(logits.sum, 2);
  EXPECT_EQ(logits.counted, 4);
  const LossSpec probabilities{"binary_cross_entropy", {{"logits", false}}};
  EXPECT_EQ(SumOf("accuracy", probabilities, at::tensor({0.6f, 0.4f, 0.1f, 0.4f}), target).sum, 3);
}

TEST(EvaluationMetric, MeanAbsoluteErrorIsOverAllElements) {
  const MetricSum sum = SumOf("mean_absolute_error", {"mean_squared_error", {}}, at::tensor({1.0f, -2.0f, 0.5f}),
                              at::tensor({0.0f, 0.0f, 1.0f}));
  EXPECT_DOUBLE_EQ(sum.sum, 3.5);
  EXPECT_EQ(sum.counted, 3);
}

TEST(EvaluationMetric, WhatALossDoesNotHaveIsNamedWithWhatItHas) {
  const auto field = [](const std::string& loss, std::vector<std::string> names) {
    const absl::Status status = MakeMetrics(names, {loss, {}}).status();
    EXPECT_EQ(ReasonOf(status), "FIELD_INVALID");
    return ValuesOf(status)["field"] + " " + ValuesOf(status)["value"];
  };
  EXPECT_EQ(field("cross_entropy", {"accuracy", "f1"}), "metrics[1] f1");
  EXPECT_EQ(field("mean_squared_error", {"accuracy"}), "metrics[0] accuracy");
  EXPECT_EQ(field("scalar_output", {"accuracy"}), "metrics[0] accuracy");
  EXPECT_EQ(field("cross_entropy", {"accuracy", "accuracy"}), "metrics[1] accuracy") << "twice";
  for (const char* wrong : {"top__accuracy", "top_0_accuracy", "top_05_accuracy", "top_-1_accuracy", "top_k_accuracy",
                            "top_99999999999999999999_accuracy"}) {
    EXPECT_EQ(field("cross_entropy", {wrong}), std::string("metrics[0] ") + wrong);
  }
  EXPECT_THAT(std::string(MakeMetrics({"f1"}, {"cross_entropy", {}}).status().message()),
              HasSubstr("is no metric of the loss cross_entropy, which has accuracy, top_K_accuracy, got f1"));
}

}  // namespace
}  // namespace penstock
