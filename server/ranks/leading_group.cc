#include "server/ranks/leading_group.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/blocking_counter.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/log.h"
#include "engine/base/rank_message.h"
#include "engine/base/status_macros.h"
#include "engine/exec/device_pool.h"
#include "engine/exec/rank_transport.h"
#include "engine/model/layer_source.h"
#include "engine/transport/measure_link.h"
#include "server/ranks/build_convert.h"
#include "server/ranks/remote_rank.h"
#include "server/ranks/trace_convert.h"

namespace penstock {
namespace {

constexpr int64_t kTracePatienceNanos = 10'000'000'000;
constexpr int64_t kTimeToAskNanos = 1'000'000'000;  // a rank for its links: it may be busy with stages

// A job that gives what a rank has answered: the thread that brings answers has no time to read it. Where there is no
// memory for the job, the rank is missing when the time is over.
std::function<void()> ToGive(const std::shared_ptr<TraceJoining>& joining, Rank rank,
                             const absl::StatusOr<RankConversation::Arrived*>& arrived) {
  if (!arrived.ok()) return [joining, rank, why = arrived.status()] { joining->Give(rank, why); };
  const auto trace = std::make_shared<peer::v1::TraceOfRank>((*arrived)->report.trace());
  const auto tensors = std::make_shared<IncomingTensors>(std::move((*arrived)->tensors));
  return [joining, rank, trace, tensors] {
    joining->Give(rank, Guarded("a rank's trace", [&] { return TakeTrace(*trace, *tensors); }));
  };
}

// All at the same time. What each says of it. Closures own what they write to: one of them may be called late.
std::map<Rank, absl::Status> BuildAll(const std::map<Rank, std::unique_ptr<RemoteRank>>& ranks,
                                      const peer::v1::BuildStages& stages, const std::string* program) {
  struct Answers {
    explicit Answers(size_t ranks) : left(static_cast<int>(ranks)) {}
    absl::BlockingCounter left;
    std::map<Rank, absl::Status> built;
  };
  const auto answers = std::make_shared<Answers>(ranks.size());
  for (const auto& [rank, commands] : ranks) answers->built.emplace(rank, absl::OkStatus());
  for (const auto& [rank, commands] : ranks) {
    commands->Build(stages, program, [answers, &status = answers->built.at(rank)](absl::Status result) {
      status = std::move(result);
      answers->left.DecrementCount();
    });
  }
  answers->left.Wait();
  return std::move(answers->built);
}

}  // namespace

// --- This process as a member of its own group.

class LeadingGroup::OwnLine final : public MemberLine {
 public:
  explicit OwnLine(LeadingGroup* group) : group_(group) {}

  void Welcome(Epoch, absl::Duration) override {}
  void Ping(int64_t) override {
    if (group_->joined_.HasBeenNotified()) group_->membership_.Heard(group_->own_id_);
  }
  void Prepare(const GroupIdentity& group) override { group_->member_.Prepare(group); }
  void Form(const Group& group) override { group_->member_.Form(group); }
  void Dissolve(const GroupIdentity&, Rank cause, const absl::Status& why) override {
    group_->member_.Dissolve(cause, why);
  }
  void Draining(bool) override {}
  void Tell(std::vector<MessagePart>) override {}
  void End(const absl::Status&) override {}

