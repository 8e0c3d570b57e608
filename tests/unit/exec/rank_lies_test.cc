// A rank that tells its leader what it can't know, or tells it twice: the run fails by name, and the next one works.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/small_specs.h"
#include "tests/unit/exec/watched_ranks.h"

namespace penstock::testing {
namespace {

ContributionRequest OneBatch() { return Contribution(Range({6, 3}).sin(), Range({6, 3}).cos()); }

class RankLies : public ::testing::Test {
 protected:
  using Norms = std::vector<NormsOfStage>;

  // The rank has the last stage, or the first one.
  std::unique_ptr<Pipeline> Make(bool last, Pipeline::Options options = {}) {
    return MakeOver(group_, TiedAroundBatchNorm(), last ? std::vector{0, 1} : std::vector{1, 0}, std::move(options));
  }

  // A step in which norms are told so.
  void ExpectRefusedNorms(const std::string& problem, bool last,
                          const std::function<void(RankEvents&, int64_t run, Norms, Measures)>& lie) {
    SCOPED_TRACE(problem);
    const auto pipeline = Make(last);
    lies_ = true;
    group_.hooks.has_norms = [&](RankEvents& leader, Rank rank, int64_t run, Norms norms, Measures measures) {
      if (lies_.exchange(false)) return lie(leader, run, std::move(norms), std::move(measures));
      leader.HasNorms(rank, run, std::move(norms), std::move(measures));
    };
    ExpectRefused(problem, *pipeline, pipeline->TrainStep(OneBatch(), {}).status());
  }
  // The same with ties.
  void ExpectRefusedTies(const std::string& problem,
                         const std::function<void(RankEvents&, int64_t run, TiedGradients)>& lie) {
    SCOPED_TRACE(problem);
    const auto pipeline = Make(/*last=*/true);
    lies_ = true;
    group_.hooks.has_ties = [&](RankEvents& leader, Rank rank, int64_t run, TiedGradients own) {
      lies_.exchange(false) ? lie(leader, run, std::move(own)) : leader.HasTies(rank, run, std::move(own));
    };
    ExpectRefused(problem, *pipeline, pipeline->TrainStep(OneBatch(), {}).status());
  }
  void ExpectRefused(const std::string& problem, Pipeline& pipeline, const absl::Status& status) {
    EXPECT_EQ(ReasonOf(status), "RANK_MESSAGE") << status;
    EXPECT_EQ(status.message(), problem);
    EXPECT_EQ(ValuesOf(status)["rank"], "1");
    const auto plain = MakeAlone(alone_, TiedAroundBatchNorm());
    for (Pipeline* each : {&pipeline, plain.get()}) ASSERT_TRUE(each->TrainStep(OneBatch(), {}).ok());
    EXPECT_TRUE(SameState(pipeline, *plain));
  }

