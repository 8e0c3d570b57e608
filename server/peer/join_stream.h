#pragma once

// The leader's end of one Join.

#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "penstock/peer/v1/group.pb.h"
#include "server/peer/membership.h"
#include "server/peer/write_queue.h"
#include "server/rpc/streams/stall_guard.h"

namespace penstock {

// Hands what a rank says to the membership, and what the membership says to the rank.
//
// Owns:      itself, from Begin() until gRPC is done with it; the membership holds a share. Membership, timers and
//            clock outlive it.
// Threads:   gRPC's, and those of the membership. Nothing blocks but the reading, until what the rank has told is heard.
// Fails:     as Membership::Join(); INVALID_ARGUMENT / STREAM_PROTOCOL for a message out of place, FIELD_INVALID or
//            RANK_MESSAGE for bytes that make no sense, RESOURCE_EXHAUSTED / MESSAGE_TOO_LARGE. A peer that says
//            nothing for two timeouts, also before it has joined, is cut off.
class JoinStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                         public MemberLine,
                         public std::enable_shared_from_this<JoinStream> {
 public:
  JoinStream(Membership* membership, TimerQueue* timers, Clock* clock, grpc::CallbackServerContext* context);

  // `entered`: what the method's gate says.
  void Begin(const absl::Status& entered);

  void Welcome(Epoch epoch, absl::Duration peer_timeout) override;
  void Ping(int64_t leader_nanos) override;
  void Prepare(const GroupIdentity& group) override;
  void Form(const Group& group) override;
  void Dissolve(const GroupIdentity& group, Rank cause, const absl::Status& why) override;
  void Draining(bool draining) override;
  void Tell(std::vector<MessagePart> parts) override;
  void End(const absl::Status& why) override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone() override;

  absl::Status Take();
  absl::Status TakeReport(const peer::v1::RankMessage& message);
  void Write(const peer::v1::LeaderMessage& message);
  void Do(WriteQueue<grpc::ByteBuffer>::Step step) ABSL_LOCKS_EXCLUDED(mu_);

  Membership* const membership_;
  grpc::CallbackServerContext* const context_;
  const std::shared_ptr<StallGuard> guard_;
  std::shared_ptr<JoinStream> self_;
  grpc::ByteBuffer read_;
  std::optional<MemberId> member_;  // since it has joined; the reader's
  WriteQueue<grpc::ByteBuffer> writes_;

  absl::Mutex mu_;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);
};

}  // namespace penstock
