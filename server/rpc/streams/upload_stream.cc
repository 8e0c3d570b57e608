#include "server/rpc/streams/upload_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/status_macros.h"
#include "server/rpc/admission.h"
#include "server/rpc/call_context.h"
#include "server/rpc/call_followers.h"
#include "server/rpc/convert/model_reply.h"
#include "server/rpc/unary_call.h"

namespace penstock {
namespace {

constexpr int64_t kCreditBytes = int64_t{32} << 20;

}  // namespace

UploadStream::UploadStream(const MethodGate& gate, const ServiceEnvironment& environment, const ModelParts& parts,
                           grpc::CallbackServerContext* context)
    : ReceiveStream(environment, context, kCreditBytes), parts_(parts), memory_(environment.memory) {
  const absl::StatusOr<Identity> identity = gate.Enter(*context);
  absl::Status status = identity.status();
  if (status.ok()) status = CheckModelsEnabled(parts_, /*changes=*/true);
  if (status.ok()) status = environment.admission->CheckOpen();
  if (status.ok()) caller_ = identity->name;
  if (!status.ok()) {
    End(status);
    return;
  }
  guard().Watch(context);
  StartRead(&read_);
}

void UploadStream::OnReadDone(bool ok) {
  if (!ok) {
    EndEarly(started_);
    return;
  }
  guard().Moved(static_cast<int64_t>(read_.Length()));
  guard().SetBusy(true);
  const absl::Status posted = Guarded("the stream", [this] { parts_.jobs->Post([this] { TakeOnJobThread(); }); });
  if (!posted.ok()) End(posted);
}

void UploadStream::TakeOnJobThread() {
  const absl::StatusOr<bool> more = Guarded("the stream", [this]() -> absl::StatusOr<bool> {
    v1::UploadModelRequest message;
    const absl::Status parsed = ParseMessage(read_, kMaxMessageBytes, &message);
    read_.Clear();
    PENSTOCK_RETURN_IF_ERROR(parsed);
    return Take(message);
  });
  guard().SetBusy(false);
  GoOn(more, &read_);
}

absl::StatusOr<bool> UploadStream::Take(const v1::UploadModelRequest& message) {
  if (message.has_start()) return Begin(message.start());
  if (message.has_chunk()) return TakeChunk(message.chunk());
  return OutOfPlace("must hold a start or a chunk", "nothing");
}

absl::StatusOr<bool> UploadStream::Begin(const v1::UploadModelStart& start) {
  if (started_) return OutOfPlace("must be a chunk", "a second start");
  NoteTarget(*context(), start);
  PENSTOCK_ASSIGN_OR_RETURN(message_, TakeMemory(memory_, {MemoryClass::kMessages, caller_}, 2 * kMaxMessageBytes));
  PENSTOCK_ASSIGN_OR_RETURN(
      const ModelUploads::Position position,
      parts_.uploads->Start(
          {.caller = caller_, .model = start.model_id(), .bytes = start.byte_size(), .digest = start.digest()},
          &hold_));
  started_ = true;
  if (hold_.upload != nullptr) guard().EndAt(hold_.end_nanos);
  return Answer(position, true);
}

absl::StatusOr<bool> UploadStream::TakeChunk(const v1::ModelChunk& chunk) {
  if (!started_) return OutOfPlace("must be a start", "a chunk");
  Took(static_cast<int64_t>(chunk.data().size()));
  PENSTOCK_ASSIGN_OR_RETURN(const ModelUploads::Position position,
                            parts_.uploads->Add(hold_, chunk.offset(), chunk.data(), chunk.crc32c()));
  return Answer(position, false);
}

bool UploadStream::Answer(const ModelUploads::Position& position, bool first) {
  v1::UploadModelResponse response;
  if (position.model.has_value()) {
    *response.mutable_model() = ToProto(*position.model, *parts_.root, /*layers=*/true);
    Write(response);
    return false;
  }
  response.mutable_credit()->set_next_offset(position.offset);
  WriteCredit(response, first);
  return true;
}

void UploadStream::Release() {
  if (hold_.upload == nullptr) return;
  parts_.jobs->Post([uploads = parts_.uploads, hold = hold_] { uploads->Detach(hold); });
}

}  // namespace penstock
