#include "server/rpc/streams/receive_stream.h"

#include <string>
#include <utility>

#include "engine/base/error.h"
#include "server/rpc/convert/status_to_grpc.h"
#include "server/rpc/unary_call.h"

namespace penstock {

absl::Status OutOfPlace(std::string_view problem, std::string_view value) {
  return Error(absl::StatusCode::kInvalidArgument, "STREAM_PROTOCOL",
               "message: " + std::string(problem) + ", got " + std::string(value))
      .With("field", "message")
      .With("value", value);
}

ReceiveStream::ReceiveStream(const ServiceEnvironment& environment, grpc::CallbackServerContext* context,
                             int64_t credit)
    : context_(context),
      guard_(std::make_shared<StallGuard>(environment.timers, environment.clock)),
      full_credit_(credit) {}

void ReceiveStream::Write(const google::protobuf::Message& response) {
  const grpc::ByteBuffer* next = nullptr;
  {
    absl::MutexLock lock(&mu_);
    if (end_.has_value()) return;
    writes_.push_back(SerializeMessage(response));
    if (writes_.size() == 1) next = &writes_.front();
  }
  if (next != nullptr) StartWrite(next);
}

void ReceiveStream::OnWriteDone(bool ok) {
  const grpc::ByteBuffer* next = nullptr;
  std::optional<absl::Status> end;
  {
    absl::MutexLock lock(&mu_);
    writes_.pop_front();
    if (!ok) writes_.clear();  // the client is gone; the read ends too
    if (!writes_.empty()) next = &writes_.front();
    end = TakeEnd();
  }
  guard_->Progress();
  if (next != nullptr) StartWrite(next);
  if (end.has_value()) FinishWith(*end);
}

void ReceiveStream::End(const absl::Status& status) {
  std::optional<absl::Status> end;
  {
    absl::MutexLock lock(&mu_);
    if (end_.has_value()) return;
    end_ = status;
    end = TakeEnd();
  }
  // Otherwise the last write finishes, and this may be gone.
  if (end.has_value()) FinishWith(*end);
}

void ReceiveStream::EndEarly(bool started) {
  End(started ? Error(absl::StatusCode::kInvalidArgument, "CHUNK_SIZE", "the stream ended before the last chunk")
              : OutOfPlace("must be a start", "the end of the stream"));
}

void ReceiveStream::Keep(std::shared_ptr<void> place) {
  absl::MutexLock lock(&mu_);
  if (!end_.has_value()) kept_.swap(place);
}

std::optional<absl::Status> ReceiveStream::TakeEnd() {
  if (finished_ || !end_.has_value() || !writes_.empty()) return std::nullopt;
  finished_ = true;
  return *end_;
}

void ReceiveStream::FinishWith(const absl::Status& status) {
  {
    std::shared_ptr<void> kept;  // goes after the lock
    absl::MutexLock lock(&mu_);
    kept.swap(kept_);
  }
  Finish(ToGrpcStatus(status, context_));
}

std::optional<int64_t> ReceiveStream::Credit(bool first) {
  if (first) return full_credit_;
  if (taken_ < full_credit_ / 8) return std::nullopt;
  return std::exchange(taken_, 0);
}

void ReceiveStream::OnDone() {
  guard_->Stop();
  Release();
  delete this;
}

}  // namespace penstock
