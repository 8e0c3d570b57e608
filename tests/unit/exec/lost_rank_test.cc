// What a pipeline over several ranks does when one of them is lost, whatever it was doing.

#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <utility>

#include "absl/synchronization/notification.h"
#include "engine/base/error.h"
#include "tests/support/group_in_process.h"
#include "tests/support/small_specs.h"

namespace penstock::testing {
namespace {

// A group of two ranks, of which the second may be lost when an action begins.
class LosingGroup : public GroupInProcess {
 public:
  LosingGroup() : GroupInProcess(2, {{"cpu:0", {0}}, {"cpu:1", {0}}}) {}

  absl::StatusOr<std::map<Rank, std::unique_ptr<RankCommands>>> Build(const PipelineSpec& spec, const Plan& plan,
                                                                      RankEvents* leader) override {
    leader_ = leader;
    return GroupInProcess::Build(spec, plan, leader);
  }
  void Lose() const { leader_->Lost(Rank(1), Error(absl::StatusCode::kUnavailable, "RANK_LOST", "rank 1 is lost")); }

  std::unique_ptr<Pipeline> Make(std::function<void(const Action&)> before_action = {}) {
    Pipeline::Options options;
    options.before_action = std::move(before_action);
    options = Options(std::move(options));
    options.edits.plan = [](Plan& plan) { plan.stages[1].rank = Rank(1); };
    return Pipeline::Create(SmallMlp(/*stages=*/2, /*micro_batches=*/4), std::move(options)).value();
  }

 private:
  RankEvents* leader_ = nullptr;
};

TEST(LostRank, FailsTheStepUnderWayAtWhateverActionItIsLost) {
  for (int lost_at = 0; lost_at < 18; ++lost_at) {  // 4 forwards, 4 backwards and a step in its parts, on each stage
    SCOPED_TRACE(lost_at);
    LosingGroup group;
    std::atomic<int> until = lost_at;
    const auto pipeline = group.Make([&](const Action&) {
      if (until.fetch_sub(1) == 0) group.Lose();
    });
    const auto step = pipeline->TrainStep(SmallBatch(4), {});
    ASSERT_LT(until.load(), 0) << "the rank was lost";
    EXPECT_EQ(ReasonOf(step.status()), "RANK_LOST") << step.status();
    EXPECT_EQ(ReasonOf(pipeline->health()), "RANK_LOST");
    EXPECT_EQ(ReasonOf(pipeline->ForwardBackward(SmallBatch(4)).status()), "RANK_LOST");
    EXPECT_EQ(ReasonOf(pipeline->ExportState(true).status()), "RANK_LOST");
  }
}

TEST(LostRank, RefusesTheNextInference) {
  LosingGroup group;
  const auto pipeline = group.Make();
  for (const bool lost : {false, true}) {
    if (lost) group.Lose();
    absl::Notification done;
    absl::StatusOr<ForwardOutcome> answer;
    ForwardRequest request;
    request.inputs = SmallBatch(4).inputs;
    pipeline->InferAsync(std::move(request), [&](absl::StatusOr<ForwardOutcome> outcome) {
      answer = std::move(outcome);
      done.Notify();
    });
    done.WaitForNotification();
    EXPECT_EQ(ReasonOf(answer.status()), lost ? "RANK_LOST" : "") << answer.status();
  }
}

}  // namespace
}  // namespace penstock::testing
