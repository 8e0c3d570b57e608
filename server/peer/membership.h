#pragma once

// Which ranks have joined the leader, and the generations of the group that they form.

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/base/clock.h"
#include "engine/base/ids.h"
#include "server/peer/group.h"
#include "server/peer/group_view.h"
#include "server/peer/message_part.h"

namespace penstock {

// One stay of a rank in the group: who joins again gets another one.
using MemberId = StrongId<struct MemberTag, uint64_t>;

// The way down to one member. Nothing may block; what comes after End() is dropped.
class MemberLine {
 public:
  virtual ~MemberLine() = default;
  virtual void Welcome(Epoch epoch, absl::Duration peer_timeout) = 0;
  virtual void Ping(int64_t leader_nanos) = 0;
  virtual void Prepare(const GroupIdentity& group) = 0;
  virtual void Form(const Group& group) = 0;
  // `cause`: whose edges of every generation are over; kNobody: the generation alone could not be made.
  virtual void Dissolve(const GroupIdentity& group, Rank cause, const absl::Status& why) = 0;
  virtual void Draining(bool draining) = 0;
  // A message of whoever uses the group, whole.
  virtual void Tell(std::vector<MessagePart> parts) = 0;
  virtual void End(const absl::Status& why) = 0;
};

// A member of a group that is complete.
struct FormedRank {
  RankDescription description;
  std::shared_ptr<MemberLine> line;
};

// Who wants to know of the group. Nothing may block.
class MembershipListener {
 public:
  virtual ~MembershipListener() = default;
  // The group is complete.
  virtual void OnFormed(const Group& group, const std::map<Rank, FormedRank>& ranks) = 0;
  // A member is no more, and with it the generation, if there was one.
  virtual void OnLost(Rank rank, const absl::Status& why) = 0;
  // A member can't go on with the generation, which is over, or with an earlier one, whose edges pipelines may use; the
  // member stays. Where its edge to a peer has failed, the error names that one (RankNamedIn).
  virtual void OnFailed(Rank rank, const GroupIdentity& group, const absl::Status& why) = 0;
  // A piece of what a member says to whoever uses the group, in order. With an error the member is given up.
  virtual absl::Status OnTold(Rank rank, MessagePart part) = 0;
};

// Keeps the members of a leader's group and leads them from one generation to the next.
//
// Model:     Gathering, until every rank of the world has joined, the leader's own too. Then preparing: a new
//            generation with a new key, in which each member opens a carrier; forming: each connects its own to the
//            others'; complete, when all have said so. Who leaves, is silent for the timeout or fails ends the
//            generation for all: they are told, stay, and gather again. After a failure the next generation waits for
//            kPause. Who lives, but has not done its part of a forming for kFormingTimeout, is lost; but for
//            the leader's own member, which stays whatever it does.
// Owns:      shares of the lines. Listener and Clock outlive it.
// Threads:   Any method from any thread. Lines and listener are called without the lock, in order, one at a time, by
//            whichever thread is here; they may call back, Close() excepted.
// Lifecycle: Look() whenever its last answer says; Close() once: it ends all lines, and nothing is called afterwards.
// Fails:     Join(), telling reason and values: FAILED_PRECONDITION / PROTOCOL_MISMATCH, BUILD_MISMATCH, LEADER_STALE
//            where the rank has followed a later leader; INVALID_ARGUMENT / WORLD_SIZE_MISMATCH, CARRIER_MISMATCH,
//            RANK_OUT_OF_RANGE; ALREADY_EXISTS / RANK_TAKEN while another process has the rank; UNAVAILABLE / DRAINING
//            after Close(). A process that joins again takes its own place.
class Membership {
 public:
  static constexpr absl::Duration kPause = absl::Seconds(1);
  static constexpr absl::Duration kFormingTimeout = absl::Seconds(60);

  struct Options {
    Epoch epoch;  // durable: higher at each start of the leader
    int world_size = 1;
    std::string build = {};         // that all ranks must have
    std::string carrier = {};       // the same
    std::string instructions = {};  // of this processor; ranks with others are logged
    absl::Duration peer_timeout = absl::Seconds(5);
    Clock* clock = RealClock();                                 // usually only tests set this
    std::function<std::array<char, 16>()> new_key = RandomKey;  // usually only tests set this
  };

  Membership(Options options, MembershipListener* listener);

