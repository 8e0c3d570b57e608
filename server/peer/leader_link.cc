#include "server/peer/leader_link.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/log.h"
#include "engine/base/rank_message.h"
#include "engine/base/status_macros.h"
#include "grpcpp/create_channel.h"
#include "penstock/peer/v1/group_service.grpc.pb.h"
#include "server/peer/group_convert.h"
#include "server/peer/write_queue.h"
#include "server/rpc/convert/status_to_grpc.h"

namespace penstock {
namespace {

constexpr absl::Duration kMaximumPeerTimeout = absl::Hours(24 * 365);  // as of a flag

absl::Status LeaderLost(const std::string& how) {
  return Error(absl::StatusCode::kUnavailable, "RANK_LOST", "the leader " + how).With("rank", "0");
}

// How the leader, or the way to it, has ended the stream.
absl::Status FromGrpc(const grpc::Status& status) {
  const std::string reason = ReasonIn(status);
  if (status.ok()) return LeaderLost("has ended the stream");
  if (!reason.empty()) {
    return Error(static_cast<absl::StatusCode>(status.error_code()), reason, status.error_message());
  }
  const std::string text = status.error_message();
  // A call without a good credential ends before it can have an ErrorInfo: its message begins with the reason.
  const size_t colon = text.find(": ");
  if (status.error_code() == grpc::StatusCode::UNAUTHENTICATED && text.starts_with("CREDENTIAL_") &&
      colon != std::string::npos) {
    return Error(absl::StatusCode::kUnauthenticated, text.substr(0, colon), text.substr(colon + 2));
  }
  // gRPC itself speaks, or a server that is none of ours.
  std::string how = "can't be reached: ";
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) how += "what listens there leads no ranks: ";
  if (status.error_code() != grpc::StatusCode::UNAVAILABLE) {
    how += absl::StatusCodeToString(static_cast<absl::StatusCode>(status.error_code())) + " ";
  }
  return LeaderLost(how + text);
}

// A connection that no other attempt shares, straight to the leader.
std::shared_ptr<grpc::Channel> Connect(const std::string& leader,
                                       const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  return grpc::CreateCustomChannel(leader, credentials, arguments);
}

}  // namespace

// One Join.
//
// Owns:      its connection. That must not end on a thread of gRPC's, which would wait for itself: the link drops a
//            stream that has ended on another one.
class LeaderLink::Stream final : public grpc::ClientBidiReactor<peer::v1::RankMessage, peer::v1::LeaderMessage> {
 public:
  Stream(LeaderLink* link, const std::shared_ptr<grpc::Channel>& channel, peer::v1::RankMessage hello)
      : link_(link), stub_(peer::v1::GroupService::NewStub(channel)), first_(writes_.Push(std::move(hello))) {}

  void Begin() {
    stub_->async()->Join(&context_, this);
    AddHold();  // until the end of the writes
    StartRead(&read_);
    Do(first_);
    StartCall();
  }

  void Push(const peer::v1::RankMessage& message) { Do(writes_.Push(message)); }
  void PushUrgent(const peer::v1::RankMessage& message) { Do(writes_.PushUrgent(message)); }
  void PushAll(std::vector<peer::v1::RankMessage> messages) { Do(writes_.PushAll(std::move(messages))); }

  // Ends the stream; the first reason counts.
  void Leave(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      if (why_.ok()) why_ = why;
    }
    context_.TryCancel();
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return Do(writes_.Close());
    const absl::Status taken = Guarded("a message of the leader", [this] { return link_->OnMessage(read_); });
    if (!taken.ok()) Leave(taken);
    StartRead(&read_);
  }

  void OnWriteDone(bool ok) override { Do(writes_.Written(ok)); }

  void OnDone(const grpc::Status& status) override {
    absl::Status why;
    {
      absl::MutexLock lock(&mu_);
      why = why_;
    }
    if (why.ok()) {
      why = unknown_;
      Guarded("the end of a stream", [&] { why = FromGrpc(status); }).IgnoreError();
    }
    link_->OnEnded(why);  // from here on it may be gone
  }

  void Do(WriteQueue<peer::v1::RankMessage>::Step step) {
    if (step.write != nullptr) StartWrite(step.write);
    if (step.end) RemoveHold();
  }

  LeaderLink* const link_;
  const std::unique_ptr<peer::v1::GroupService::Stub> stub_;
  grpc::ClientContext context_;
  peer::v1::LeaderMessage read_;
  WriteQueue<peer::v1::RankMessage> writes_;
  const WriteQueue<peer::v1::RankMessage>::Step first_;
  const absl::Status unknown_ = LeaderLost("is lost");  // where there is no memory to say why

  absl::Mutex mu_;
  absl::Status why_ ABSL_GUARDED_BY(mu_);  // it was left; OK: it was not
};

