#include "server/rpc/streams/fetch_stream.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/tensor/codec.h"
#include "engine/wire/chunker.h"
#include "server/rpc/call_context.h"
#include "server/rpc/call_followers.h"
#include "server/rpc/convert/proto_convert.h"
#include "server/rpc/convert/value_convert.h"
#include "server/rpc/unary_call.h"

namespace penstock {
namespace {

// Of the tensors that ChooseParts() will choose: what it copies to the host.
int64_t BytesToCopy(const HeldValues& held, const v1::FetchHandleRequest& request) {
  int64_t bytes = 0;
  for (const NamedTensor& tensor : held.tensors) {
    const bool chosen = request.tensor().empty() || tensor.name == request.tensor();
    if (chosen && !tensor.tensor.is_cpu()) bytes += static_cast<int64_t>(tensor.tensor.nbytes());
  }
  return bytes;
}

}  // namespace

absl::StatusOr<std::vector<TensorSender::Part>> ChooseParts(const HeldValues& held,
                                                            const v1::FetchHandleRequest& request) {
  const NamedTensors& tensors = held.tensors;
  std::vector<TensorSender::Part> parts;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!request.tensor().empty() && tensors[i].name != request.tensor()) continue;
    PENSTOCK_ASSIGN_OR_RETURN(at::Tensor tensor, SendableTensor(tensors[i].tensor));
    const auto size = static_cast<int64_t>(tensor.nbytes());
    parts.push_back({static_cast<int>(i), std::move(tensor), {0, size}});
  }
  const bool value = !request.tensor().empty() && held.FindValue(request.tensor()) != nullptr;
  if (parts.empty() && !value && !request.tensor().empty()) {
    return InvalidField("tensor", "is not in this handle", Shortened(request.tensor()));
  }
  if (parts.size() == 1) {
    PENSTOCK_ASSIGN_OR_RETURN(parts[0].range, CheckedRange(request.offset(), request.limit(), parts[0].range.end));
  } else if (request.offset() != 0 || request.limit() != 0) {
    return InvalidField("tensor", "must name a tensor where offset or limit is set",
                        value ? Shortened(request.tensor()) : "an empty name");
  }
  return parts;
}

FetchStream::FetchStream(const MethodGate& gate, const ServiceEnvironment& environment,
                         grpc::CallbackServerContext* context)
    : ChunkStream(context, environment.timers, environment.clock), gate_(gate), environment_(environment) {}

void FetchStream::Begin(const grpc::ByteBuffer& request) {
  Run([&] { return Accept(request); });
}

absl::Status FetchStream::Accept(const grpc::ByteBuffer& request) {
  PENSTOCK_ASSIGN_OR_RETURN(const Identity identity, gate_.Enter(*context()));
  PENSTOCK_RETURN_IF_ERROR(ParseMessage(request, kControlMessageBytes, &request_));
  NoteTarget(*context(), request_);
  PENSTOCK_ASSIGN_OR_RETURN(const HandleName name, HandleName::Parse(request_.name()));
  PENSTOCK_ASSIGN_OR_RETURN(chunk_bytes_, CheckedChunkBytes(request_.chunk_size()));
  PENSTOCK_ASSIGN_OR_RETURN(const absl::Duration wait,
                            CheckedDuration(request_.wait_for(), absl::Seconds(60), "wait_for"));
  caller_ = identity.name;
  PENSTOCK_ASSIGN_OR_RETURN(pin_, environment_.handles->Pin(identity.name, name));
  const int64_t deadline = environment_.clock->NowNanos() + absl::ToInt64Nanoseconds(wait);
  wait_ = environment_.handles->OnSettled(identity.name, {name}, HandleStore::WaitMode::kAll, deadline,
                                          [stream = std::static_pointer_cast<FetchStream>(shared_from_this())](
                                              auto answers) { stream->OnSettled(answers[0]); });
  return absl::OkStatus();
}

void FetchStream::OnSettled(const HandleStore::HandleAnswer& answer) {
  Run([&] { return answer.ok() ? StartChunks(*answer) : answer.status(); });
}

absl::Status FetchStream::StartChunks(const HandleInfo& info) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::shared_ptr<const HeldValues> held, pin_.values());
  // With the copies of what is on a device.
  const int64_t copied = BytesToCopy(*held, request_);
  PENSTOCK_RETURN_IF_ERROR(HoldChunk(environment_.memory, caller_, info.name.pipeline, chunk_bytes_ + copied));
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<TensorSender::Part> parts, ChooseParts(*held, request_));
  v1::FetchHandleResponse first;
  *first.mutable_handle() = ToProto(info);
  std::deque<grpc::ByteBuffer> heads = {SerializeMessage(first)};
  for (v1::NamedValue& value : ToProto(*held, request_.tensor())) {
    v1::FetchHandleResponse head;
    *head.mutable_value() = std::move(value);
    heads.push_back(SerializeMessage(head));
  }
  SendChunks(std::move(heads), std::move(parts), chunk_bytes_);
  return absl::OkStatus();
}

void FetchStream::OnEnded() { environment_.handles->CancelWait(wait_); }

}  // namespace penstock
