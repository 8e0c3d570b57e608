#pragma once

// The group of ranks that this process leads, as its pipelines need it.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "engine/base/job_thread.h"
#include "engine/exec/pipeline_group.h"
#include "server/peer/group_service.h"
#include "server/peer/membership.h"
#include "server/ranks/group_links.h"
#include "server/ranks/group_member.h"
#include "server/ranks/message_parts.h"
#include "server/ranks/rank_conversation.h"
#include "server/ranks/trace_joining.h"

namespace penstock {

// Leads the ranks, and lets pipelines have stages on them.
//
// Model:     Complete while all ranks of the world are there and connected. A pipeline is opened over the ranks as they
//            are then, and keeps them until it goes or loses one of them: what happens to others does not disturb it.
// Owns:      the membership, and this rank's own carriers. What the options name, timers and clock outlive it; pipelines
//            go before it.
// Threads:   any method from any thread.
// Lifecycle: service() is registered with a server, then Start(); Close() once, before that server shuts down.
// Fails:     Open: UNAVAILABLE / GROUP_INCOMPLETE, naming the ranks that are missing.
class LeadingGroup final : public PipelineGroup, private MembershipListener {
 public:
  struct Options {
    RankDescription self;  // rank 0
    Membership::Options membership;
    GroupCarriers::Options carriers;
    int64_t send_timeout_nanos = 0;  // as GroupTransport's
    // Whether it is complete now; true also where it still is, and pipelines that have lost an edge can be made again. One
    // call at a time; must not block.
    std::function<void(bool complete)> on_change;
  };
  LeadingGroup(Options options, const Authenticator* authenticator, TimerQueue* timers, Clock* clock);
  ~LeadingGroup() override { Close(); }

  GroupServiceImpl* service() { return &service_; }
  absl::Status Start();
  void Drain(bool draining) { membership_.Drain(draining); }
  void Close();

  absl::StatusOr<std::vector<Device>> Devices(const std::vector<Device>& own) const override ABSL_LOCKS_EXCLUDED(mu_);
  bool complete() const override ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::unique_ptr<PipelineRanks>> Open(const std::string& name, const Plan& plan) override
      ABSL_LOCKS_EXCLUDED(mu_);

  // Those of the present generation, measured when they are first asked for; while the group is not complete, the last
  // ones. May block for some seconds.
  std::vector<Link> Links() override ABSL_LOCKS_EXCLUDED(mu_);

  // Puts what lanes of other ranks did into a trace of the pipeline's own ones, by this process's clock. `done` is called
  // once, on any thread. A rank that can't be asked, that does not answer for ten seconds, or whose clock is not known
  // yet, is missing.
  void JoinTraces(const std::string& pipeline, TraceCapture own, TraceJoining::Done done) ABSL_LOCKS_EXCLUDED(mu_);

  // What operators see.
  GroupView view() const;
  GroupFigures figures() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Ranks;
  class OwnLine;

  void OnFormed(const Group& group, const std::map<Rank, FormedRank>& ranks) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnLost(Rank rank, const absl::Status& why) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnFailed(Rank rank, const GroupIdentity& group, const absl::Status& why) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status OnTold(Rank rank, MessagePart part) override ABSL_LOCKS_EXCLUDED(mu_);

  uint64_t NextNumber() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);  // of a pipeline, or of a question by itself
  absl::Status Incomplete() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  std::shared_ptr<RankConversation> Converse(Rank rank, const std::string& name, uint64_t pipeline, uint32_t generation,
                                             const std::shared_ptr<MemberLine>& line, RankEvents* events)
      ABSL_LOCKS_EXCLUDED(mu_);
  // As another rank measures them; what it does not tell in time is missing.
  std::vector<Link> LinksOf(Rank rank, const std::shared_ptr<MemberLine>& line, uint32_t generation,
                            const std::vector<Rank>& peers, int64_t budget_nanos) ABSL_LOCKS_EXCLUDED(mu_);
  // Those that have stages there; `only`: of these. Null: all.
  void LosePipelines(Rank rank, const absl::Status& why, const std::set<uint64_t>* only) ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;
  TimerQueue* const timers_;
  const std::shared_ptr<JobThread> joins_ = std::make_shared<JobThread>("ps-joins");  // makes joint traces

  mutable absl::Mutex mu_;
  bool complete_ ABSL_GUARDED_BY(mu_) = false;
  GroupIdentity group_ ABSL_GUARDED_BY(mu_);
  std::map<Rank, FormedRank> ranks_ ABSL_GUARDED_BY(mu_);  // of the present forming, or the last one
  std::map<Rank, absl::Status> problems_ ABSL_GUARDED_BY(mu_);
  uint64_t pipelines_ ABSL_GUARDED_BY(mu_) = 0;  // and questions, that were opened
  struct Conversation {
    std::string name;  // of the pipeline
    std::weak_ptr<RankConversation> with;
    uint32_t generation = 0;  // whose edges the pipeline uses
  };
  std::map<std::pair<Rank, uint64_t>, Conversation> conversations_ ABSL_GUARDED_BY(mu_);

  GroupLinks links_;

  std::map<Rank, MessageReader<peer::v1::Report>> readers_;  // of the membership's calls

  // This rank as a member.
  absl::Notification joined_;
  MemberId own_id_;  // once joined
  GroupMember member_;
  Membership membership_;
  GroupServiceImpl service_;
};

}  // namespace penstock