 private:
  LeadingGroup* const group_;
};

LeadingGroup::LeadingGroup(Options options, const Authenticator* authenticator, TimerQueue* timers, Clock* clock)
    : options_(std::move(options)),
      timers_(timers),
      member_(options_.carriers, {.prepared =
                                      [this](const GroupIdentity& group, const std::string& address) {
                                        joined_.WaitForNotification();
                                        membership_.Prepared(own_id_, group, address);
                                      },
                                  .formed = [this](const GroupIdentity& group) { membership_.Formed(own_id_, group); },
                                  .failed =
                                      [this](const GroupIdentity& group, const absl::Status& why) {
                                        joined_.WaitForNotification();
                                        membership_.Failed(own_id_, group, why);
                                      }}),
      membership_(options_.membership, this),
      service_(authenticator, &membership_, timers, clock) {}

absl::Status LeadingGroup::Start() {
  PENSTOCK_ASSIGN_OR_RETURN(own_id_, membership_.Join(options_.self, std::make_shared<OwnLine>(this)));
  joined_.Notify();
  service_.Start();
  return absl::OkStatus();
}

void LeadingGroup::Close() {
  membership_.Close();
  service_.Close();
  member_.Close();
  joins_->Close();
}

// --- What the membership tells.

void LeadingGroup::OnFormed(const Group& group, const std::map<Rank, FormedRank>& ranks) {
  {
    absl::MutexLock lock(&mu_);
    complete_ = true;
    group_ = group.identity;
    ranks_ = ranks;
    problems_.clear();
  }
  options_.on_change(true);
}

void LeadingGroup::OnLost(Rank rank, const absl::Status& why) {
  readers_.erase(rank);
  bool was_complete;
  {
    absl::MutexLock lock(&mu_);
    was_complete = std::exchange(complete_, false);
    problems_[rank] = why;
  }
  if (was_complete) options_.on_change(false);
  LosePipelines(rank, why, nullptr);
}

// Where an edge between two ranks has failed, pipelines that have stages on both can't go on. Where it was one of an
// earlier generation, the present one stands, and they can be made again at once.
void LeadingGroup::OnFailed(Rank rank, const GroupIdentity& group, const absl::Status& why) {
  bool stands;
  bool was_complete;
  std::set<uint64_t> broken;
  const std::optional<Rank> peer = RankNamedIn(why);
  {
    absl::MutexLock lock(&mu_);
    was_complete = complete_;
    stands = membership_.IsComplete();
    complete_ = complete_ && stands;
    const auto has = [this](Rank one, uint64_t pipeline) ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return one == Rank(0) || conversations_.contains({one, pipeline});
    };
    for (const auto& [key, conversation] : conversations_) {
      if (!peer.has_value() || conversation.generation != group.generation) continue;
      if (has(rank, key.second) && has(*peer, key.second)) broken.insert(key.second);
    }
  }
  if (was_complete && !stands) options_.on_change(false);
  if (peer.has_value()) LosePipelines(*peer == Rank(0) ? rank : *peer, why, &broken);
}

void LeadingGroup::LosePipelines(Rank rank, const absl::Status& why, const std::set<uint64_t>* only) {
  std::vector<std::shared_ptr<RankConversation>> lost;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [key, conversation] : conversations_) {
      if (key.first != rank || (only != nullptr && !only->contains(key.second))) continue;
      if (auto held = conversation.with.lock()) lost.push_back(std::move(held));
    }
  }
  for (const auto& conversation : lost) {
    Guarded("the loss of a rank", [&] { conversation->OnLost(why); }).IgnoreError();
  }
}

absl::Status LeadingGroup::OnTold(Rank rank, MessagePart part) {
  PENSTOCK_ASSIGN_OR_RETURN(auto whole, readers_[rank].Take(part));
  if (!whole.has_value()) return absl::OkStatus();
  std::shared_ptr<RankConversation> conversation;
  {
    absl::MutexLock lock(&mu_);
    const auto found = conversations_.find({rank, whole->message.pipeline()});
    if (found != conversations_.end()) conversation = found->second.with.lock();
  }
  // Of a pipeline that has gone nobody wants to know.
  return conversation == nullptr ? absl::OkStatus() : conversation->OnReport(whole->message, std::move(whole->tensors));
}

// --- What pipelines want.

