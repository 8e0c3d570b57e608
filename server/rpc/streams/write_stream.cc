#include "server/rpc/streams/write_stream.h"

#include "engine/base/check.h"
#include "engine/base/error.h"
#include "server/rpc/convert/status_to_grpc.h"

namespace penstock {
namespace {

absl::Status Left(std::string_view how) {
  return Guarded("the stream",
                 [&]() -> absl::Status { return Error(absl::StatusCode::kCancelled, "WORK_CANCELLED", how); });
}

}  // namespace

WriteStream::WriteStream(grpc::CallbackServerContext* context, TimerQueue* timers, Clock* clock,
                         absl::Duration patience)
    : context_(context), guard_(std::make_shared<StallGuard>(timers, clock, patience)) {}

void WriteStream::Send(grpc::ByteBuffer message) {
  {
    absl::MutexLock lock(&mu_);
    if (ending_) return;
    PENSTOCK_CHECK(!sending_);
    sending_ = true;
  }
  message_ = std::move(message);
  StartWrite(&message_);
}

void WriteStream::Close(const absl::Status& status) {
  {
    absl::MutexLock lock(&mu_);
    if (ending_) return;
    ending_ = true;
    end_ = status;
    if (sending_) return;
  }
  FinishWith(status);
}

bool WriteStream::ended() {
  absl::MutexLock lock(&mu_);
  return ending_;
}

void WriteStream::Keep(std::shared_ptr<void> place) {
  absl::MutexLock lock(&mu_);
  if (!ending_) kept_.swap(place);
}

void WriteStream::FinishWith(const absl::Status& status) {
  {
    std::shared_ptr<void> kept;  // goes after the lock
    absl::MutexLock lock(&mu_);
    kept.swap(kept_);
  }
  Finish(ToGrpcStatus(status, context_));
}

void WriteStream::OnWriteDone(bool ok) {
  absl::Status end = ok ? absl::OkStatus() : Left("the stream broke off");
  bool ending;
  {
    absl::MutexLock lock(&mu_);
    sending_ = false;
    if (!ok && !ending_) {
      ending_ = true;
      end_ = end;
    }
    ending = ending_;
    end = end_;
  }
  if (ending) return FinishWith(end);
  Run([this] {
    OnSent();
    return absl::OkStatus();
  });
}

void WriteStream::OnCancel() { Close(Left("the caller has left the stream")); }

void WriteStream::OnDone() {
  guard_->Stop();
  Guarded("the end of a stream", [this] { OnEnded(); }).IgnoreError();
  self_.reset();
}

}  // namespace penstock
