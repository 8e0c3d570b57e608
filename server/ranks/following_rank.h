#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/peer/leader_link.h"
#include "server/ranks/group_member.h"
#include "server/ranks/rank_pipelines.h"

namespace penstock {

// A rank that does not lead: joins its leader's group, and lends it its devices.
//
// Owns:      the link, the carriers and the stages. What the options name outlives it.
// Threads:   any method from any thread.
// Lifecycle: Start(); Close() once, or the destructor: the leader sees it leave, then its stages go.
class FollowingRank final : private RankHandler {
 public:
  struct Options {
    LeaderLink::Options link;
    GroupCarriers::Options carriers;
    RankPipelines::Options stages;  // `edges` and `tell` are filled in
  };
  FollowingRank(Options options, TimerQueue* timers);
  ~FollowingRank() override { Close(); }

  void Start() { link_.Start(); }
  void Close();

  // OK while the leader has this rank as a member.
  absl::Status status() const { return link_.status(); }
  std::vector<std::string> pipelines() const { return stages_.names(); }
  // Whether the leader is about to end: it finishes its work with what this rank lends, and saves.
  bool leader_drains() const { return leader_drains_; }
  // Of the forming that was prepared last; all zero: there was none.
  GroupIdentity group() const { return member_.carriers().identity(); }
  GroupFigures figures() const { return FiguresOf(member_.carriers()); }

 private:
  void OnPrepare(const GroupIdentity& group) override { member_.Prepare(group); }
  void OnForm(const Group& group) override { member_.Form(group); }
  void OnDissolve(const GroupIdentity&, Rank cause, const absl::Status& why) override { member_.Dissolve(cause, why); }
  void OnDraining(bool draining) override { leader_drains_ = draining; }
  absl::Status OnTold(MessagePart part) override { return stages_.OnTold(part); }
  std::map<Rank, LinkFigures> Received() const override;
  void OnLeaderLost(const absl::Status& why) override;

  std::atomic<bool> leader_drains_ = false;
  GroupMember member_;
  RankPipelines stages_;
  LeaderLink link_;  // last: its calls use all of the above
};

}  // namespace penstock
