#include "tests/support/group_in_process.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/exec/rank_host_builder.h"
#include "engine/exec/rank_transport.h"

namespace penstock::testing {
namespace {

constexpr int64_t kSendTimeoutNanos = 60'000'000'000;

}  // namespace

GroupInProcess::GroupInProcess(int ranks, const std::vector<Device>& devices, MakeCarrier make_carrier) {
  std::map<Rank, std::string> addresses;
  for (int rank = 0; rank < ranks; ++rank) {
    const Rank self(rank);
    Member member;
    member.pool = std::make_unique<DevicePool>(devices, DevicePool::Mode::kThreads);
    std::unique_ptr<Carrier> carrier = make_carrier ? make_carrier(self) : network_.Make(self);
    member.edges = std::make_unique<PeerEdges>(PeerEdges::Options{.group = {}, .self = self}, std::move(carrier));
    addresses.emplace(self, member.edges->address());
    members_.push_back(std::move(member));
  }
  for (int rank = 0; rank < ranks; ++rank) {
    std::map<Rank, std::string> peers = addresses;
    peers.erase(Rank(rank));
    PENSTOCK_CHECK(members_[rank].edges->Start(peers).ok());
  }
}

GroupInProcess::~GroupInProcess() {
  for (Member& member : members_) member.edges->Close();
}

Pipeline::Options GroupInProcess::Options(Pipeline::Options options) {
  options.group = this;
  options.devices = members_[0].pool.get();
  options_ = options;
  return options;
}

std::unique_ptr<Transport> GroupInProcess::TransportOf(Rank self, const Plan& plan, std::vector<DeviceStreams*> streams,
                                                       std::function<void(const MessageKey&)> on_arrival,
                                                       std::function<void(const absl::Status&)> on_failed) {
  return MakeRankTransport(members_[self.value()].edges.get(), {absl::StrCat(built_), Epoch()}, plan, self,
                           std::move(streams), kSendTimeoutNanos, std::move(on_arrival), std::move(on_failed), credit_);
}

class GroupInProcess::Ranks : public PipelineRanks {
 public:
  Ranks(GroupInProcess* group, Plan plan) : group_(group), plan_(std::move(plan)) {}

  std::unique_ptr<Transport> MakeTransport(std::vector<DeviceStreams*> streams,
                                           std::function<void(const MessageKey&)> on_arrival,
                                           std::function<void(const absl::Status&)> on_failed) override {
    return group_->TransportOf(Rank(0), plan_, std::move(streams), std::move(on_arrival), std::move(on_failed));
  }
  absl::StatusOr<std::map<Rank, std::unique_ptr<RankCommands>>> Build(const PipelineSpec& spec,
                                                                      RankEvents* leader) override {
    return group_->Build(spec, plan_, leader);
  }

 private:
  GroupInProcess* const group_;
  const Plan plan_;
};

absl::StatusOr<std::unique_ptr<PipelineRanks>> GroupInProcess::Open(const std::string&, const Plan& plan) {
  {
    absl::MutexLock lock(&mu_);
    if (missing_.has_value()) {
      return Error(absl::StatusCode::kUnavailable, "GROUP_INCOMPLETE",
                   absl::StrCat("rank ", missing_->value(), " is missing"));
    }
  }
  ++built_;
  return std::make_unique<Ranks>(this, plan);
}

absl::StatusOr<std::map<Rank, std::unique_ptr<RankCommands>>> GroupInProcess::Build(const PipelineSpec& spec,
                                                                                    const Plan& plan,
                                                                                    RankEvents* leader) {
  {
    absl::MutexLock lock(&mu_);
    leader_ = leader;
  }
  std::set<Rank> wanted;
  for (const StagePlan& stage : plan.stages) wanted.insert(stage.rank);
  wanted.erase(Rank(0));
  std::map<Rank, std::unique_ptr<RankCommands>> others;
  for (const Rank rank : wanted) {
    Pipeline::Options options = options_;
    options.devices = members_.at(rank.value()).pool.get();
    auto host = std::make_shared<RankHost*>(nullptr);
    const auto transport = [this, rank, plan, host](std::vector<DeviceStreams*> streams,
                                                    std::function<void(const MessageKey&)> on_arrival) {
      return TransportOf(rank, plan, std::move(streams), std::move(on_arrival), [host](const absl::Status& why) {
        if (*host != nullptr) (*host)->FailRuns(why);
      });
    };
    PENSTOCK_ASSIGN_OR_RETURN(std::unique_ptr<RankHost> made,
                              BuildRankHost(spec, options, plan, rank, transport, leader));
    *host = made.get();
    others.emplace(rank, std::move(made));
  }
  return others;
}

void GroupInProcess::LoseForPipeline(Rank rank) {
  RankEvents* leader = nullptr;
  {
    absl::MutexLock lock(&mu_);
    leader = leader_;
  }
  leader->Lost(rank, Error(absl::StatusCode::kUnavailable, "RANK_LOST", absl::StrCat("rank ", rank.value(), " is lost"))
                         .With("rank", absl::StrCat(rank.value())));
}

void GroupInProcess::Lose(Rank rank, bool missing_first) {
  if (missing_first) {
    absl::MutexLock lock(&mu_);
    missing_ = rank;
  }
  LoseForPipeline(rank);
  absl::MutexLock lock(&mu_);
  missing_ = rank;  // last: it comes back when its loss has been told
}

void GroupInProcess::Complete() {
  absl::MutexLock lock(&mu_);
  missing_.reset();
}

}  // namespace penstock::testing