  absl::StatusOr<MemberId> Join(const RankDescription& rank, std::shared_ptr<MemberLine> line) ABSL_LOCKS_EXCLUDED(mu_);
  // Of somebody who is no rank at all; returns the error.
  absl::Status RefuseStranger(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // What members say. From one that is no more it is dropped, and so is what belongs to another generation, but for
  // Failed(): the present one goes on, and the listener is told.
  void Heard(MemberId id) ABSL_LOCKS_EXCLUDED(mu_);
  // An error for what can't be true: the member must leave then.
  absl::Status Ponged(MemberId id, const RankPong& pong) ABSL_LOCKS_EXCLUDED(mu_);
  void Prepared(MemberId id, const GroupIdentity& group, std::string carrier_address) ABSL_LOCKS_EXCLUDED(mu_);
  void Formed(MemberId id, const GroupIdentity& group) ABSL_LOCKS_EXCLUDED(mu_);
  void Failed(MemberId id, const GroupIdentity& group, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // Blocks until the listener has it, unless that is who calls: a member that tells much must not be read faster.
  void Told(MemberId id, MessagePart part) ABSL_LOCKS_EXCLUDED(mu_);
  void Leave(MemberId id, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  // The leader finishes its work and ends, or goes on: who is told to stop now lends its devices until then.
  void Drain(bool draining) ABSL_LOCKS_EXCLUDED(mu_);

  // Pings who is due and loses who is silent; returns when to look again, at the latest, in nanoseconds of the Clock.
  int64_t Look() ABSL_LOCKS_EXCLUDED(mu_);
  void Close() ABSL_LOCKS_EXCLUDED(mu_);

  bool IsComplete() const ABSL_LOCKS_EXCLUDED(mu_);
  GroupView view() const ABSL_LOCKS_EXCLUDED(mu_);
  // How often a rank or a stranger was.
  int64_t refused() const ABSL_LOCKS_EXCLUDED(mu_);
  absl::Duration peer_timeout() const { return options_.peer_timeout; }

 private:
  enum class Phase { kGathering, kPreparing, kForming, kComplete };
  struct Member {
    MemberId id;
    RankDescription rank;
    std::shared_ptr<MemberLine> line;
    int64_t heard_nanos = 0;
    int64_t pinged_nanos = 0;
    std::deque<int64_t> pings = {};  // that are not answered, in nanoseconds
    PeerClock clock = {};
    bool ready = false;    // has done what the phase asks for
    bool telling = false;  // it speaks, and is not read on until it was heard
  };
  using Calls = std::list<std::function<void()>>;

  absl::Status Check(const RankDescription& rank) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Refuse(const absl::Status& why, Rank rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The member, if the group is its generation at present and in that phase.
  Member* MemberIn(Phase phase, MemberId id, const GroupIdentity& group) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Member* MemberOf(MemberId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The phase is done when all members are ready; then none is.
  bool AllReady() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void BeginGeneration() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndGeneration(Rank cause, const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // To all members but one that goes.
  Calls Dissolve(Rank cause, const absl::Status& why, Rank gone = kNobody) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  void Lose(Rank rank, const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Lose(MemberId id, const std::string& how) ABSL_LOCKS_EXCLUDED(mu_);
  void GiveUp(MemberId id, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // Runs what was posted, unless another thread does.
  void Deliver() ABSL_LOCKS_EXCLUDED(mu_);
  // Until the `until`th call, and then until none is left or a thread waits to go on.
  void DeliverSome(uint64_t until) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  uint64_t Posted() const ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return delivered_ + (delivering_ ? 1 : 0) + posted_.size();
  }

  const Options options_;
  MembershipListener* const listener_;

  mutable absl::Mutex mu_;
  Phase phase_ ABSL_GUARDED_BY(mu_) = Phase::kGathering;
  Group group_ ABSL_GUARDED_BY(mu_);              // of the present generation, or the last one
  int64_t phase_nanos_ ABSL_GUARDED_BY(mu_) = 0;  // when the phase began
  std::map<Rank, Member> members_ ABSL_GUARDED_BY(mu_);
  // Of the whole world. Problem and times of members are up to date; their clocks are not here.
  std::map<Rank, RankView> seen_ ABSL_GUARDED_BY(mu_);
  int64_t formings_ ABSL_GUARDED_BY(mu_) = 0;  // that were complete
  uint64_t joins_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t pause_end_nanos_ ABSL_GUARDED_BY(mu_) = 0;  // no generation begins before
  int64_t refused_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<Rank, std::string> refusals_ ABSL_GUARDED_BY(mu_);  // logged last, by rank; -1: of none of the world
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  Calls posted_ ABSL_GUARDED_BY(mu_);             // of lines and listener
  bool delivering_ ABSL_GUARDED_BY(mu_) = false;  // one of them, which is not in `posted_` any more
  uint64_t delivered_ ABSL_GUARDED_BY(mu_) = 0;
  int waiting_ ABSL_GUARDED_BY(mu_) = 0;  // threads, until theirs is
};

}  // namespace penstock
