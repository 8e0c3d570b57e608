// Pipelines over ranks whose edges have the least credit there is: whatever is held back, everything gets on.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <deque>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/schedule/imported.h"
#include "tests/support/small_specs.h"
#include "tests/unit/exec/over_ranks.h"

namespace penstock::testing {
namespace {

constexpr EdgeCredit kLeast{.messages = 1, .bytes = 1};
constexpr int kMicroBatches = 12;

struct Case {
  std::string kind;
  std::vector<int> ranks;  // of the stages
  int lanes = 2;
};

class RankCredit : public ::testing::TestWithParam<Case> {
 protected:
  RankCredit() { group_.SetCredit(kLeast); }

  // Four layers; a value of the first goes past the others to the last.
  static PipelineSpec Spec() {
    const OptionMap options = {{"in", kSmallWidth}, {"out", kSmallWidth}};
    PipelineSpec spec = SmallMlp(0, kMicroBatches, GetParam().kind);
    spec.model = {};
    spec.model.layers = {{"linear", "a", options}, {"stash", "keep", {{"name", "skipped"}}},  {"linear", "b", options},
                         {"linear", "c", options}, {"pop_add", "put", {{"name", "skipped"}}}, {"linear", "d", options}};
    const size_t stages = GetParam().ranks.size();
    spec.cut.balance = stages == 2   ? std::vector<int>{3, 3}
                       : stages == 3 ? std::vector<int>{2, 2, 2}
                                     : std::vector<int>{2, 1, 1, 2};
    spec.cut.stages = 0;
    for (int lane = 0; lane < GetParam().lanes; ++lane) spec.devices.push_back(absl::StrCat("cpu:", lane));
    spec.schedule.chunks = static_cast<int>(stages) / GetParam().lanes;
    return spec;
  }
  static ForwardRequest Question(int micro_batches) {
    ForwardRequest request = Ask(NamedTensors{{"input", Range({kMicroBatches, kSmallWidth})}});
    request.micro_batches = micro_batches;
    return request;
  }

