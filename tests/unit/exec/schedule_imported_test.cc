// Schedules of somebody's own, run by the executor of all the others.

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "tests/unit/exec/function_layers.h"
#include "tests/unit/exec/schedule_cases.h"

namespace penstock::testing {
namespace {

// Lists of somebody's own, over the same stages as a kind's.
PipelineSpec Imported(const ScheduleCase& one, const std::string& lists) {
  auto imported = ImportSchedule(lists);
  EXPECT_TRUE(imported.ok()) << imported.status();
  PipelineSpec spec = SpecOf(one, imported->actions.micro_batches, CheckpointMode::kExceptLast);
  spec.schedule.kind = std::string(kImportedKind);
  spec.schedule.imported = std::make_shared<const ImportedSchedule>(*std::move(imported));
  return spec;
}

TEST(ScheduleImported, ImportedListsRunInTheirOrderAndTrainAsThePlainLoop) {
  // The first lane takes all its forwards, the second splits every other backward and leaves its weights for the end.
  const std::string lists = "0F0,0F1,0F2,0B0,0I1,0I2,0W1,0W2\n1F0,1I0,1F1,1I1,1F2,1W0,1W1,1B2\n";
  PipeWorld world;
  std::map<int, std::string> ran;
  world.before_action = [&ran](const Action& action) {
    if (action.kind != ActionKind::kRecompute && action.kind != ActionKind::kOptimizer) {
      ran[action.stage] += (ran[action.stage].empty() ? "" : ",") + ToString(action);
    }
  };
  const PipelineSpec spec = Imported({.lanes = 2}, lists);
  auto pipeline = world.Make(spec);
  EXPECT_EQ(pipeline->plan().schedule.kind, kImportedKind);
  PlainReference plain = PlainOf(spec);
  const at::Tensor x = Range({6, kCaseWidth});
  ran.clear();
  const auto step = pipeline->TrainStep(Contribution(x, x), {});
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_EQ(absl::StrCat(ran[0], "\n", ran[1], "\n"), lists);
  EXPECT_EQ(*step->loss, plain.TrainStep({Value(x)}, x, 3).loss);
  EXPECT_TRUE(SameState(*pipeline, plain));

  // Two rows are two micro-batches: what there is of the third is left out.
  const at::Tensor two = Range({2, kCaseWidth});
  ran.clear();
  const auto shorter = pipeline->TrainStep(Contribution(two, two), {});
  ASSERT_TRUE(shorter.ok()) << shorter.status();
  EXPECT_EQ(absl::StrCat(ran[0], "\n", ran[1]), "0F0,0F1,0B0,0I1,0W1\n1F0,1I0,1F1,1I1,1W0,1W1");
  EXPECT_EQ(*shorter->loss, plain.TrainStep({Value(two)}, two, 3).loss);
  EXPECT_TRUE(SameState(*pipeline, plain));

  // There are no lists for a fourth; inference has its own.
  const at::Tensor eight = Range({8, kCaseWidth});
  ContributionRequest more = Contribution(eight, eight);
  more.micro_batches = 4;
  const absl::Status refused = pipeline->TrainStep(more, {}).status();
  EXPECT_EQ(ReasonOf(refused), "FIELD_INVALID") << refused;
  EXPECT_EQ(ValuesOf(refused)["field"], "micro_batches");
  EXPECT_EQ(ValuesOf(refused)["value"], "4");
  EXPECT_TRUE(world.Infer(*pipeline, Input(x), 6).ok());
  EXPECT_TRUE(SameState(*pipeline, plain));
}

TEST(ScheduleImported, AnImportedScheduleMustFitTheCut) {
  PipeWorld world;
  PipelineSpec spec = Imported({.lanes = 3}, "0F0,0B0\n1F0,1B0\n");
  const absl::Status refused = world.TryMake(spec).status();
  EXPECT_EQ(ReasonOf(refused), "SPEC_INVALID") << refused;
  EXPECT_EQ(ValuesOf(refused)["field"], "spec.schedule.actions");
  EXPECT_EQ(ValuesOf(refused)["value"], "2 stages");
}

}  // namespace
}  // namespace penstock::testing