absl::Status LeadingGroup::Incomplete() const {
  std::vector<std::string> missing;
  for (int rank = 1; rank < options_.membership.world_size; ++rank) {
    const auto problem = problems_.find(Rank(rank));
    if (problem != problems_.end()) missing.push_back(std::string(problem->second.message()));
  }
  return Error(absl::StatusCode::kUnavailable, "GROUP_INCOMPLETE",
               absl::StrCat("the group is not complete", missing.empty() ? "" : ": ", absl::StrJoin(missing, "; ")));
}

absl::StatusOr<std::vector<Device>> LeadingGroup::Devices(const std::vector<Device>& own) const {
  std::vector<Device> devices;
  absl::MutexLock lock(&mu_);
  if (ranks_.empty()) return Incomplete();
  for (const auto& [rank, formed] : ranks_) {
    if (rank == Rank(0)) continue;
    for (const RankDevice& device : formed.description.devices) {
      devices.push_back(DeviceOfRank(rank, device.name, device.memory_bytes, own));
    }
  }
  return devices;
}

// The ranks of one pipeline.
class LeadingGroup::Ranks final : public PipelineRanks {
 public:
  struct Parts {
    LeadingGroup* group = nullptr;
    std::string name;
    uint64_t number = 0;
    Plan plan;
    uint32_t generation = 0;
    std::shared_ptr<PeerEdges> edges;
    std::map<Rank, std::shared_ptr<MemberLine>> lines;  // of the others
  };
  explicit Ranks(Parts parts) : parts_(std::move(parts)) {}

  std::unique_ptr<Transport> MakeTransport(std::vector<DeviceStreams*> streams,
                                           std::function<void(const MessageKey&)> on_arrival,
                                           std::function<void(const absl::Status&)> on_failed) override {
    const ChannelName channel = {.pipeline = absl::StrCat(parts_.number), .epoch = Epoch()};
    return MakeRankTransport(parts_.edges.get(), channel, parts_.plan, Rank(0), std::move(streams),
                             parts_.group->options_.send_timeout_nanos, std::move(on_arrival), std::move(on_failed));
  }

  absl::StatusOr<std::map<Rank, std::unique_ptr<RankCommands>>> Build(const PipelineSpec& spec,
                                                                      RankEvents* leader) override;

 private:
  const Parts parts_;
};

absl::StatusOr<std::map<Rank, std::unique_ptr<RankCommands>>> LeadingGroup::Ranks::Build(const PipelineSpec& spec,
                                                                                         RankEvents* leader) {
  const peer::v1::BuildStages stages = ToProto(parts_.name, parts_.generation, spec, parts_.plan);
  std::map<Rank, std::unique_ptr<RemoteRank>> remote;
  for (const auto& [rank, line] : parts_.lines) {
    remote.emplace(rank, std::make_unique<RemoteRank>(parts_.group->Converse(rank, parts_.name, parts_.number,
                                                                             parts_.generation, line, leader)));
  }
  std::map<Rank, absl::Status> built = BuildAll(remote, stages, nullptr);
  std::map<Rank, std::unique_ptr<RemoteRank>> without;  // the program that it needs
  for (auto& [rank, status] : built) {
    const std::string reason = ReasonOf(status);
    if (reason == "MODEL_NOT_FOUND" || reason == "MODEL_MISMATCH") without.insert(remote.extract(rank));
  }
  if (!without.empty() && spec.model.loaded_program != nullptr) {
    LogInfo("ranks get a program from the leader",
            {{"pipeline", parts_.name}, {"program", spec.model.program}, {"ranks", absl::StrCat(without.size())}});
    const std::shared_ptr<const std::string> program = spec.model.loaded_program->file();
    for (auto& [rank, status] : BuildAll(without, stages, program.get())) built[rank] = std::move(status);
  }
  remote.merge(without);
  std::map<Rank, std::unique_ptr<RankCommands>> others;
  for (auto& [rank, commands] : remote) {
    PENSTOCK_RETURN_IF_ERROR(built.at(rank));
    others.emplace(rank, std::move(commands));
  }
  return others;
}