  GroupInProcess group_{3, ThreeCpus()};
  DevicePool alone_{ThreeCpus(), DevicePool::Mode::kThreads};
};

TEST_P(RankCredit, TrainsKeepsOutputsAndGivesInputGradientsAsInOneProcess) {
  const auto over = MakeOver(group_, Spec(), GetParam().ranks);
  const auto plain = MakeAlone(alone_, Spec());
  for (int step = 0; step < 3; ++step) {
    ContributionRequest batch = SmallBatch(2 * kMicroBatches);
    batch.outputs = {plain->signature().outputs[0].name};
    const auto got = over->TrainStep(batch, {});
    const auto want = plain->TrainStep(batch, {});
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(*got->loss, *want->loss);
    EXPECT_TRUE(SameValues(got->outputs, want->outputs));
    EXPECT_TRUE(SameState(*over, *plain));
    NamedValues gradients[2];
    for (Pipeline* each : {over.get(), plain.get()}) {
      ForwardRequest request = Question(kMicroBatches);
      request.input_gradients = true;
      auto forward = each->Forward(request);
      ASSERT_TRUE(forward.ok()) << forward.status();
      const auto& output = forward->outputs[0];
      auto backward = each->Backward(forward->graph, {{output.name, output.value.tensor()->sin()}}, false);
      ASSERT_TRUE(backward.ok()) << backward.status();
      gradients[each == plain.get() ? 1 : 0] = std::move(backward->input_gradients);
      ASSERT_TRUE(each->OptimizerStep({}).ok());
    }
    EXPECT_FALSE(gradients[1].empty());
    EXPECT_TRUE(SameValues(gradients[0], gradients[1]));
    EXPECT_TRUE(SameState(*over, *plain));
  }
}

// Inference comes in at every action of the steps, so that its messages wait unread wherever training needs the edge.
TEST_P(RankCredit, InferenceThatWaitsBesideTrainingHoldsNothingUp) {
  for (const bool fills : {true, false}) {
    SCOPED_TRACE(fills);
    PipelineSpec spec = Spec();
    spec.bubble_filling.enabled = fills;
    Pipeline* asked = nullptr;
    absl::Mutex mu;
    std::deque<Inference> questions;  // guarded by mu
    Pipeline::Options options;
    options.before_action = [&](const Action&) {
      absl::MutexLock lock(&mu);
      if (questions.size() < 40) questions.emplace_back().Ask(*asked, Question(kMicroBatches));
    };
    const auto over = MakeOver(group_, spec, GetParam().ranks, std::move(options));
    const auto plain = MakeAlone(alone_, spec);
    asked = over.get();
    std::vector<NamedValues> by_step;
    for (int step = 0; step < 4; ++step) {
      Inference now;
      now.Ask(*plain, Question(kMicroBatches));
      by_step.push_back(now.Answer()->outputs);
      const ContributionRequest batch = SmallBatch(2 * kMicroBatches);
      ASSERT_TRUE(over->TrainStep(batch, {}).ok());
      ASSERT_TRUE(plain->TrainStep(batch, {}).ok());
    }
    Inference now;
    now.Ask(*plain, Question(kMicroBatches));
    by_step.push_back(now.Answer()->outputs);
    EXPECT_EQ(questions.size(), 40u);
    for (Inference& question : questions) {
      const auto& answer = question.Answer();
      ASSERT_TRUE(answer.ok()) << answer.status();
      EXPECT_TRUE(SameValues(answer->outputs, by_step.at(answer->step)));
    }
    EXPECT_TRUE(SameState(*over, *plain));
  }
}

// The first stage wants the gradient first that the last one makes last: all must have credit.
TEST(RankCreditOfLists, GradientsMayBeTakenInAnyOrder) {
  std::string first, last;
  for (int m = 0; m < kMicroBatches; ++m) {
    absl::StrAppend(&first, "0F", m, ",");
    absl::StrAppend(&last, m == 0 ? "" : ",", "1F", m, ",1B", m);
  }
  for (int m = kMicroBatches; m-- > 0;) absl::StrAppend(&first, "0I", m, ",");
  for (int m = 0; m < kMicroBatches; ++m) absl::StrAppend(&first, m == 0 ? "" : ",", "0W", m);
  auto imported = ImportSchedule(absl::StrCat(first, "\n", last, "\n"));
  ASSERT_TRUE(imported.ok()) << imported.status();
  PipelineSpec spec = SmallMlp(2, kMicroBatches);
  spec.schedule.kind = std::string(kImportedKind);
  spec.schedule.imported = std::make_shared<const ImportedSchedule>(*std::move(imported));
  GroupInProcess group(2, ThreeCpus());
  DevicePool alone(ThreeCpus(), DevicePool::Mode::kThreads);
  const auto over = MakeOver(group, spec, {0, 1});
  const auto plain = MakeAlone(alone, spec);
  const ContributionRequest batch = SmallBatch(kMicroBatches);
  for (Pipeline* each : {over.get(), plain.get()}) ASSERT_TRUE(each->TrainStep(batch, {}).ok());
  EXPECT_TRUE(SameState(*over, *plain));
}

INSTANTIATE_TEST_SUITE_P(Placements, RankCredit,
                         ::testing::Values(Case{"1f1b", {0, 1}}, Case{"gpipe", {1, 0}}, Case{"zb-h1", {1, 2}},
                                           Case{"1f1b", {0, 1, 2}, 3}, Case{"gpipe", {1, 2, 1}, 3},
                                           Case{"zb-h2", {2, 0, 1}, 3}, Case{"interleaved-1f1b", {0, 1, 0, 1}},
                                           Case{"looped-bfs", {1, 2, 1, 2}}, Case{"interleaved-zb", {1, 0, 1, 0}},
                                           Case{"zbv", {0, 1, 1, 0}}, Case{"dualpipe-v", {2, 1, 1, 2}}));

}  // namespace
}  // namespace penstock::testing
