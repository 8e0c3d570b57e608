#include "server/peer/membership.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/log.h"
#include "engine/base/rank_message.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

constexpr int kPingsPerTimeout = 5;
constexpr Rank kLeader(0);                        // this process: it does not lose itself, however long it stood still
constexpr int64_t kMostNanos = int64_t{1} << 60;  // 36 years: sums of some do not overflow
thread_local const Membership* delivering_here = nullptr;  // whose calls this thread runs
constexpr size_t kPingsKept = 1000;                        // of a member that says much, but answers late

// A refusal that names a value of the rank, and that of the leader.
absl::Status Mismatch(absl::StatusCode code, const char* reason, const std::string& what, const std::string& got,
                      const std::string& wanted) {
  return Error(code, reason, absl::StrCat(what, ": the leader has ", wanted, ", got ", got))
      .With("field", what)
      .With("value", got)
      .With("leader", wanted);
}

absl::Status RankLost(Rank rank, const std::string& how) {
  return Error(absl::StatusCode::kUnavailable, "RANK_LOST", absl::StrCat("rank ", rank.value(), " ", how))
      .With("rank", ToString(rank));
}

}  // namespace

Membership::Membership(Options options, MembershipListener* listener)
    : options_(std::move(options)), listener_(listener) {
  const absl::Time now = options_.clock->WallNow();
  absl::MutexLock lock(&mu_);
  for (int rank = 0; rank < options_.world_size; ++rank) {
    RankView& one = seen_[Rank(rank)];
    one.description.rank = Rank(rank);
    one.since = now;
    one.problem = RankLost(Rank(rank), "has not joined yet");
  }
}

absl::Status Membership::Check(const RankDescription& rank) const {
  if (closed_) return Error(absl::StatusCode::kUnavailable, "DRAINING", "the leader is stopping");
  // First: with another protocol the other fields may mean something else.
  if (rank.protocol != kPeerProtocol) {
    return Mismatch(absl::StatusCode::kFailedPrecondition, "PROTOCOL_MISMATCH", "protocol", absl::StrCat(rank.protocol),
                    absl::StrCat(kPeerProtocol));
  }
  if (rank.build != options_.build) {
    return Mismatch(absl::StatusCode::kFailedPrecondition, "BUILD_MISMATCH", "build", rank.build, options_.build);
  }
  if (rank.world_size != options_.world_size) {
    return Mismatch(absl::StatusCode::kInvalidArgument, "WORLD_SIZE_MISMATCH", "world size",
                    absl::StrCat(rank.world_size), absl::StrCat(options_.world_size));
  }
  // The address of the one would be nonsense to the other.
  if (rank.carrier != options_.carrier) {
    return Mismatch(absl::StatusCode::kInvalidArgument, "CARRIER_MISMATCH", "carrier", rank.carrier, options_.carrier);
  }
  if (rank.rank.value() < 0 || rank.rank.value() >= options_.world_size) {
    return Error(absl::StatusCode::kInvalidArgument, "RANK_OUT_OF_RANGE",
                 absl::StrCat("rank: must lie in [0, ", options_.world_size - 1, "], got ", rank.rank.value()))
        .With("field", "rank")
        .With("value", ToString(rank.rank));
  }
  if (rank.followed > options_.epoch) {
    return Mismatch(absl::StatusCode::kFailedPrecondition, "LEADER_STALE", "followed epoch", ToString(rank.followed),
                    ToString(options_.epoch));
  }
  const auto taken = members_.find(rank.rank);
  if (taken != members_.end() && taken->second.rank.instance != rank.instance) {
    return Error(absl::StatusCode::kAlreadyExists, "RANK_TAKEN",
                 absl::StrCat("rank ", rank.rank.value(), " is taken by a process that is alive"))
        .With("rank", ToString(rank.rank));
  }
  return absl::OkStatus();
}

absl::Status Membership::Refuse(const absl::Status& why, Rank rank) {
  ++refused_;
  // A rank that tries again and again says the same each time.
  const bool in_range = rank.value() >= 0 && rank.value() < options_.world_size;
  // Operators look for why it is missing.
  if (in_range && !seen_.at(rank).member) seen_.at(rank).problem = why;
  std::string& logged = refusals_[in_range ? rank : Rank(-1)];
  if (logged != why.message()) {
    logged = std::string(why.message());
    LogWarning("a rank was refused", {{"rank", ToString(rank)}, {"reason", ReasonOf(why)}, {"problem", logged}});
  }
  return why;
}

absl::Status Membership::RefuseStranger(const absl::Status& why) {
  absl::MutexLock lock(&mu_);
  return Refuse(why, Rank(-1));
}

