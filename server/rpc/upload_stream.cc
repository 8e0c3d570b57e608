#include "server/rpc/upload_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "server/rpc/admission.h"
#include "server/rpc/call_context.h"
#include "server/rpc/status_to_grpc.h"
#include "server/rpc/unary_call.h"

namespace penstock {
namespace {

constexpr int64_t kMostMessageBytes = (int64_t{1} << 20) + (int64_t{64} << 10);
constexpr int64_t kCreditBytes = int64_t{32} << 20;
constexpr int64_t kGiveBackBytes = kCreditBytes / 8;

absl::Status Protocol(std::string_view problem, std::string_view value) {
  return Error(absl::StatusCode::kInvalidArgument, "STREAM_PROTOCOL",
               "message: " + std::string(problem) + ", got " + std::string(value))
      .With("field", "message")
      .With("value", value);
}

}  // namespace

UploadStream::UploadStream(const ServiceEnvironment& environment, const ModelParts& parts,
                           grpc::CallbackServerContext* context)
    : environment_(environment),
      parts_(parts),
      context_(context),
      guard_(std::make_shared<StallGuard>(environment.timers, environment.clock)) {
  absl::Status status = CheckModelsEnabled(parts_, /*changes=*/true);
  if (status.ok()) status = environment_.admission->CheckOpen();
  if (status.ok()) {
    absl::StatusOr<std::string> caller = CallerOf(*context);
    status = caller.status();
    if (status.ok()) caller_ = *std::move(caller);
  }
  if (!status.ok()) {
    End(status);
    return;
  }
  guard_->Watch(context);
  StartRead(&read_);
}

void UploadStream::OnReadDone(bool ok) {
  if (!ok) {
    // The client has closed its side, or is gone.
    End(started_ ? Error(absl::StatusCode::kInvalidArgument, "CHUNK_SIZE", "the stream ended before the last chunk")
                 : Protocol("must be a start", "the end of the stream"));
    return;
  }
  guard_->SetBusy(true);
  parts_.jobs->Post([this] { TakeOnJobThread(); });
}

void UploadStream::TakeOnJobThread() {
  v1::UploadModelRequest message;
  absl::Status parsed = ParseMessage(read_, kMostMessageBytes, &message);
  read_.Clear();
  const absl::StatusOr<bool> more = parsed.ok() ? Take(message) : parsed;
  guard_->SetBusy(false);
  if (!more.ok()) {
    End(more.status());
  } else if (*more) {
    StartRead(&read_);
  } else {
    End(absl::OkStatus());
  }
}

absl::StatusOr<bool> UploadStream::Take(const v1::UploadModelRequest& message) {
  if (message.has_start()) return Begin(message.start());
  if (message.has_chunk()) return TakeChunk(message.chunk());
  return Protocol("must hold a start or a chunk", "nothing");
}

absl::StatusOr<bool> UploadStream::Begin(const v1::UploadModelStart& start) {
  if (started_) return Protocol("must be a chunk", "a second start");
  PENSTOCK_ASSIGN_OR_RETURN(
      const ModelUploads::Position position,
      parts_.uploads->Start(
          {.caller = caller_, .model = start.model_id(), .bytes = start.byte_size(), .digest = start.digest()},
          &hold_));
  started_ = true;
  return Answer(position, true);
}

absl::StatusOr<bool> UploadStream::TakeChunk(const v1::ModelChunk& chunk) {
  if (!started_) return Protocol("must be a start", "a chunk");
  const auto size = static_cast<int64_t>(chunk.data().size());
  if (size > credit_) {
    return Error(absl::StatusCode::kResourceExhausted, "CREDIT_EXCEEDED",
                 absl::StrCat("chunk: must fit the credit of ", credit_, " bytes, got ", size))
        .With("field", "chunk")
        .With("value", absl::StrCat(size));
  }
  PENSTOCK_ASSIGN_OR_RETURN(const ModelUploads::Position position,
                            parts_.uploads->Add(hold_, chunk.offset(), chunk.data(), chunk.crc32c()));
  credit_ -= size;
  returned_ += size;
  return Answer(position, false);
}

bool UploadStream::Answer(const ModelUploads::Position& position, bool first) {
  v1::UploadModelResponse response;
  if (position.model.has_value()) {
    *response.mutable_model() = ToProto(*position.model, *parts_.root, /*layers=*/true);
    Write(response);
    return false;
  }
  if (!first && returned_ < kGiveBackBytes) return true;
  const int64_t given = first ? kCreditBytes : returned_;
  credit_ += given;
  returned_ = 0;
  response.mutable_credit()->set_bytes(given);
  response.mutable_credit()->set_next_offset(position.offset);
  Write(response);
  return true;
}

void UploadStream::Write(const v1::UploadModelResponse& response) {
  const grpc::ByteBuffer* next = nullptr;
  {
    absl::MutexLock lock(&mu_);
    if (end_.has_value()) return;
    writes_.push_back(SerializeMessage(response));
    if (writes_.size() == 1) next = &writes_.front();
  }
  if (next != nullptr) StartWrite(next);
}

void UploadStream::OnWriteDone(bool ok) {
  const grpc::ByteBuffer* next = nullptr;
  {
    absl::MutexLock lock(&mu_);
    writes_.pop_front();
    if (!ok) writes_.clear();  // the client is gone; the read ends too
    if (!writes_.empty()) next = &writes_.front();
  }
  guard_->Progress();
  if (next != nullptr) {
    StartWrite(next);
  } else {
    EndIfWritten();
  }
}

void UploadStream::End(const absl::Status& status) {
  {
    absl::MutexLock lock(&mu_);
    if (end_.has_value()) return;
    end_ = status;
  }
  EndIfWritten();
}

void UploadStream::EndIfWritten() {
  absl::Status status;
  {
    absl::MutexLock lock(&mu_);
    if (finished_ || !end_.has_value() || !writes_.empty()) return;
    finished_ = true;
    status = *end_;
  }
  if (const auto pushback = RetryPushbackMillis(status); pushback.has_value()) {
    context_->AddTrailingMetadata("grpc-retry-pushback-ms", std::to_string(*pushback));
  }
  Finish(ToGrpcStatus(status));
}

void UploadStream::OnDone() {
  guard_->Stop();
  if (hold_.upload != nullptr) {
    parts_.jobs->Post([uploads = parts_.uploads, hold = hold_] { uploads->Detach(hold); });
  }
  delete this;
}

}  // namespace penstock