std::shared_ptr<RankConversation> LeadingGroup::Converse(Rank rank, const std::string& name, uint64_t pipeline,
                                                         uint32_t generation, const std::shared_ptr<MemberLine>& line,
                                                         RankEvents* events) {
  auto conversation = std::make_shared<RankConversation>(rank, pipeline, line, events);
  absl::Status lost;
  {
    absl::MutexLock lock(&mu_);
    std::erase_if(conversations_, [](const auto& entry) { return entry.second.with.expired(); });
    conversations_[{rank, pipeline}] = {.name = name, .with = conversation, .generation = generation};
    // It may have gone, and come back, since the pipeline was opened.
    const auto present = ranks_.find(rank);
    if (problems_.contains(rank) || present == ranks_.end() || present->second.line != line) lost = Incomplete();
  }
  if (!lost.ok()) conversation->OnLost(lost);
  return conversation;
}

bool LeadingGroup::complete() const {
  absl::MutexLock lock(&mu_);
  return complete_;
}

absl::StatusOr<std::unique_ptr<PipelineRanks>> LeadingGroup::Open(const std::string& name, const Plan& plan) {
  Ranks::Parts parts = {.group = this, .name = name, .plan = plan};
  absl::MutexLock lock(&mu_);
  parts.generation = group_.generation;
  parts.edges = member_.carriers().Of(group_.generation);
  if (!complete_ || parts.edges == nullptr) return Incomplete();
  parts.number = NextNumber();
  for (const StagePlan& stage : plan.stages) {
    if (stage.rank == Rank(0)) continue;
    const auto member = ranks_.find(stage.rank);
    if (member == ranks_.end()) return NoSuchDevice(stage.device, {});
    parts.lines[stage.rank] = member->second.line;
  }
  return std::make_unique<Ranks>(std::move(parts));
}

// Unlike those of a leader before this one.
uint64_t LeadingGroup::NextNumber() { return (uint64_t{group_.epoch.value()} << 32) | ++pipelines_; }

// --- Links.

std::vector<Link> LeadingGroup::Links() {
  uint32_t generation;
  std::shared_ptr<PeerEdges> edges;
  std::map<Rank, std::shared_ptr<MemberLine>> lines;
  {
    absl::MutexLock lock(&mu_);
    generation = group_.generation;
    edges = member_.carriers().Of(generation);
    if (!complete_ || edges == nullptr) return links_.known();
    for (const auto& [rank, formed] : ranks_) lines[rank] = formed.line;
  }
  return links_.Of(generation, options_.membership.world_size,
                   [&](Rank rank, const std::vector<Rank>& peers, int64_t budget_nanos) {
                     if (rank != Rank(0)) return LinksOf(rank, lines.at(rank), generation, peers, budget_nanos);
                     std::vector<Link> own;
                     for (const Rank peer : peers) {
                       own.push_back(MeasureLink(edges.get(), rank, peer, options_.membership.clock, budget_nanos));
                     }
                     return own;
                   });
}

std::vector<Link> LeadingGroup::LinksOf(Rank rank, const std::shared_ptr<MemberLine>& line, uint32_t generation,
                                        const std::vector<Rank>& peers, int64_t budget_nanos) {
  uint64_t number;
  {
    absl::MutexLock lock(&mu_);
    number = NextNumber();
  }
  OutgoingCommand command;
  peer::v1::MeasureLinks& message = *command.message().mutable_measure_links();
  message.set_generation(generation);
  for (const Rank peer : peers) message.add_peers(peer.value());
  message.set_budget_nanos(budget_nanos);
  struct Told {
    absl::Mutex mu;
    std::optional<absl::StatusOr<std::vector<Link>>> links ABSL_GUARDED_BY(mu);
  };
  const auto told = std::make_shared<Told>();
  const auto conversation = Converse(rank, /*name=*/"", number, generation, line, nullptr);
  conversation->Ask(std::move(command), [told, rank](const absl::StatusOr<RankConversation::Arrived*>& arrived) {
    absl::MutexLock lock(&told->mu);
    told->links = arrived.ok() ? FromProto(rank, (*arrived)->report.links())
                               : absl::StatusOr<std::vector<Link>>(arrived.status());
  });
  const int64_t patience_nanos = kTimeToAskNanos + budget_nanos * static_cast<int64_t>(peers.size());
  Clock* const clock = options_.membership.clock;
  std::vector<Link> links;
  {
    absl::MutexLock lock(&told->mu);
    const auto has_told = [&told]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return told->links.has_value(); };
    if (clock->AwaitUntil(&told->mu, absl::Condition(&has_told), clock->NowNanos() + patience_nanos) &&
        told->links->ok()) {
      links = **told->links;
    }
  }
  conversation->Close();
  return links;
}

