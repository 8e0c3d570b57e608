#include "server/peer/membership.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

constexpr int kPingsPerTimeout = 5;

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
  std::string& logged = refusals_[in_range ? rank : Rank(-1)];
  if (logged != why.message()) {
    logged = std::string(why.message());
    LogWarning("a rank was refused", {{"rank", ToString(rank)}, {"problem", logged}});
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
      LogInfo("the group is complete", {{"ranks", absl::StrCat(members_.size())},
                                        {"epoch", ToString(group_.identity.epoch)},
                                        {"generation", absl::StrCat(group_.identity.generation)}});
      std::map<Rank, RankDescription> ranks;
      for (const auto& [rank, other] : members_) ranks[rank] = other.rank;
      posted_.push_back([this, formed = group_, ranks = std::move(ranks)] { listener_->OnFormed(formed, ranks); });
    }
  }
  Deliver();
}

void Membership::EndGeneration(Rank cause, const absl::Status& why) {
  if (phase_ == Phase::kGathering) return;
  phase_ = Phase::kGathering;
  for (const auto& [rank, member] : members_) {
    posted_.push_back([line = member.line, group = group_.identity, cause, why] { line->Dissolve(group, cause, why); });
  }
}

void Membership::Failed(MemberId id, const GroupIdentity& group, const absl::Status& why) {
  {
    absl::MutexLock lock(&mu_);
    const Member* member = MemberIn(phase_, id, group);
    if (member == nullptr || phase_ == Phase::kGathering) return;
    const Rank rank = member->rank.rank;
    LogWarning("a rank can't go on with the group",
               {{"rank", ToString(rank)}, {"problem", std::string(why.message())}});
    pause_end_nanos_ = options_.clock->NowNanos() + absl::ToInt64Nanoseconds(kPause);
    EndGeneration(rank, why);
    posted_.push_back([this, rank, why] { listener_->OnFailed(rank, why); });
  }
  Deliver();
}

void Membership::Lose(Rank rank, const absl::Status& why) {
  LogWarning("a rank is lost", {{"rank", ToString(rank)}, {"problem", std::string(why.message())}});
  posted_.push_back([line = std::move(members_.at(rank).line), why] { line->End(why); });
  members_.erase(rank);
  EndGeneration(rank, why);
  posted_.push_back([this, rank, why] { listener_->OnLost(rank, why); });
}

void Membership::Leave(MemberId id, const absl::Status& why) {
  {
    absl::MutexLock lock(&mu_);
    const Member* member = MemberOf(id);
    if (member == nullptr) return;
    const Rank rank = member->rank.rank;
    Lose(rank, RankLost(rank, absl::StrCat("has left: ", why.message())));
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
      if (now - member.heard_nanos >= timeout) silent.push_back(rank);
    }
    for (const Rank rank : silent) {
      Lose(rank, RankLost(rank, absl::StrCat("was silent for ", absl::FormatDuration(options_.peer_timeout))));
    }
    // A pause may begin meanwhile, or a member join.
    next = now + std::min(interval, absl::ToInt64Nanoseconds(kPause));
    for (auto& [rank, member] : members_) {
      if (now - member.pinged_nanos >= interval) {
        member.pinged_nanos = now;
        posted_.push_back([line = member.line] { line->Ping(); });
      }
      next = std::min({next, member.heard_nanos + timeout, member.pinged_nanos + interval});
    }
    BeginGeneration();
    if (pause_end_nanos_ > now) next = std::min(next, pause_end_nanos_);
  }
  Deliver();
  return next;
}

void Membership::Deliver() {
  std::function<void()> next;
  absl::MutexLock lock(&mu_);
  if (delivering_) return;
  delivering_ = true;
  while (!posted_.empty()) {
    next = std::move(posted_.front());
    posted_.pop_front();
    mu_.Unlock();
    Guarded("a message to a rank", next).IgnoreError();
    next = nullptr;
    mu_.Lock();
  }
  delivering_ = false;
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

int64_t Membership::refused() const {
  absl::MutexLock lock(&mu_);
  return refused_;
}

}  // namespace penstock