absl::StatusOr<MemberId> Membership::Join(const RankDescription& rank, std::shared_ptr<MemberLine> line) {
  MemberId id;
  {
    absl::MutexLock lock(&mu_);
    if (const absl::Status checked = Check(rank); !checked.ok()) return Refuse(checked, rank.rank);
    if (members_.count(rank.rank) > 0) Lose(rank.rank, RankLost(rank.rank, "has joined again"));
    refusals_.erase(rank.rank);
    LogInfo("a rank has joined", {{"rank", ToString(rank.rank)}});
    if (rank.instructions != options_.instructions) {
      LogWarning("a rank computes with other instructions than the leader: results may differ by a rounding",
                 {{"rank", ToString(rank.rank)}, {"its", rank.instructions}, {"leader", options_.instructions}});
    }
    id = MemberId(++joins_);
    const int64_t now = options_.clock->NowNanos();
    posted_.push_back([line, options = &options_] { line->Welcome(options->epoch, options->peer_timeout); });
    if (draining_) posted_.push_back([line] { line->Draining(true); });
    seen_[rank.rank] = {.description = rank, .member = true, .since = options_.clock->WallNow()};
    members_[rank.rank] = {.id = id, .rank = rank, .line = std::move(line), .heard_nanos = now, .pinged_nanos = now};
    BeginGeneration();
  }
  Deliver();
  return id;
}

Membership::Member* Membership::MemberOf(MemberId id) {
  for (auto& [rank, member] : members_) {
    if (member.id == id) return &member;
  }
  return nullptr;
}

Membership::Member* Membership::MemberIn(Phase phase, MemberId id, const GroupIdentity& group) {
  return phase_ == phase && group == group_.identity ? MemberOf(id) : nullptr;
}

void Membership::Heard(MemberId id) {
  absl::MutexLock lock(&mu_);
  if (Member* member = MemberOf(id); member != nullptr) member->heard_nanos = options_.clock->NowNanos();
}

absl::Status Membership::Ponged(MemberId id, const RankPong& pong) {
  absl::MutexLock lock(&mu_);
  Member* const member = MemberOf(id);
  if (member == nullptr) return absl::OkStatus();
  const auto ping = std::find(member->pings.begin(), member->pings.end(), pong.leader_nanos);
  if (ping == member->pings.end()) {
    return BadRankMessage("pong.leader_nanos", "must be that of a ping that was not answered",
                          absl::StrCat(pong.leader_nanos));
  }
  if (pong.rank_nanos < 0 || pong.rank_nanos > kMostNanos) {
    return BadRankMessage("pong.rank_nanos", "must be the time of a monotonic clock", absl::StrCat(pong.rank_nanos));
  }
  std::map<Rank, LinkFigures>& received = seen_.at(member->rank.rank).received;
  for (const auto& [from, traffic] : pong.received) {
    if (!seen_.contains(from) || from == member->rank.rank) {
      return BadRankMessage("pong.received.from", "must be another rank of the world", ToString(from));
    }
    if (traffic.messages < 0 || traffic.bytes < 0) {
      return BadRankMessage("pong.received.bytes", "must not be negative", absl::StrCat(traffic.bytes));
    }
  }
  // Pongs may overtake each other.
  for (const auto& [from, traffic] : pong.received) {
    LinkFigures& link = received[from];
    link = {.messages = std::max(link.messages, traffic.messages), .bytes = std::max(link.bytes, traffic.bytes)};
  }
  member->pings.erase(ping);
  member->clock.Add(pong.leader_nanos, pong.rank_nanos, options_.clock->NowNanos());
  return absl::OkStatus();
}

bool Membership::AllReady() {
  if (!std::all_of(members_.begin(), members_.end(), [](const auto& entry) { return entry.second.ready; }))
    return false;
  for (auto& [rank, member] : members_) member.ready = false;
  return true;
}

void Membership::BeginGeneration() {
  if (phase_ != Phase::kGathering || members_.size() < static_cast<size_t>(options_.world_size)) return;
  if (options_.clock->NowNanos() < pause_end_nanos_) return;
  group_ = {
      .identity = {.key = options_.new_key(), .epoch = options_.epoch, .generation = group_.identity.generation + 1},
      .carrier_addresses = {}};
  phase_ = Phase::kPreparing;
  phase_nanos_ = options_.clock->NowNanos();
  for (auto& [rank, member] : members_) {
    member.ready = false;
    posted_.push_back([line = member.line, group = group_.identity] { line->Prepare(group); });
  }
}