// --- What operators see.

void LeadingGroup::JoinTraces(const std::string& pipeline, TraceCapture own, TraceJoining::Done done) {
  const GroupView view = membership_.view();
  std::map<Rank, std::shared_ptr<RankConversation>> conversations;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [key, conversation] : conversations_) {
      auto held = conversation.name == pipeline ? conversation.with.lock() : nullptr;
      if (held != nullptr) conversations[key.first] = std::move(held);  // the latest number stays
    }
  }
  std::map<Rank, RankClock> clocks;
  for (const LaneCapture& lane : own.lanes) {
    const Rank rank = lane.description.rank;
    if (rank == Rank(0)) continue;
    const auto seen = view.ranks.find(rank);
    const ClockOffset offset = seen == view.ranks.end() ? ClockOffset() : seen->second.clock.value_or(ClockOffset());
    clocks[rank] = {.rank = rank.value(), .ahead_nanos = offset.nanos, .uncertainty_nanos = offset.uncertainty_nanos};
  }
  if (clocks.empty()) return done(std::move(own));
  const auto joining = std::make_shared<TraceJoining>(std::move(own), clocks, std::move(done));
  // A rank may live and be busy.
  timers_->Add(options_.membership.clock->NowNanos() + kTracePatienceNanos, [joining, jobs = joins_] {
    jobs->Post([joining] {
      joining->GiveUp(Error(absl::StatusCode::kDeadlineExceeded, "RANK_LOST", "it has not answered in time"));
    });
  });
  for (const auto& [rank, clock] : clocks) {
    const auto conversation = conversations.find(rank);
    const auto seen = view.ranks.find(rank);
    if (conversation == conversations.end() || seen == view.ranks.end() || !seen->second.clock.has_value()) {
      joining->Give(rank,
                    Error(absl::StatusCode::kUnavailable, "RANK_LOST", "it has no stages, or its clock is not known"));
      continue;
    }
    OutgoingCommand command;
    const auto [begin, end] = joining->SpanOf(rank);
    command.message().mutable_read_trace()->set_begin_nanos(begin);
    command.message().mutable_read_trace()->set_end_nanos(end);
    conversation->second->Ask(std::move(command), [joining, jobs = joins_, rank = rank](
                                                      const absl::StatusOr<RankConversation::Arrived*>& arrived) {
      Guarded("a rank's trace", [&] { jobs->Post(ToGive(joining, rank, arrived)); }).IgnoreError();
    });
  }
}

GroupFigures LeadingGroup::figures() const {
  GroupFigures figures = FiguresOf(member_.carriers());
  figures.expected = options_.membership.world_size;
  figures.refused = membership_.refused();
  figures.reformings = membership_.view().reformings;
  absl::MutexLock lock(&mu_);
  figures.epoch = options_.membership.epoch.value();
  // Before the first forming only this one takes part.
  figures.present = ranks_.empty() ? 1 : static_cast<int>(ranks_.size() - problems_.size());
  return figures;
}

GroupView LeadingGroup::view() const {
  GroupView view = membership_.view();
  view.ranks[Rank(0)].received = member_.carriers().received().from;
  return view;
}

}  // namespace penstock
