#include "server/peer/join_stream.h"

#include <string>
#include <utility>

#include "absl/strings/str_replace.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "engine/transport/frame_header.h"
#include "server/peer/group_convert.h"
#include "server/rpc/call_context.h"
#include "server/rpc/convert/message_limits.h"
#include "server/rpc/convert/status_to_grpc.h"
#include "server/rpc/streams/receive_stream.h"
#include "server/rpc/unary_call.h"

namespace penstock {
namespace {

absl::StatusOr<RankDescription> HelloIn(const peer::v1::RankMessage& message) {
  if (!message.has_hello()) return OutOfPlace("must be a hello", "another one");
  return FromProto(message.hello());
}

// Of the host at the other end: 192.0.2.1, [2001:db8::1].
std::string AddressOf(const grpc::CallbackServerContext& context) {
  return absl::StrReplaceAll(HostOf(context), {{"ipv4:", ""}, {"ipv6:", ""}, {"%5B", "["}, {"%5D", "]"}});
}

}  // namespace

JoinStream::JoinStream(Membership* membership, TimerQueue* timers, Clock* clock, grpc::CallbackServerContext* context)
    : membership_(membership),
      context_(context),
      guard_(std::make_shared<StallGuard>(timers, clock, 2 * membership->peer_timeout())) {}

void JoinStream::Begin(const absl::Status& entered) {
  self_ = shared_from_this();
  if (!entered.ok()) return End(membership_->RefuseStranger(entered));
  guard_->Watch(context_);
  StartRead(&read_);
}

void JoinStream::OnReadDone(bool ok) {
  const absl::Status taken = Guarded("a message of a rank", [&]() -> absl::Status {
    if (!ok) return Error(absl::StatusCode::kUnavailable, "RANK_LOST", "its stream has ended");
    return Take();
  });
  if (taken.ok()) {
    guard_->Progress();
    return StartRead(&read_);
  }
  End(taken);
  if (member_.has_value()) membership_->Leave(*member_, taken);
}

absl::Status JoinStream::Take() {
  peer::v1::RankMessage message;
  const int64_t most = member_.has_value() ? kSpecificationMessageBytes : kControlMessageBytes;
  const absl::Status parsed = ParseMessage(read_, most, &message);
  if (!member_.has_value()) {
    absl::StatusOr<RankDescription> rank = parsed.ok() ? HelloIn(message) : parsed;
    if (!rank.ok()) return membership_->RefuseStranger(rank.status());
    rank->address = AddressOf(*context_);
    PENSTOCK_ASSIGN_OR_RETURN(member_, membership_->Join(*rank, shared_from_this()));
    return absl::OkStatus();
  }
  PENSTOCK_RETURN_IF_ERROR(parsed);
  membership_->Heard(*member_);
  return TakeReport(message);
}

absl::Status JoinStream::TakeReport(const peer::v1::RankMessage& message) {
  if (message.has_pong()) return membership_->Ponged(*member_, FromProto(message.pong()));
  if (message.has_prepared()) {
    PENSTOCK_ASSIGN_OR_RETURN(const GroupIdentity group, FromProto(message.prepared().group()));
    membership_->Prepared(*member_, group, message.prepared().carrier_address());
  } else if (message.has_formed()) {
    PENSTOCK_ASSIGN_OR_RETURN(const GroupIdentity group, FromProto(message.formed().group()));
    membership_->Formed(*member_, group);
  } else if (message.has_failed()) {
    PENSTOCK_ASSIGN_OR_RETURN(const GroupIdentity group, FromProto(message.failed().group()));
    membership_->Failed(*member_, group, DecodeError(message.failed().error()));
  } else if (message.has_part()) {
    membership_->Told(*member_, FromProto(message.part()));
  } else {
    return OutOfPlace("must be a report", message.has_hello() ? "a second hello" : "nothing that is known");
  }
  return absl::OkStatus();
}

void JoinStream::Welcome(Epoch epoch, absl::Duration peer_timeout) {
  peer::v1::LeaderMessage message;
  message.mutable_welcome()->set_epoch(epoch.value());
  message.mutable_welcome()->set_peer_timeout_micros(absl::ToInt64Microseconds(peer_timeout));
  Write(message);
}

void JoinStream::Ping(int64_t leader_nanos) {
  peer::v1::LeaderMessage message;
  message.mutable_ping()->set_leader_nanos(leader_nanos);
  Do(writes_.PushUrgent(SerializeMessage(message)));
}

void JoinStream::Prepare(const GroupIdentity& group) {
  peer::v1::LeaderMessage message;
  *message.mutable_prepare()->mutable_group() = ToProto(group);
  Write(message);
}

void JoinStream::Form(const Group& group) {
  peer::v1::LeaderMessage message;
  *message.mutable_form() = ToProto(group);
  Write(message);
}

void JoinStream::Dissolve(const GroupIdentity& group, Rank cause, const absl::Status& why) {
  peer::v1::LeaderMessage message;
  *message.mutable_dissolve()->mutable_group() = ToProto(group);
  message.mutable_dissolve()->set_rank(cause.value());
  message.mutable_dissolve()->set_error(EncodeError(why));
  Write(message);
}

void JoinStream::Draining(bool draining) {
  peer::v1::LeaderMessage message;
  message.mutable_draining()->set_draining(draining);
  Write(message);
}

void JoinStream::Tell(std::vector<MessagePart> parts) {
  std::vector<grpc::ByteBuffer> messages;
  for (MessagePart& part : parts) {
    peer::v1::LeaderMessage message;
    *message.mutable_part() = ToProto(std::move(part));
    messages.push_back(SerializeMessage(message));
  }
  Do(writes_.PushAll(std::move(messages)));
}

void JoinStream::Write(const peer::v1::LeaderMessage& message) { Do(writes_.Push(SerializeMessage(message))); }

void JoinStream::OnWriteDone(bool ok) { Do(writes_.Written(ok)); }

void JoinStream::End(const absl::Status& why) {
  {
    absl::MutexLock lock(&mu_);
    if (end_.has_value()) return;
    end_ = why;
  }
  Do(writes_.Close());
}

void JoinStream::Do(WriteQueue<grpc::ByteBuffer>::Step step) {
  if (step.write != nullptr) StartWrite(step.write);
  if (!step.end) return;
  absl::Status end;
  {
    absl::MutexLock lock(&mu_);
    end = *end_;
  }
  Finish(ToGrpcStatus(end, context_));
}

void JoinStream::OnDone() {
  guard_->Stop();
  self_.reset();
}

}  // namespace penstock