LeaderLink::LeaderLink(Options options, TimerQueue* timers, RankHandler* handler)
    : options_(std::move(options)),
      timers_(timers),
      handler_(handler),
      epoch_(options_.self.followed),
      peer_timeout_(options_.peer_timeout),
      retry_(options_.first_retry),
      status_(LeaderLost("was not reached yet")),
      silence_(timers_, [this] { CheckSilence(); }),
      next_stream_(timers_, [this] { Open(); }) {}

void LeaderLink::Open() {
  const absl::Status opened = Guarded("the way to the leader", [this] { TryToOpen(); });
  if (!opened.ok()) OnEnded(opened);
}

// What it may lack is missed before gRPC knows of the stream.
void LeaderLink::TryToOpen() {
  RankDescription self = options_.self;
  {
    absl::MutexLock lock(&mu_);
    self.followed = epoch_;
  }
  peer::v1::RankMessage hello;
  *hello.mutable_hello() = ToProto(self);
  const auto stream =
      std::make_shared<Stream>(this, Connect(options_.leader, options_.credentials()), std::move(hello));
  std::shared_ptr<Stream> before;  // goes after the lock
  {
    absl::MutexLock lock(&mu_);
    if (closed_) return;
    before = std::exchange(stream_, stream);
    ended_ = false;
    heard_nanos_ = options_.clock->NowNanos();
    WatchSilence();
  }
  stream->Begin();
}

void LeaderLink::WatchSilence() { silence_.Set(heard_nanos_ + absl::ToInt64Nanoseconds(peer_timeout_)); }

void LeaderLink::CheckSilence() {
  absl::Duration timeout;
  std::shared_ptr<Stream> stream;
  {
    absl::MutexLock lock(&mu_);
    if (ended_ || closed_) return;
    timeout = peer_timeout_;
    const int64_t now = options_.clock->NowNanos();
    if (now < heard_nanos_ + absl::ToInt64Nanoseconds(timeout)) return WatchSilence();
    silence_.Set(now + absl::ToInt64Nanoseconds(options_.first_retry));  // it must end, though it can't be left now
    stream = stream_;
  }
  stream->Leave(LeaderLost("was silent for " + absl::FormatDuration(timeout)));
}

absl::Status LeaderLink::OnMessage(const peer::v1::LeaderMessage& message) {
  bool joined;
  {
    absl::MutexLock lock(&mu_);
    heard_nanos_ = options_.clock->NowNanos();
    joined = joined_;
  }
  if (joined == message.has_welcome()) {
    return BadRankMessage("message", joined ? "must be a command" : "must be a welcome",
                          joined ? "a second welcome" : "another one");
  }
  if (message.has_welcome()) return OnWelcome(message.welcome());
  if (!message.has_ping()) return OnCommand(message);
  OnPing(message.ping());
  return absl::OkStatus();
}

void LeaderLink::OnPing(const peer::v1::Ping& ping) {
  peer::v1::RankMessage message;
  *message.mutable_pong() = ToProto(RankPong{
      .leader_nanos = ping.leader_nanos(), .rank_nanos = options_.clock->NowNanos(), .received = handler_->Received()});
  if (const std::shared_ptr<Stream> stream = Joined(); stream != nullptr) stream->PushUrgent(message);
}

absl::Status LeaderLink::OnWelcome(const peer::v1::Welcome& welcome) {
  absl::MutexLock lock(&mu_);
  if (Epoch(welcome.epoch()) < epoch_) {
    return Error(absl::StatusCode::kFailedPrecondition, "LEADER_STALE",
                 absl::StrCat("the leader has the epoch ", welcome.epoch(), ", and one with ", epoch_.value(),
                              " was followed since"));
  }
  if (welcome.peer_timeout_micros() <= 0) {
    return BadRankMessage("welcome.peer_timeout_micros", "must be above 0",
                          absl::StrCat(welcome.peer_timeout_micros()));
  }
  if (absl::Microseconds(welcome.peer_timeout_micros()) > kMaximumPeerTimeout) {
    return BadRankMessage("welcome.peer_timeout_micros", "must be at most a year",
                          absl::StrCat(welcome.peer_timeout_micros()));
  }
  LogInfo("the leader has welcomed this rank", {{"leader", options_.leader}, {"epoch", absl::StrCat(welcome.epoch())}});
  epoch_ = Epoch(welcome.epoch());
  peer_timeout_ = absl::Microseconds(welcome.peer_timeout_micros());
  WatchSilence();
  retry_ = options_.first_retry;
  joined_ = true;
  status_ = absl::OkStatus();
  return absl::OkStatus();
}

