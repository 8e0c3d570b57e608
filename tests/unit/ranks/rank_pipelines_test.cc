// What a leader wants to have built that this group, or this rank, can't have: refused by name.

#include "server/ranks/rank_pipelines.h"

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "engine/base/error.h"
#include "engine/exec/device_pool.h"
#include "engine/transport/frame_header.h"
#include "server/ranks/build_convert.h"
#include "tests/support/fake_carrier.h"
#include "tests/support/small_specs.h"

namespace penstock::testing {
namespace {

// Rank 1 of a group of three.
class RankPipelinesTest : public ::testing::Test {
 protected:
  RankPipelinesTest() { EXPECT_TRUE(edges_->Start({{Rank(0), ""}, {Rank(2), ""}}).ok()); }

  static Plan TwoStages() {
    Plan plan;
    plan.stages = {{.first_layer = 0, .layers = {"a", "b"}, .device = "cpu:0", .lane = 0},
                   {.first_layer = 2, .layers = {"c", "d"}, .device = "cpu:0", .lane = 1, .rank = Rank(1)}};
    plan.schedule = SmallMlp(2, 2).schedule;
    return plan;
  }
  absl::Status Tell(OutgoingCommand command, uint64_t pipeline, uint64_t question) {
    command.message().set_pipeline(pipeline);
    command.message().set_question(question);
    absl::Status told;
    for (const MessagePart& part : command.ToParts()) told.Update(rank_.OnTold(part));
    return told;
  }
  static OutgoingCommand BuildOf(const Plan& plan) {
    OutgoingCommand command;
    *command.message().mutable_build() = ToProto("gpt", 1, SmallMlp(2, 2), plan);
    return command;
  }
  // What the rank says to it.
  std::string Build(uint64_t pipeline, const Plan& plan, const NamedTensors& tensors = {}) {
    OutgoingCommand command = BuildOf(plan);
    EXPECT_TRUE(command.AddAll(tensors).ok());
    return AnswerTo(std::move(command), pipeline);
  }
  std::string AnswerTo(OutgoingCommand command, uint64_t pipeline) {
    const uint64_t question = ++asked_;
    EXPECT_TRUE(Tell(std::move(command), pipeline, question).ok());
    absl::MutexLock lock(&mu_);
    const auto answered = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return answers_.contains(question); };
    mu_.Await(absl::Condition(&answered));
    return answers_[question];
  }
  void Drop(uint64_t pipeline) {
    OutgoingCommand command;
    command.message().mutable_drop();
    EXPECT_TRUE(Tell(std::move(command), pipeline, 0).ok());
  }
  void Note(const std::vector<MessagePart>& parts) {
    absl::MutexLock lock(&mu_);
    for (const MessagePart& part : parts) {
      const auto whole = reader_.Take(part);
      ASSERT_TRUE(whole.ok()) << whole.status();
      if (!whole->has_value()) continue;
      const peer::v1::Report& report = (*whole)->message;
      const absl::Status said = report.error().empty() ? absl::OkStatus() : DecodeError(report.error());
      answers_[report.answer_to()] = said.ok() ? "built" : ReasonOf(said) + " " + std::string(said.message());
    }
  }