void Membership::Prepared(MemberId id, const GroupIdentity& group, std::string carrier_address) {
  {
    absl::MutexLock lock(&mu_);
    Member* member = MemberIn(Phase::kPreparing, id, group);
    if (member == nullptr) return;
    member->ready = true;
    group_.carrier_addresses[member->rank.rank] = std::move(carrier_address);
    if (AllReady()) {
      phase_ = Phase::kForming;
      phase_nanos_ = options_.clock->NowNanos();
      for (const auto& [rank, other] : members_) {
        posted_.push_back([line = other.line, formed = group_] { line->Form(formed); });
      }
    }
  }
  Deliver();
}

void Membership::Formed(MemberId id, const GroupIdentity& group) {
  {
    absl::MutexLock lock(&mu_);
    Member* member = MemberIn(Phase::kForming, id, group);
    if (member == nullptr) return;
    member->ready = true;
    if (AllReady()) {
      phase_ = Phase::kComplete;
      ++formings_;
      LogInfo("the group is complete", {{"ranks", absl::StrCat(members_.size())},
                                        {"epoch", ToString(group_.identity.epoch)},
                                        {"generation", absl::StrCat(group_.identity.generation)}});
      std::map<Rank, FormedRank> ranks;
      for (const auto& [rank, other] : members_) ranks[rank] = {.description = other.rank, .line = other.line};
      posted_.push_back([this, formed = group_, ranks = std::move(ranks)] { listener_->OnFormed(formed, ranks); });
    }
  }
  Deliver();
}

// Members are told of every loss, for pipelines use edges of earlier generations.
void Membership::EndGeneration(Rank cause, const absl::Status& why) {
  posted_.splice(posted_.end(), Dissolve(cause, why));
  phase_ = Phase::kGathering;
}

Membership::Calls Membership::Dissolve(Rank cause, const absl::Status& why, Rank gone) const {
  Calls calls;
  for (const auto& [rank, member] : members_) {
    if (rank == gone) continue;
    calls.push_back([line = member.line, group = group_.identity, cause, why] { line->Dissolve(group, cause, why); });
  }
  return calls;
}

void Membership::Failed(MemberId id, const GroupIdentity& group, const absl::Status& why) {
  {
    absl::MutexLock lock(&mu_);
    const Member* member = MemberOf(id);
    // An earlier leader counted its own generations.
    if (member == nullptr || group.epoch != options_.epoch) return;
    const Rank rank = member->rank.rank;
    if (phase_ != Phase::kGathering && group == group_.identity) {
      LogWarning("a rank can't go on with the group",
                 {{"rank", ToString(rank)}, {"problem", std::string(why.message())}});
      pause_end_nanos_ = options_.clock->NowNanos() + absl::ToInt64Nanoseconds(kPause);
      EndGeneration(RankNamedIn(why).value_or(kNobody), why);
    }
    posted_.push_back([this, rank, group, why] { listener_->OnFailed(rank, group, why); });
  }
  Deliver();
}

void Membership::Told(MemberId id, MessagePart part) {
  absl::MutexLock lock(&mu_);
  Member* const member = MemberOf(id);
  if (member == nullptr) return;
  posted_.push_back([this, id, rank = member->rank.rank, part = std::move(part)]() mutable {
    const absl::Status heard = Guarded("what a rank tells", [&] { return listener_->OnTold(rank, std::move(part)); });
    if (!heard.ok()) GiveUp(id, heard);
  });
  const uint64_t own = Posted();
  if (delivering_here == this) return;
  member->telling = true;
  while (delivered_ < own) {
    if (!delivering_) {
      DeliverSome(own);
      continue;
    }
    const auto may_go_on = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !delivering_ || delivered_ >= own; };
    ++waiting_;
    mu_.Await(absl::Condition(&may_go_on));
    --waiting_;
  }
  if (!delivering_) DeliverSome(own);  // what was left to this thread
  if (Member* still = MemberOf(id); still != nullptr) {
    still->telling = false;
    still->heard_nanos = options_.clock->NowNanos();
  }
}

void Membership::Lose(Rank rank, const absl::Status& why) {
  LogWarning("a rank is lost", {{"rank", ToString(rank)}, {"problem", std::string(why.message())}});
  Calls calls = Dissolve(rank, why, /*gone=*/rank);
  calls.push_front([line = members_.at(rank).line, why] { line->End(why); });
  calls.push_back([this, rank, why] { listener_->OnLost(rank, why); });
  // From here on nothing takes memory: all of it is told, or it is lost at the next look.
  posted_.splice(posted_.end(), calls);
  members_.erase(rank);
  phase_ = Phase::kGathering;
  RankView& seen = seen_.at(rank);
  seen.member = false;
  seen.since = options_.clock->WallNow();
  seen.problem = why;
}

void Membership::Leave(MemberId id, const absl::Status& why) { Lose(id, absl::StrCat("has left: ", why.message())); }

// A stay that is over is nobody's: the rank may have joined again.
void Membership::GiveUp(MemberId id, const absl::Status& why) {
  Lose(id, absl::StrCat("was given up: ", why.message()));
}