absl::StatusOr<GroupIdentity> LeaderLink::Checked(const peer::v1::GroupIdentity& message) const {
  PENSTOCK_ASSIGN_OR_RETURN(const GroupIdentity group, FromProto(message));
  absl::MutexLock lock(&mu_);
  if (group.epoch == epoch_) return group;
  return BadRankMessage("group.epoch", absl::StrCat("must be that of the leader, ", epoch_.value()),
                        ToString(group.epoch));
}

absl::Status LeaderLink::OnCommand(const peer::v1::LeaderMessage& message) {
  if (message.has_prepare()) {
    PENSTOCK_ASSIGN_OR_RETURN(const GroupIdentity group, Checked(message.prepare().group()));
    handler_->OnPrepare(group);
  } else if (message.has_form()) {
    PENSTOCK_RETURN_IF_ERROR(Checked(message.form().group()).status());
    PENSTOCK_ASSIGN_OR_RETURN(const Group group, FromProto(message.form()));
    handler_->OnForm(group);
  } else if (message.has_dissolve()) {
    PENSTOCK_ASSIGN_OR_RETURN(const GroupIdentity group, Checked(message.dissolve().group()));
    handler_->OnDissolve(group, Rank(message.dissolve().rank()), DecodeError(message.dissolve().error()));
  } else if (message.has_draining()) {
    handler_->OnDraining(message.draining().draining());
  } else if (message.has_part()) {
    return handler_->OnTold(FromProto(message.part()));
  } else {
    return BadRankMessage("message", "must be a command", "nothing that is known");
  }
  return absl::OkStatus();
}

std::shared_ptr<LeaderLink::Stream> LeaderLink::Joined() const {
  absl::MutexLock lock(&mu_);
  return joined_ ? stream_ : nullptr;
}

void LeaderLink::Send(const peer::v1::RankMessage& message) {
  if (const std::shared_ptr<Stream> stream = Joined(); stream != nullptr) stream->Push(message);
}

void LeaderLink::Tell(std::vector<MessagePart> parts) {
  const std::shared_ptr<Stream> stream = Joined();
  if (stream == nullptr) return;
  std::vector<peer::v1::RankMessage> messages;
  for (MessagePart& part : parts) *messages.emplace_back().mutable_part() = ToProto(std::move(part));
  stream->PushAll(std::move(messages));
}

void LeaderLink::Prepared(const GroupIdentity& group, const std::string& carrier_address) {
  peer::v1::RankMessage message;
  *message.mutable_prepared()->mutable_group() = ToProto(group);
  message.mutable_prepared()->set_carrier_address(carrier_address);
  Send(message);
}

void LeaderLink::Formed(const GroupIdentity& group) {
  peer::v1::RankMessage message;
  *message.mutable_formed()->mutable_group() = ToProto(group);
  Send(message);
}

void LeaderLink::Failed(const GroupIdentity& group, const absl::Status& why) {
  peer::v1::RankMessage message;
  *message.mutable_failed()->mutable_group() = ToProto(group);
  message.mutable_failed()->set_error(EncodeError(why));
  Send(message);
}

// Takes no memory that it needs: without another stream this rank would have no leader for good.
void LeaderLink::OnEnded(const absl::Status& why) {
  bool tell;
  {
    absl::MutexLock lock(&mu_);
    tell = joined_ && !closed_;
    joined_ = false;
    if (why != status_ && !closed_) {
      Guarded("a line of the log", [&] {
        LogWarning("this rank has no leader",
                   {{"leader", options_.leader}, {"reason", ReasonOf(why)}, {"problem", std::string(why.message())}});
      }).IgnoreError();
    }
    status_ = why;
  }
  if (tell) Guarded("the loss of the leader", [&] { handler_->OnLeaderLost(why); }).IgnoreError();
  absl::MutexLock lock(&mu_);
  ended_ = true;
  silence_.Clear();
  if (closed_) return;
  next_stream_.Set(options_.clock->NowNanos() + absl::ToInt64Nanoseconds(retry_));
  retry_ = std::min(2 * retry_, options_.max_retry);
}

absl::Status LeaderLink::status() const {
  absl::MutexLock lock(&mu_);
  return status_;
}

void LeaderLink::Close() {
  std::shared_ptr<Stream> stream;
  {
    absl::MutexLock lock(&mu_);
    closed_ = true;
    stream = stream_;
    silence_.Clear();
    next_stream_.Clear();
  }
  timers_->Quiesce();
  if (stream != nullptr) {
    stream->Leave(Guarded("the end of a stream", []() -> absl::Status {
      return Error(absl::StatusCode::kCancelled, "WORK_CANCELLED", "this rank is stopping");
    }));
  }
  const auto ended = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return ended_; };
  absl::MutexLock lock(&mu_, absl::Condition(&ended));
  stream_ = nullptr;
}

}  // namespace penstock
