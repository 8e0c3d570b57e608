#include "engine/exec/rank_transport.h"

#include <algorithm>
#include <set>
#include <utility>

#include "engine/base/guard.h"
#include "engine/base/rank_message.h"
#include "engine/transport/group_transport.h"

namespace penstock {
namespace {

constexpr Rank kLeader(0);
constexpr int64_t kMessages = 8;
constexpr int64_t kUnknownBytes = int64_t{1} << 30;  // where the plan knows no sizes

// The ranks that a rank shares a message with: those of neighbouring stages and of skips, and the leader with those of
// the first and the last stage.
std::set<Rank> PeersOf(const Plan& plan, Rank self) {
  std::set<Rank> peers;
  const auto share = [&](Rank one, Rank other) {
    if (one == self) peers.insert(other);
    if (other == self) peers.insert(one);
  };
  for (size_t s = 1; s < plan.stages.size(); ++s) share(plan.stages[s - 1].rank, plan.stages[s].rank);
  for (const SkipRoute& skip : plan.skips) share(plan.stages[skip.edge.from].rank, plan.stages[skip.edge.to].rank);
  share(kLeader, plan.stages.front().rank);
  share(kLeader, plan.stages.back().rank);
  peers.erase(self);
  return peers;
}

// Of each stream between two ranks.
EdgeCredit CreditOf(const Plan& plan, Rank one, Rank other) {
  // Lists take what comes in the order in which it is sent; but those of a file may do so with gradients in any.
  const auto* imported = plan.schedule.imported.get();
  const int64_t messages =
      imported == nullptr ? kMessages : std::max<int64_t>(kMessages, imported->actions.micro_batches);
  const auto joins = [&](int from, int to) {
    const std::set<Rank> ends = {plan.stages[from].rank, plan.stages[to].rank};
    return ends == std::set<Rank>{one, other};
  };
  int64_t largest = 0;
  for (int s = 1; s < static_cast<int>(plan.stages.size()); ++s) {
    if (joins(s - 1, s)) largest = std::max(largest, plan.stages[s].input_bytes);
  }
  for (const SkipRoute& skip : plan.skips) {
    if (joins(skip.edge.from, skip.edge.to)) largest = std::max(largest, skip.bytes);
  }
  return {.messages = messages, .bytes = largest == 0 ? kUnknownBytes : messages * largest};
}

}  // namespace

std::unique_ptr<Transport> MakeRankTransport(PeerEdges* edges, ChannelName channel, const Plan& plan, Rank self,
                                             std::vector<DeviceStreams*> streams, int64_t send_timeout_nanos,
                                             std::function<void(const MessageKey&)> on_arrival,
                                             std::function<void(const absl::Status&)> on_failed,
                                             const std::optional<EdgeCredit>& credit) {
  GroupTransport::Options options{
      .self = self, .streams = std::move(streams), .leader = kLeader, .channel = std::move(channel)};
  for (const StagePlan& stage : plan.stages) options.rank_of_stage.push_back(stage.rank);
  for (const Rank peer : PeersOf(plan, self)) {
    const EdgeCredit both = credit.value_or(CreditOf(plan, self, peer));
    options.credits[peer] = {.send = both, .receive = both};
  }
  options.send_timeout_nanos = send_timeout_nanos;
  options.on_arrival = std::move(on_arrival);
  options.on_failed = [failed = std::move(on_failed)](Rank peer, const absl::Status& why) {
    if (!failed) return;
    absl::Status told = why;
    Guarded("what an edge failed with", [&] { told = ToldBy(peer, why); }).IgnoreError();
    failed(told);
  };
  return std::make_unique<GroupTransport>(edges, std::move(options));
}

}  // namespace penstock
