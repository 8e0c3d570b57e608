#include "engine/plan/layer_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/base/error.h"

namespace penstock {
namespace {

// Stages of these layers.
Plan PlanOf(const std::vector<std::vector<std::string>>& stages) {
  Plan plan;
  for (const std::vector<std::string>& layers : stages) {
    StagePlan stage;
    stage.first_layer = static_cast<int>(plan.layers.size());
    stage.layers = layers;
    for (const std::string& layer : layers) {
      plan.layers.push_back({.name = layer, .stage = static_cast<int>(plan.stages.size())});
    }
    plan.stages.push_back(std::move(stage));
  }
  return plan;
}

std::string Name(const Plan& plan, const std::string& name) {
  auto known = FromPartitionName(plan, name);
  return known.ok() ? *known : std::string(known.status().message());
}

TEST(LayerNames, PipeSequentialLike) {
  for (const Plan& plan : {PlanOf({{"a", "b"}}), PlanOf({{"a"}, {"b"}})}) {
    ASSERT_EQ(plan.layers.size(), 2);
    EXPECT_EQ(plan.layers[0].name + plan.layers[1].name, "ab");
    EXPECT_EQ(LayerAt(plan, 0)->name, "a");
    EXPECT_EQ(LayerAt(plan, 1)->name, "b");
    EXPECT_EQ(LayerAt(plan, -1)->name, "b");
    EXPECT_EQ(LayerAt(plan, -2)->name, "a");
    for (int64_t outside : {int64_t{2}, int64_t{-3}, INT64_MAX, INT64_MIN}) {
      const absl::Status status = LayerAt(plan, outside).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
      EXPECT_EQ(ReasonOf(status), "FIELD_INVALID");
      EXPECT_EQ(ValuesOf(status)["value"], std::to_string(outside));
    }
  }
  EXPECT_EQ(LayerAt(PlanOf({{"a"}, {"b"}}), -1)->stage, 1);
}

TEST(LayerNames, PipePartitions) {
  const Plan plan = PlanOf({{"in", "norm"}, {"out"}});
  EXPECT_EQ(Name(plan, "partitions.0.0.weight"), "in.weight");
  EXPECT_EQ(Name(plan, "partitions.0.1.running_mean"), "norm.running_mean");
  EXPECT_EQ(Name(plan, "partitions.1.0.attention.bias"), "out.attention.bias");
  EXPECT_EQ(Name(plan, "in.weight"), "in.weight");
  EXPECT_EQ(Name(plan, "partitions"), "partitions");
}

TEST(LayerNames, PipeNamedChildren) {
  const Plan plan = PlanOf({{"a", "b.c"}, {"1", "0"}});
  EXPECT_EQ(Name(plan, "partitions.0.a.weight"), "a.weight");
  EXPECT_EQ(Name(plan, "partitions.0.b.c.weight"), "b.c.weight");
  // A name wins over a position.
  EXPECT_EQ(Name(plan, "partitions.1.0.weight"), "0.weight");
  EXPECT_EQ(Name(plan, "partitions.1.1.weight"), "1.weight");
}

TEST(LayerNames, WrongPartitionsAreRefused) {
  const Plan plan = PlanOf({{"a", "b"}, {"c"}});
  for (const std::string name :
       {"partitions.2.0.weight", "partitions.-1.0.weight", "partitions..0.weight", "partitions.", "partitions.0",
        "partitions.x.0.weight", "partitions.0.2.weight", "partitions.0.-1.weight", "partitions.0.0", "partitions.0.a",
        "partitions.1.a.weight", "partitions.0.+1.weight", "partitions.99999999999.0.weight"}) {
    const absl::Status status = FromPartitionName(plan, name).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange) << name;
    EXPECT_EQ(ValuesOf(status)["field"], "names");
    EXPECT_EQ(ValuesOf(status)["value"], name);
  }
}

}  // namespace
}  // namespace penstock
