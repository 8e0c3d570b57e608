#include "tests/support/group_in_process.h"

#include <set>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/status_macros.h"
#include "engine/exec/rank_host_builder.h"

namespace penstock::testing {
namespace {

constexpr int64_t kSendTimeoutNanos = 60'000'000'000;
constexpr EdgeCredit kCredit{.messages = 1000, .bytes = int64_t{1} << 30};

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
  GroupTransport::Options options{.self = self, .streams = std::move(streams), .channel = {"pipeline", Epoch(built_)}};
  for (const StagePlan& stage : plan.stages) options.rank_of_stage.push_back(stage.rank);
  for (int rank = 0; rank < ranks(); ++rank) {
    if (Rank(rank) != self) options.credits.emplace(Rank(rank), EdgeCredits{.send = kCredit, .receive = kCredit});
  }
  options.send_timeout_nanos = kSendTimeoutNanos;
  options.on_arrival = std::move(on_arrival);
  options.on_failed = [on_failed = std::move(on_failed)](Rank, const absl::Status& why) { on_failed(why); };
  return std::make_unique<GroupTransport>(members_[self.value()].edges.get(), std::move(options));
}

std::unique_ptr<Transport> GroupInProcess::MakeTransport(const Plan& plan, std::vector<DeviceStreams*> streams,
                                                         std::function<void(const MessageKey&)> on_arrival,
                                                         std::function<void(const absl::Status&)> on_failed) {
  ++built_;
  return TransportOf(Rank(0), plan, std::move(streams), std::move(on_arrival), std::move(on_failed));
}

absl::StatusOr<std::map<Rank, std::unique_ptr<RankCommands>>> GroupInProcess::Build(const PipelineSpec& spec,
                                                                                    const Plan& plan,
                                                                                    RankEvents* leader) {
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

}  // namespace penstock::testing