  FakeCarrier::Network network_;
  const std::shared_ptr<PeerEdges> edges_ =
      std::make_shared<PeerEdges>(PeerEdges::Options{.group = {}, .self = Rank(1)}, network_.Make(Rank(1)));
  DevicePool devices_{{{"cpu:0", {0}}}, DevicePool::Mode::kThreads};
  Pipeline::Options options_{.devices = &devices_};
  absl::Mutex mu_;
  MessageReader<peer::v1::Report> reader_ ABSL_GUARDED_BY(mu_);
  std::map<uint64_t, std::string> answers_ ABSL_GUARDED_BY(mu_);
  uint64_t asked_ = 0;
  std::vector<std::string> loaded_;  // what was sent of programs
  std::function<void()> on_load_ = [] {};
  RankPipelines rank_{{.self = Rank(1),
                       .engine = options_,
                       .load =
                           [this](ModelSpec*, std::optional<std::string> sent) {
                             loaded_.push_back(std::move(sent).value_or("its own"));
                             on_load_();
                             return absl::OkStatus();
                           },
                       .edges = [this](uint32_t) { return edges_; },
                       .tell = [this](const std::vector<MessagePart>& parts) { Note(parts); }}};
};

TEST_F(RankPipelinesTest, StagesAreOfRanksOfTheGroup) {
  for (const int stranger : {3, -1}) {
    Plan plan = TwoStages();
    plan.stages[0].rank = Rank(stranger);
    EXPECT_EQ(Build(1, plan),
              "RANK_MESSAGE build.stages.rank: must be a rank of the group, got " + std::to_string(stranger));
  }
  Plan plan = TwoStages();
  plan.stages[1].rank = Rank(2);
  EXPECT_EQ(Build(1, plan), "RANK_MESSAGE build.stages.rank: must be 1 of one stage at least, got others");
  EXPECT_EQ(Build(1, TwoStages()), "built");
}

TEST_F(RankPipelinesTest, APipelineIsBuiltOnce) {
  EXPECT_EQ(Build(1, TwoStages()), "built");
  EXPECT_EQ(Build(1, TwoStages()), "RANK_MESSAGE command.pipeline: must not be built here yet, got 1");
  EXPECT_EQ(Build(2, TwoStages()), "built");
  Drop(1);
  EXPECT_EQ(Build(1, TwoStages()), "built");
}

TEST_F(RankPipelinesTest, AQuestionOfStagesThatAreNotThereIsAnswered) {
  OutgoingCommand command;
  command.message().mutable_read_facts();
  EXPECT_EQ(AnswerTo(std::move(command), 9), "RANK_LOST rank 1 has no stages of it any more");
}

TEST_F(RankPipelinesTest, LanesAreIdleInAStateThatThereIs) {
  ASSERT_EQ(Build(1, TwoStages()), "built");
  for (const int state : {0, kStageStateCount - 1, kStageStateCount, -1}) {
    OutgoingCommand command;
    command.message().set_set_idle(state);
    EXPECT_EQ(ReasonOf(Tell(std::move(command), 1, 0)), state < 0 || state == kStageStateCount ? "RANK_MESSAGE" : "");
  }
}

TEST_F(RankPipelinesTest, NothingIsBuiltForALeaderThatIsLost) {
  absl::Notification builds, go_on;
  on_load_ = [&] {
    builds.Notify();
    go_on.WaitForNotification();
  };
  ASSERT_TRUE(Tell(BuildOf(TwoStages()), 1, 1).ok());
  builds.WaitForNotification();
  ASSERT_TRUE(Tell(BuildOf(TwoStages()), 2, 2).ok());
  rank_.DropAll();
  go_on.Notify();
  rank_.Close();
  EXPECT_EQ(loaded_.size(), 1u) << "the second one was not begun";
  EXPECT_THAT(rank_.names(), ::testing::IsEmpty());
}

TEST_F(RankPipelinesTest, AProgramIsItsOwnOrTheOneThatWasSent) {
  EXPECT_EQ(Build(1, TwoStages()), "built");
  EXPECT_EQ(Build(2, TwoStages(), ToTensors("a file")), "built");
  EXPECT_EQ(Build(3, TwoStages(), ToTensors("")), "built");
  EXPECT_THAT(loaded_, ::testing::ElementsAre("its own", "a file", ""));
  const at::Tensor bytes = at::zeros({2}, at::kByte);
  for (const NamedTensors& lie : {NamedTensors{{"other", bytes}}, NamedTensors{{"program", at::zeros({2})}},
                                  NamedTensors{{"program", at::zeros({1, 2}, at::kByte)}},
                                  NamedTensors{{"program", bytes}, {"program", bytes}}}) {
    EXPECT_EQ(Build(4, TwoStages(), lie),
              "RANK_MESSAGE build.tensors: must be the file of a program, or nothing, got " + lie.front().name);
  }
  EXPECT_EQ(loaded_.size(), 3u);
}

}  // namespace
}  // namespace penstock::testing
