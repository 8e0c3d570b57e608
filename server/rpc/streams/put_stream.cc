#include "server/rpc/streams/put_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/status_macros.h"
#include "engine/serve/pipeline_table.h"
#include "server/rpc/admission.h"
#include "server/rpc/call_context.h"
#include "server/rpc/call_followers.h"
#include "server/rpc/convert/proto_convert.h"
#include "server/rpc/unary_call.h"

namespace penstock {
PutStream::PutStream(const MethodGate& gate, const ServiceEnvironment& environment, std::shared_ptr<TensorUploads> puts,
                     grpc::CallbackServerContext* context)
    : ReceiveStream(environment, context, kPutCreditBytes), environment_(environment), puts_(std::move(puts)) {
  absl::StatusOr<Identity> identity = gate.Enter(*context);
  if (!identity.ok()) {
    End(identity.status());
    return;
  }
  identity_ = *std::move(identity);
  guard().Watch(context);
  StartRead(&read_);
}

void PutStream::OnReadDone(bool ok) {
  if (!ok) {
    EndEarly(/*started=*/hold_.has_value());
    return;
  }
  guard().Moved(static_cast<int64_t>(read_.Length()));
  absl::StatusOr<bool> more = Guarded("the stream", [this] { return Take(); });
  read_.Clear();
  GoOn(more, &read_);
}

absl::StatusOr<bool> PutStream::Take() {
  const auto size = static_cast<int64_t>(read_.Length());
  if (size > kMaxMessageBytes) {
    return Error(absl::StatusCode::kResourceExhausted, "MESSAGE_TOO_LARGE",
                 absl::StrCat("message: must have at most ", kMaxMessageBytes, " bytes, got ", size))
        .With("field", "message")
        .With("value", absl::StrCat(size));
  }
  const ReceivedMessage message(read_);
  WireReader reader(message.pieces());
  if (reader.AtEnd()) return OutOfPlace("must hold a start or a chunk", "nothing");
  PENSTOCK_ASSIGN_OR_RETURN(const WireField field, reader.Next());
  if (!reader.AtEnd()) return OutOfPlace("must hold one field", "more");
  if (field.type == 2 && field.number == v1::PutTensorsRequest::kStartFieldNumber) {
    return Begin(field.bytes);
  }
  if (field.type == 2 && field.number == v1::PutTensorsRequest::kChunkFieldNumber) {
    return TakeChunk(field.bytes);
  }
  return OutOfPlace("must hold a start or a chunk", absl::StrCat("field ", field.number));
}

absl::StatusOr<bool> PutStream::Begin(const Pieces& bytes) {
  if (hold_.has_value()) return OutOfPlace("must be a chunk", "a second start");
  v1::PutStart start;
  const std::string joined = JoinPieces(bytes);
  if (joined.size() > kControlMessageBytes || !start.ParseFromString(joined)) {
    return OutOfPlace("must hold a start", absl::StrCat(joined.size(), " bytes"));
  }
  NoteTarget(*context(), start);
  PENSTOCK_RETURN_IF_ERROR(CheckRequestId(start.request_id(), false));
  PENSTOCK_ASSIGN_OR_RETURN(const std::string pipeline, ParsePipelineName(start.pipeline(), "pipeline"));
  if (start.tensors().empty()) return InvalidField("tensors", "must not be empty", "no tensor");
  TensorUploads::Request request;
  request.caller = identity_.name;
  request.pipeline = pipeline;
  request.request_id = start.request_id();
  for (const v1::TensorHeader& header : start.tensors()) {
    request.headers.push_back(FromProto(header));
  }
  PENSTOCK_RETURN_IF_ERROR(ValidateTensorHeaders(request.headers));
  PENSTOCK_ASSIGN_OR_RETURN(request.lease, environment_.handles->CheckedLease(AsDuration(start.lease())));
  PENSTOCK_RETURN_IF_ERROR(LivePipeline(environment_, identity_, pipeline).status());
  PENSTOCK_ASSIGN_OR_RETURN(Admission::Ticket ticket, environment_.admission->Admit(identity_.name, pipeline));
  Keep(std::move(ticket));
  PENSTOCK_ASSIGN_OR_RETURN(
      message_, TakeMemory(environment_.memory, {MemoryClass::kMessages, identity_.name, pipeline}, kMaxMessageBytes));
  PENSTOCK_ASSIGN_OR_RETURN(hold_, puts_->Attach(std::move(request)));
  guard().EndAt(hold_->end_nanos);
  PENSTOCK_ASSIGN_OR_RETURN(const TensorUploads::Position position, puts_->Where(*hold_));
  return Answer(position, true);
}

absl::StatusOr<bool> PutStream::TakeChunk(const Pieces& bytes) {
  if (!hold_.has_value()) return OutOfPlace("must be a start", "a chunk");
  PENSTOCK_ASSIGN_OR_RETURN(const ChunkMessage chunk, ReadChunk(bytes));
  Took(static_cast<int64_t>(PiecesSize(chunk.data)));
  PENSTOCK_ASSIGN_OR_RETURN(const TensorUploads::Position position, puts_->Add(*hold_, chunk));
  return Answer(position, false);
}

absl::StatusOr<bool> PutStream::Answer(const TensorUploads::Position& position, bool first) {
  v1::PutTensorsResponse response;
  if (position.complete) {
    PENSTOCK_ASSIGN_OR_RETURN(const HandleInfo info, environment_.handles->Get(identity_.name, puts_->NameOf(*hold_)));
    *response.mutable_handle() = ToProto(info);
    Write(response);
    return false;
  }
  response.mutable_credit()->set_next_tensor(position.tensor);
  response.mutable_credit()->set_next_offset(position.offset);
  WriteCredit(response, first);
  return true;
}

void PutStream::Release() {
  if (hold_.has_value()) puts_->Detach(*hold_);
}

}  // namespace penstock
