#include "server/rpc/streams/parameter_stream.h"

#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/checkpoint_store.h"
#include "engine/serve/checkpoint_reader.h"
#include "engine/tensor/codec.h"
#include "engine/wire/chunker.h"
#include "server/rpc/admission.h"
#include "server/rpc/call_context.h"
#include "server/rpc/call_followers.h"
#include "server/rpc/convert/proto_convert.h"
#include "server/rpc/unary_call.h"

namespace penstock {
namespace {

constexpr int kMaxParameterNames = 4096;

}  // namespace

ParameterStream::ParameterStream(const MethodGate& gate, const ServiceEnvironment& environment,
                                 grpc::CallbackServerContext* context)
    : ChunkStream(context, environment.timers, environment.clock), gate_(gate), environment_(environment) {}

void ParameterStream::Begin(const grpc::ByteBuffer& request) {
  Run([&] { return Accept(request); });
}

absl::Status ParameterStream::Accept(const grpc::ByteBuffer& bytes) {
  PENSTOCK_ASSIGN_OR_RETURN(const Identity identity, gate_.Enter(*context()));
  v1::ReadParametersRequest request;
  PENSTOCK_RETURN_IF_ERROR(ParseMessage(bytes, kSpecificationMessageBytes, &request));
  NoteTarget(*context(), request);
  PENSTOCK_ASSIGN_OR_RETURN(chunk_bytes_, CheckedChunkBytes(request.chunk_size()));
  if (request.gradients() && request.include_optimizer_state()) {
    return InvalidField("include_optimizer_state", "goes with parameters, not with gradients", "true");
  }
  if (request.names_size() > kMaxParameterNames) {
    return InvalidField("names", absl::StrCat("must have at most ", kMaxParameterNames, " entries"),
                        absl::StrCat(request.names_size()));
  }
  std::set<std::string_view> seen;
  for (int i = 0; i < request.names_size(); ++i) {
    if (seen.insert(request.names(i)).second) continue;
    return InvalidField(absl::StrCat("names[", i, "]"), "must not name a parameter again", Shortened(request.names(i)));
  }
  ReadCall read = {
      .names = {request.names().begin(), request.names().end()},
      .content = request.gradients()                 ? ReadContent::kGradients
                 : request.include_optimizer_state() ? ReadContent::kWithOptimizer
                                                     : ReadContent::kParameters,
      .done = [stream = std::static_pointer_cast<ParameterStream>(shared_from_this())](auto snapshot) {
        stream->Run([&] { return snapshot.ok() ? stream->StartChunks(*std::move(snapshot)) : snapshot.status(); });
      }};
  return request.checkpoint().empty() ? ReadPipeline(request, identity, std::move(read))
                                      : ReadCheckpoint(request, identity, std::move(read));
}

absl::Status ParameterStream::ReadPipeline(const v1::ReadParametersRequest& request, const Identity& identity,
                                           ReadCall read) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::string session, SessionOf(*context()));
  PENSTOCK_ASSIGN_OR_RETURN(const auto pipeline, FindPipeline(environment_, identity, request.pipeline(), "pipeline"));
  PENSTOCK_ASSIGN_OR_RETURN(Admission::Ticket place, environment_.admission->Admit(identity.name, pipeline->name()));
  PENSTOCK_RETURN_IF_ERROR(HoldChunk(environment_.memory, identity.name, pipeline->name(), chunk_bytes_));
  Keep(place);
  pipeline->ReadParameters({.caller = identity.name, .session = session, .place = std::move(place)}, std::move(read),
                           left_);
  return absl::OkStatus();
}

absl::Status ParameterStream::ReadCheckpoint(const v1::ReadParametersRequest& request, const Identity& identity,
                                             ReadCall read) {
  if (!request.pipeline().empty()) {
    return InvalidField("pipeline", "must not be set beside a checkpoint", Shortened(request.pipeline()));
  }
  if (request.gradients()) return InvalidField("gradients", "are in no checkpoint", "true");
  PENSTOCK_ASSIGN_OR_RETURN(const CheckpointName name, ParseCheckpointName(request.checkpoint(), "checkpoint"));
  PENSTOCK_RETURN_IF_ERROR(FindCheckpoint(environment_, identity, name).status());
  PENSTOCK_ASSIGN_OR_RETURN(Admission::Ticket place, environment_.admission->Admit(identity.name, name.pipeline));
  PENSTOCK_RETURN_IF_ERROR(HoldChunk(environment_.memory, identity.name, name.pipeline, chunk_bytes_));
  Keep(std::move(place));
  environment_.checkpoint_reader->Read(environment_.checkpoints->FindFolder(name.pipeline), name.checkpoint,
                                       identity.name, std::move(read), left_);
  return absl::OkStatus();
}

absl::Status ParameterStream::StartChunks(std::shared_ptr<const ParameterSnapshot> snapshot) {
  snapshot_ = std::move(snapshot);
  v1::ReadParametersResponse first;
  first.mutable_start()->set_step(snapshot_->step);
  std::vector<TensorSender::Part> parts;
  for (const NamedTensor& parameter : snapshot_->tensors) {
    PENSTOCK_ASSIGN_OR_RETURN(at::Tensor tensor, SendableTensor(parameter.tensor));
    PENSTOCK_ASSIGN_OR_RETURN(const TensorHeader header, HeaderOf(parameter.name, tensor));
    *first.mutable_start()->add_tensors() = ToProto(header);
    const auto size = static_cast<int64_t>(tensor.nbytes());
    parts.push_back({static_cast<int>(parts.size()), std::move(tensor), {0, size}});
  }
  SendChunks({SerializeMessage(first)}, std::move(parts), chunk_bytes_);
  return absl::OkStatus();
}

}  // namespace penstock
