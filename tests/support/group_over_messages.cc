#include "tests/support/group_over_messages.h"

#include <set>
#include <utility>

#include "absl/synchronization/notification.h"
#include "engine/base/check.h"
#include "engine/base/status_macros.h"
#include "server/ranks/build_convert.h"
#include "server/ranks/rank_conversation.h"
#include "server/ranks/rank_pipelines.h"
#include "server/ranks/remote_rank.h"
#include "tests/support/quiet_line.h"

namespace penstock::testing {
namespace {

// One rank of one pipeline, with the way there and back.
//
// Threads:   what is said comes to the other end on the thread that says it, one message at a time.
class Ends {
 public:
  void Connect(RankPipelines* rank, std::shared_ptr<RankConversation> leader) {
    rank_ = rank;
    leader_ = std::move(leader);
  }
  void TellRank(const std::vector<MessagePart>& parts) {
    absl::MutexLock lock(&down_mu_);
    for (const MessagePart& part : parts) PENSTOCK_CHECK(rank_->OnTold(part).ok());
  }
  void TellLeader(const std::vector<MessagePart>& parts) {
    absl::MutexLock lock(&up_mu_);
    for (const MessagePart& part : parts) {
      auto whole = reader_.Take(part);
      PENSTOCK_CHECK(whole.ok());
      if (!whole->has_value()) continue;
      PENSTOCK_CHECK(leader_->OnReport((*whole)->message, std::move((*whole)->tensors)).ok());
    }
  }

 private:
  absl::Mutex down_mu_;
  absl::Mutex up_mu_;
  MessageReader<peer::v1::Report> reader_;
  RankPipelines* rank_ = nullptr;
  std::shared_ptr<RankConversation> leader_;
};

class LineToRank : public QuietLine {
 public:
  explicit LineToRank(Ends* ends) : ends_(ends) {}
  void Tell(std::vector<MessagePart> parts) override { ends_->TellRank(parts); }

 private:
  Ends* const ends_;
};

// The commands of a rank, with the rank itself behind them.
class WholeRank {
 public:
  WholeRank(Rank self, uint64_t pipeline, const Pipeline::Options& engine, PeerEdges* edges, RankEvents* leader)
      : rank_({.self = self,
               .engine = engine,
               .edges = [edges](uint32_t) { return std::shared_ptr<PeerEdges>(std::shared_ptr<void>(), edges); },
               .tell = [this](const std::vector<MessagePart>& parts) { ends_.TellLeader(parts); },
               .send_timeout_nanos = int64_t{60} * 1'000'000'000}),
        conversation_(
            std::make_shared<RankConversation>(self, pipeline, std::make_shared<LineToRank>(&ends_), leader)) {
    ends_.Connect(&rank_, conversation_);
  }

  const std::shared_ptr<RankConversation>& conversation() const { return conversation_; }

 private:
  Ends ends_;
  RankPipelines rank_;
  std::shared_ptr<RankConversation> conversation_;
};

}  // namespace

absl::StatusOr<std::map<Rank, std::unique_ptr<RankCommands>>> GroupOverMessages::Build(const PipelineSpec& spec,
                                                                                       const Plan& plan,
                                                                                       RankEvents* leader) {
  std::set<Rank> wanted;
  for (const StagePlan& stage : plan.stages) wanted.insert(stage.rank);
  wanted.erase(Rank(0));
  ranks_.clear();
  std::map<Rank, std::unique_ptr<RankCommands>> others;
  for (const Rank rank : wanted) {
    Pipeline::Options engine = options();
    engine.devices = &pool(rank);
    const auto whole =
        std::make_shared<WholeRank>(rank, static_cast<uint64_t>(built()), engine, &edges(rank.value()), leader);
    ranks_.push_back(whole);
    auto commands = std::make_unique<RemoteRank>(whole->conversation());
    absl::Status made;
    absl::Notification done;
    commands->Build(ToProto("pipeline", 1, spec, plan), nullptr, [&](const absl::Status& status) {
      made = status;
      done.Notify();
    });
    done.WaitForNotification();
    PENSTOCK_RETURN_IF_ERROR(made);
    others.emplace(rank, std::move(commands));
  }
  return others;
}

}  // namespace penstock::testing
