#include "server/rpc/streams/infer_stream.h"

#include <new>
#include <utility>
#include <vector>

#include "engine/base/guard.h"
#include "engine/base/status_macros.h"
#include "inference/grpc_service.pb.h"
#include "server/rpc/call_followers.h"
#include "server/rpc/convert/status_to_grpc.h"
#include "server/rpc/convert/wire_reader.h"
#include "server/rpc/unary_call.h"

namespace penstock {

InferStream::InferStream(RequestStreams* streams, const MethodGate& gate, const ServiceEnvironment& environment,
                         grpc::CallbackServerContext* context, Handler handler)
    : RequestStream(streams, gate, environment, context,
                    {.ordered = true, .most_waiting = kMaxOpen, .patience = kPatience}),
      handler_(std::move(handler)) {}

absl::Status InferStream::Opened(const Identity& /*identity*/) { return absl::OkStatus(); }

absl::Status InferStream::Take(const grpc::ByteBuffer& message) {
  // Role, expiry and map may have changed since the last one.
  PENSTOCK_ASSIGN_OR_RETURN(Identity identity, gate().Enter(*context()));
  const std::shared_ptr<AuditNote> note = AuditNoteOf(*context());
  const auto request = std::make_shared<StreamedRequest>(shared_from_this(), next_, std::move(identity), "",
                                                         note == nullptr ? nullptr : note->OfRequest());
  if (!Open(request)) return Bug("the stream", "a number comes twice");
  ++next_;
  const absl::Status handled = Guarded("the request", [&] { handler_(request, message); });
  if (!handled.ok()) request->Fail(handled);
  return absl::OkStatus();
}

// A ModelStreamInferResponse with the ModelInferResponse, whose bytes it shares.
grpc::ByteBuffer InferStream::AnswerOf(const StreamedRequest& /*request*/, const grpc::ByteBuffer& response) const {
  std::vector<grpc::Slice> pieces;
  if (!response.Dump(&pieces).ok()) throw std::bad_alloc();
  pieces.insert(
      pieces.begin(),
      grpc::Slice(BytesFieldPrefix(inference::ModelStreamInferResponse::kInferResponseFieldNumber, response.Length())));
  return grpc::ByteBuffer(pieces.data(), pieces.size());
}

grpc::ByteBuffer InferStream::ErrorOf(const StreamedRequest& request, const grpc::Status& error) const {
  inference::ModelStreamInferResponse answer;
  answer.set_error_message(error.error_message().empty() ? ReasonIn(error) : error.error_message());
  answer.mutable_infer_response()->set_id(request.client_id());
  return SerializeMessage(answer);
}

}  // namespace penstock
