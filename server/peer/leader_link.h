#pragma once

// The way of a rank to its leader.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/base/clock.h"
#include "engine/base/ids.h"
#include "engine/base/timer_queue.h"
#include "grpcpp/security/credentials.h"
#include "penstock/peer/v1/group.pb.h"
#include "server/peer/group.h"
#include "server/peer/message_part.h"

namespace penstock {

// What a rank does as its leader says. Nothing may block; the answers may be given at once or later, from any thread.
class RankHandler {
 public:
  virtual ~RankHandler() = default;
  // What was is over: open a carrier for this generation; then LeaderLink::Prepared(), or Failed().
  virtual void OnPrepare(const GroupIdentity& group) = 0;
  // Connect it to the others'; then LeaderLink::Formed(), or Failed().
  virtual void OnForm(const Group& group) = 0;
  // The generation is over, because of that rank.
  virtual void OnDissolve(const GroupIdentity& group, Rank cause, const absl::Status& why) = 0;
  // The leader finishes its work and ends, or goes on.
  virtual void OnDraining(bool draining) = 0;
  // A piece of a message of whoever uses the group; an error leaves the leader.
  virtual absl::Status OnTold(MessagePart part) = 0;
  // What has come from others, in the life of this process.
  virtual std::map<Rank, LinkFigures> Received() const = 0;
  // The leader is not there any more, and the generation is over.
  virtual void OnLeaderLost(const absl::Status& why) = 0;
};

// Joins the leader's group, again and again, and does what the leader says.
//
// Model:     One stream at a time, each on a connection of its own. Whenever it ends, or the leader is silent for the
//            timeout, another one is opened after a while, which doubles from first_retry to max_retry until the leader
//            welcomes the rank. A leader of an earlier epoch than one that was followed is left. Where there is no
//            memory for a stream, it counts as one that has ended.
// Owns:      the stream. Handler, clock and timers outlive it.
// Threads:   Any method from any thread; the handler is called on gRPC's, one call at a time, without a lock.
// Lifecycle: Start(); Close() once, from no call of the handler and no timer: nothing is called afterwards.
// Fails:     status() has what the last stream ended with: the leader's refusal; UNAVAILABLE / RANK_LOST with rank 0
//            where it can't be reached, also by name, is silent, or something else listens there; FAILED_PRECONDITION /
//            LEADER_STALE; INVALID_ARGUMENT / RANK_MESSAGE for a message that makes no sense. It is logged when it changes.
class LeaderLink {
 public:
  struct Options {
    RankDescription self;
    std::string leader;                                                      // HOST:PORT
    std::function<std::shared_ptr<grpc::ChannelCredentials>()> credentials;  // for each connection; does not block
    absl::Duration peer_timeout = absl::Seconds(5);                          // until the leader has told its own
    absl::Duration first_retry = absl::Milliseconds(100);
    absl::Duration max_retry = absl::Seconds(2);
    Clock* clock = RealClock();  // usually only tests set this
  };

  LeaderLink(Options options, TimerQueue* timers, RankHandler* handler);
  ~LeaderLink() { Close(); }

  void Start() { Open(); }

  // Dropped where the leader has gone on to another generation, or is not there.
  void Prepared(const GroupIdentity& group, const std::string& carrier_address);
  void Formed(const GroupIdentity& group);
  void Failed(const GroupIdentity& group, const absl::Status& why);

  // A message of whoever uses the group, whole.
  void Tell(std::vector<MessagePart> parts) ABSL_LOCKS_EXCLUDED(mu_);

  // OK while the leader has this rank as a member.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mu_);
  void Close() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Stream;

  void Open() ABSL_LOCKS_EXCLUDED(mu_);
  void TryToOpen() ABSL_LOCKS_EXCLUDED(mu_);
  std::shared_ptr<Stream> Joined() const ABSL_LOCKS_EXCLUDED(mu_);  // null while the leader is not there
  void Send(const peer::v1::RankMessage& message) ABSL_LOCKS_EXCLUDED(mu_);
  // What the leader says; an error leaves it.
  absl::Status OnMessage(const peer::v1::LeaderMessage& message) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status OnWelcome(const peer::v1::Welcome& welcome) ABSL_LOCKS_EXCLUDED(mu_);
  void OnPing(const peer::v1::Ping& ping) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status OnCommand(const peer::v1::LeaderMessage& message) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<GroupIdentity> Checked(const peer::v1::GroupIdentity& group) const ABSL_LOCKS_EXCLUDED(mu_);
  void OnEnded(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  void CheckSilence() ABSL_LOCKS_EXCLUDED(mu_);
  void WatchSilence() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  TimerQueue* const timers_;
  RankHandler* const handler_;

  mutable absl::Mutex mu_;
  std::shared_ptr<Stream> stream_ ABSL_GUARDED_BY(mu_);  // the present one, or the last
  bool ended_ ABSL_GUARDED_BY(mu_) = true;               // it has
  bool joined_ ABSL_GUARDED_BY(mu_) = false;
  Epoch epoch_ ABSL_GUARDED_BY(mu_);  // of the leader that was followed last
  absl::Duration peer_timeout_ ABSL_GUARDED_BY(mu_);
  int64_t heard_nanos_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Duration retry_ ABSL_GUARDED_BY(mu_);
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  TimerQueue::Alarm silence_;
  TimerQueue::Alarm next_stream_;
};

}  // namespace penstock