void Membership::Lose(MemberId id, const std::string& how) {
  {
    absl::MutexLock lock(&mu_);
    const Member* member = MemberOf(id);
    if (member == nullptr) return;
    const Rank rank = member->rank.rank;
    Lose(rank, RankLost(rank, how));
  }
  Deliver();
}

void Membership::Drain(bool draining) {
  {
    absl::MutexLock lock(&mu_);
    draining_ = draining;
    for (const auto& [rank, member] : members_) {
      posted_.push_back([line = member.line, draining] { line->Draining(draining); });
    }
  }
  Deliver();
}

int64_t Membership::Look() {
  const int64_t timeout = absl::ToInt64Nanoseconds(options_.peer_timeout);
  const int64_t interval = timeout / kPingsPerTimeout;
  int64_t next = 0;
  {
    absl::MutexLock lock(&mu_);
    const int64_t now = options_.clock->NowNanos();
    std::vector<Rank> silent;
    for (const auto& [rank, member] : members_) {
      if (rank != kLeader && !member.telling && now - member.heard_nanos >= timeout) silent.push_back(rank);
    }
    for (const Rank rank : silent) {
      Lose(rank, RankLost(rank, absl::StrCat("was silent for ", absl::FormatDuration(options_.peer_timeout))));
    }
    if ((phase_ == Phase::kPreparing || phase_ == Phase::kForming) &&
        now - phase_nanos_ >= absl::ToInt64Nanoseconds(kFormingTimeout)) {
      const std::string late =
          absl::StrCat("has not done its part of the forming for ", absl::FormatDuration(kFormingTimeout));
      std::vector<Rank> holding;
      for (const auto& [rank, member] : members_) {
        if (!member.ready) holding.push_back(rank);
      }
      for (const Rank rank : holding) {
        if (rank != kLeader) {
          Lose(rank, RankLost(rank, late));
          continue;
        }
        pause_end_nanos_ = now + absl::ToInt64Nanoseconds(kPause);
        EndGeneration(kNobody, RankLost(rank, late));
      }
    }
    // A pause may begin meanwhile, or a member join.
    next = now + std::min(interval, absl::ToInt64Nanoseconds(kPause));
    for (auto& [rank, member] : members_) {
      if (now - member.pinged_nanos >= interval) {
        member.pinged_nanos = now;
        member.pings.push_back(now);
        if (member.pings.size() > kPingsKept) member.pings.pop_front();
        posted_.push_back([line = member.line, now] { line->Ping(now); });
      }
      if (rank != kLeader && !member.telling) next = std::min(next, member.heard_nanos + timeout);
      next = std::min(next, member.pinged_nanos + interval);
    }
    BeginGeneration();
    if (pause_end_nanos_ > now) next = std::min(next, pause_end_nanos_);
  }
  Deliver();
  return next;
}

void Membership::Deliver() {
  absl::MutexLock lock(&mu_);
  if (!delivering_) DeliverSome(Posted());
}

void Membership::DeliverSome(uint64_t until) {
  std::function<void()> next;
  while (!posted_.empty() && (delivered_ < until || waiting_ == 0)) {
    next = std::move(posted_.front());
    posted_.pop_front();
    delivering_ = true;
    mu_.Unlock();
    delivering_here = this;
    Guarded("a message to a rank", next).IgnoreError();
    next = nullptr;
    delivering_here = nullptr;
    mu_.Lock();
    ++delivered_;
    delivering_ = false;
  }
}

void Membership::Close() {
  {
    absl::MutexLock lock(&mu_);
    closed_ = true;
    for (const auto& [rank, member] : members_) {
      posted_.push_back([line = member.line] {
        line->End(Error(absl::StatusCode::kUnavailable, "DRAINING", "the leader is stopping"));
      });
    }
    members_.clear();
  }
  Deliver();
  const auto idle = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !delivering_ && posted_.empty(); };
  absl::MutexLock lock(&mu_, absl::Condition(&idle));
}

bool Membership::IsComplete() const {
  absl::MutexLock lock(&mu_);
  return phase_ == Phase::kComplete;
}

GroupView Membership::view() const {
  absl::MutexLock lock(&mu_);
  GroupView view{.complete = phase_ == Phase::kComplete,
                 .draining = draining_,
                 .epoch = options_.epoch,
                 .generation = group_.identity.generation,
                 .reformings = std::max<int64_t>(0, formings_ - 1),
                 .ranks = seen_};
  for (const auto& [rank, member] : members_) view.ranks[rank].clock = member.clock.Offset();
  return view;
}

int64_t Membership::refused() const {
  absl::MutexLock lock(&mu_);
  return refused_;
}

}  // namespace penstock