  std::atomic<bool> lies_ = true;  // once
  WatchedGroup group_{2};
  DevicePool alone_{ThreeCpus(), DevicePool::Mode::kThreads};
};

TEST_F(RankLies, AStateIsWholeOrNone) {
  const auto pipeline = Make(/*last=*/true);
  const std::vector<std::function<void(StatesOfStages&)>> lies = {
      [](StatesOfStages& states) { states.clear(); },
      [](StatesOfStages& states) { states[0].saved.pop_back(); },
      [](StatesOfStages& states) { states[0].saved[0].tensor = states[0].saved[0].tensor.to(at::kDouble); },
      [](StatesOfStages& states) { states[0].stage = 7; },
  };
  for (const auto& lie : lies) {
    group_.hooks.on_state = lie;
    const absl::Status refused = pipeline->ExportState(/*with_optimizer=*/false).status();
    EXPECT_EQ(ReasonOf(refused), "RANK_MESSAGE") << refused;
    EXPECT_EQ(refused.code(), absl::StatusCode::kAborted);
    EXPECT_EQ(ValuesOf(refused)["rank"], "1");
  }
  group_.hooks.on_state = [](StatesOfStages&) {};
  EXPECT_TRUE(pipeline->ExportState(/*with_optimizer=*/false).ok());
}

TEST_F(RankLies, TiesAreAsTheirParameter) {
  ExpectRefusedTies("ties.gradients: must be as layer0.weight, [3, 3], got [1]",
                    [](RankEvents& leader, int64_t run, TiedGradients own) {
                      for (at::Tensor& gradient : own[0]) {
                        if (gradient.defined()) gradient = at::ones({1});
                      }
                      leader.HasTies(Rank(1), run, std::move(own));
                    });
}

TEST_F(RankLies, NormsAreOfItsOwnStagesEachOnce) {
  const Rank self(1);
  ExpectRefusedNorms("norms.stage: must be a stage of rank 1, and stand once, got 0", true,
                     [&](RankEvents& leader, int64_t run, Norms norms, const Measures& measures) {
                       norms[0].stage = 0;
                       leader.HasNorms(self, run, norms, measures);
                     });
  ExpectRefusedNorms("norms.stage: must be a stage of rank 1, and stand once, got 1", true,
                     [&](RankEvents& leader, int64_t run, Norms norms, const Measures& measures) {
                       norms.push_back(norms[0]);
                       leader.HasNorms(self, run, norms, measures);
                     });
  ExpectRefusedNorms("norms.stage: must be there for stage 1, got nothing", true,
                     [&](RankEvents& leader, int64_t run, const Norms&, const Measures& measures) {
                       leader.HasNorms(self, run, {}, measures);
                     });
}

TEST_F(RankLies, NormsComeOnce) {
  ExpectRefusedNorms("norms.run: must be a run of which rank 1 has not told this yet, got 1", true,
                     [](RankEvents& leader, int64_t run, const Norms& norms, const Measures& measures) {
                       for (int i = 0; i < 2; ++i) leader.HasNorms(Rank(1), run, norms, measures);
                     });
}

TEST_F(RankLies, WhoLeavesAStepHasToldItsNorms) {
  ExpectRefusedNorms("left.before_the_end: must be set where norms were not told, got false", true,
                     [](RankEvents& leader, int64_t run, const Norms&, const Measures&) {
                       leader.Left(Rank(1), run, /*before_the_end=*/false, {});
                     });
}

TEST_F(RankLies, LossesAreOfEachMicroBatchFromTheRankOfTheLastStage) {
  ExpectRefusedNorms("measures.losses: must be 2, got 1", true,
                     [](RankEvents& leader, int64_t run, const Norms& norms, Measures measures) {
                       measures.losses.pop_back();
                       leader.HasNorms(Rank(1), run, norms, measures);
                     });
  ExpectRefusedNorms("measures.losses: must come once, from rank 0, got some from rank 1", false,
                     [](RankEvents& leader, int64_t run, const Norms& norms, Measures measures) {
                       measures.losses = {0, 0};
                       leader.HasNorms(Rank(1), run, norms, measures);
                     });
}

TEST_F(RankLies, MeasuresOfAStepComeWithItsNormsOnly) {
  const auto pipeline = Make(/*last=*/true);
  group_.hooks.left = [&](RankEvents& leader, Rank rank, int64_t run, bool before_the_end, Measures measures) {
    if (lies_.exchange(false)) measures.losses = {0, 0};
    leader.Left(rank, run, before_the_end, measures);
  };
  ExpectRefused("measures.losses: must come once, from rank 1, got some from rank 1", *pipeline,
                pipeline->TrainStep(OneBatch(), {}).status());
}

TEST_F(RankLies, TiesAreOfAllUsesFromTheRankThatHasThem) {
  ExpectRefusedTies("ties.uses: must be of 1 parameters, got 0",
                    [](RankEvents& leader, int64_t run, const TiedGradients&) { leader.HasTies(Rank(1), run, {}); });
  ExpectRefusedTies("ties.uses: must be 2 of layer0.weight, got 1",
                    [](RankEvents& leader, int64_t run, TiedGradients own) {
                      own[0].erase(own[0].begin());
                      leader.HasTies(Rank(1), run, own);
                    });
  ExpectRefusedTies("ties.gradients: must be of uses on rank 1, got one on rank 0",
                    [](RankEvents& leader, int64_t run, TiedGradients own) {
                      own[0][0] = at::ones({3, 3});
                      leader.HasTies(Rank(1), run, own);
                    });
}

TEST_F(RankLies, TiesComeOnce) {
  ExpectRefusedTies("ties.run: must be a run of which rank 1 has not told this yet, got 1",
                    [](RankEvents& leader, int64_t run, const TiedGradients& own) {
                      for (int i = 0; i < 2; ++i) leader.HasTies(Rank(1), run, own);
                    });
}

TEST_F(RankLies, ARunWithoutTiesGetsNone) {
  const auto pipeline = MakeOver(group_, SmallMlp(2, 2), {0, 1});
  group_.hooks.has_norms = [&](RankEvents& leader, Rank rank, int64_t run, Norms norms, Measures measures) {
    if (lies_.exchange(false)) leader.HasTies(rank, run, {});
    leader.HasNorms(rank, run, std::move(norms), std::move(measures));
  };
  const absl::Status status = pipeline->TrainStep(SmallBatch(4), {}).status();
  EXPECT_EQ(status.message(), "ties.run: must be one with a step that has ties, got 1");
  EXPECT_TRUE(pipeline->TrainStep(SmallBatch(4), {}).ok());
}

// The leader's own last action waits, so that the run is open.
TEST_F(RankLies, ARankLeavesOnce) {
  absl::Notification left;
  Pipeline::Options options;
  options.before_action = [&](const Action& action) {
    if (action.stage == 0 && action.kind == ActionKind::kBackward) left.WaitForNotification();
  };
  const auto pipeline = Make(/*last=*/true, std::move(options));
  group_.hooks.left = [&](RankEvents& leader, Rank rank, int64_t run, bool before_the_end, const Measures& measures) {
    leader.Left(rank, run, before_the_end, measures);
    if (!lies_.exchange(false)) return;
    leader.Left(rank, run, before_the_end, measures);
    left.Notify();
  };
  ExpectRefused("left.run: must be a run of which rank 1 has not told this yet, got 1", *pipeline,
                pipeline->ForwardBackward(OneBatch()).status());
}

TEST_F(RankLies, SumsAreOfEveryMetric) {
  PipelineSpec spec = SmallMlp(2, 2);
  spec.loss.name = "cross_entropy";
  const auto pipeline = MakeOver(group_, spec, {0, 1});
  EvaluationRequest request;
  request.batch = SmallBatch(4);
  request.batch.target = at::arange(4);
  request.metrics = {"accuracy", "top_2_accuracy"};
  group_.hooks.left = [&](RankEvents& leader, Rank rank, int64_t run, bool before_the_end, Measures measures) {
    if (lies_.exchange(false)) measures.metric_sums.at(1).pop_back();
    leader.Left(rank, run, before_the_end, measures);
  };
  const absl::Status status = Evaluate(*pipeline, request).status();
  EXPECT_EQ(status.message(), "measures.metric_sums.sums: must be 2, got 1");
  EXPECT_TRUE(Evaluate(*pipeline, request).ok());
  lies_ = true;
  group_.hooks.left = [&](RankEvents& leader, Rank rank, int64_t run, bool before_the_end, Measures measures) {
    if (lies_.exchange(false)) measures.metric_sums.pop_back();
    leader.Left(rank, run, before_the_end, measures);
  };
  EXPECT_EQ(Evaluate(*pipeline, request).status().message(), "measures.metric_sums: must be 2, got 1");
  EXPECT_TRUE(Evaluate(*pipeline, request).ok());
}

}  // namespace
}  // namespace penstock::testing
