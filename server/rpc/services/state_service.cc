#include "server/rpc/services/state_service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/checkpoint_manifest.h"
#include "engine/checkpoint/checkpoint_store.h"
#include "engine/handles/handle_store.h"
#include "engine/serve/pipeline_table.h"
#include "server/rpc/admission.h"
#include "server/rpc/call_context.h"
#include "server/rpc/convert/checkpoint_convert.h"
#include "server/rpc/convert/page_token.h"
#include "server/rpc/convert/payload_digest.h"
#include "server/rpc/convert/proto_convert.h"
#include "server/rpc/convert/recipe_convert.h"
#include "server/rpc/convert/record_of.h"
#include "server/rpc/convert/state_convert.h"
#include "server/rpc/streams/parameter_stream.h"

namespace penstock {
namespace {

constexpr int64_t kMaxGivenStep = kMaxStep / 2;  // so that no number of further steps leads beyond kMaxStep

constexpr int kMaxWrittenHandles = 4096;
constexpr int kMaxKeptCheckpoints = 10'000;
constexpr char kAllPipelines[] = "pipelines/-";

template <typename Call>
CallContext ContextOf(const Call& call, Admission::Ticket place) {
  call->Keep(place);
  CallContext context;
  context.caller = call->caller();
  context.session = call->session();
  context.request_id = call->request().request_id();
  context.payload_digest = PayloadDigest(call->request());
  context.recorded_digest = RecordedDigest(call->request(), context.payload_digest);
  context.record = RecordOf(call->request());
  context.observer = call->trace();
  context.place = std::move(place);
  return context;
}

absl::Status CheckGivenId(const std::string& id) {
  if (id.empty()) return absl::OkStatus();
  PENSTOCK_RETURN_IF_ERROR(CheckIdentifier(id, "checkpoint_id"));
  if (!AutomaticCheckpoints::IsId(id)) return absl::OkStatus();
  return InvalidField("checkpoint_id", "must not begin with auto-, as those of the journal do", id);
}

// The checkpoint that a request names; of the pipeline that it names too, if it does.
template <typename Request>
absl::StatusOr<CheckpointName> CheckpointOf(const Request& request) {
  PENSTOCK_ASSIGN_OR_RETURN(CheckpointName name, ParseCheckpointName(request.name(), "name"));
  if (request.pipeline().empty()) return name;
  PENSTOCK_ASSIGN_OR_RETURN(const std::string pipeline, ParsePipelineName(request.pipeline(), "pipeline"));
  if (pipeline == name.pipeline) return name;
  return InvalidField("name", absl::StrCat("must be a checkpoint of ", request.pipeline()), request.name());
}

}  // namespace

grpc::ServerUnaryReactor* StateServiceImpl::SaveCheckpoint(grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer* request,
                                                           grpc::ByteBuffer* response) {
  return ServeUnary<v1::SaveCheckpointRequest, v1::Checkpoint>(gate_.Of("SaveCheckpoint"), context, request, response,
                                                               kControlMessageBytes, [this](const auto& call) {
                                                                 if (absl::Status accepted = Save(call); !accepted.ok())
                                                                   call->Fail(accepted);
                                                               });
}

absl::Status StateServiceImpl::Save(const UnaryCallPtr<v1::SaveCheckpointRequest, v1::Checkpoint>& call) {
  const v1::SaveCheckpointRequest& request = call->request();
  PENSTOCK_RETURN_IF_ERROR(CheckRequestId(request.request_id(), true));
  call->set_request_id(request.request_id());
  PENSTOCK_RETURN_IF_ERROR(CheckGivenId(request.checkpoint_id()));
  if (request.keep() < 0 || request.keep() > kMaxKeptCheckpoints) {
    return InvalidField("keep", absl::StrCat("must be 0 to ", kMaxKeptCheckpoints), absl::StrCat(request.keep()));
  }
  PENSTOCK_ASSIGN_OR_RETURN(const auto pipeline,
                            FindPipeline(environment_, call->identity(), request.pipeline(), "pipeline"));
  PENSTOCK_ASSIGN_OR_RETURN(Admission::Ticket ticket, environment_.admission->Admit(call->caller(), pipeline->name()));
  pipeline->SaveCheckpoint(ContextOf(call, std::move(ticket)), CallOf(request), [call](const auto& answer) {
    if (!answer.ok()) return call->Fail(answer.status());
    call->Reply(CheckpointMessages().Make(answer->checkpoint, /*pipeline_exists=*/true));
  });
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* StateServiceImpl::CopyCheckpoint(grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer* request,
                                                           grpc::ByteBuffer* response) {
  return ServeUnary<v1::CopyCheckpointRequest, v1::Checkpoint>(gate_.Of("CopyCheckpoint"), context, request, response,
                                                               kControlMessageBytes, [this](const auto& call) {
                                                                 if (absl::Status accepted = Copy(call); !accepted.ok())
                                                                   call->Fail(accepted);
                                                               });
}

absl::Status StateServiceImpl::Copy(const UnaryCallPtr<v1::CopyCheckpointRequest, v1::Checkpoint>& call) {
  const v1::CopyCheckpointRequest& request = call->request();
  PENSTOCK_RETURN_IF_ERROR(CheckRequestId(request.request_id(), true));
  call->set_request_id(request.request_id());
  PENSTOCK_ASSIGN_OR_RETURN(const CheckpointName source, ParseCheckpointName(request.source(), "source"));
  PENSTOCK_RETURN_IF_ERROR(CheckGivenId(request.checkpoint_id()));
  PENSTOCK_ASSIGN_OR_RETURN(const auto pipeline,
                            FindPipeline(environment_, call->identity(), request.destination(), "destination"));
  PENSTOCK_ASSIGN_OR_RETURN(const auto folder, FindCheckpointFolder(environment_, call->identity(), source));
  PENSTOCK_ASSIGN_OR_RETURN(Admission::Ticket ticket, environment_.admission->Admit(call->caller(), pipeline->name()));
  pipeline->CopyCheckpoint(ContextOf(call, std::move(ticket)),
                           {.source = folder, .source_id = source.checkpoint, .id = request.checkpoint_id()},
                           [call](const auto& answer) {
                             if (!answer.ok()) return call->Fail(answer.status());
                             call->Reply(CheckpointMessages().Make(answer->checkpoint, /*pipeline_exists=*/true));
                           });
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* StateServiceImpl::RestoreCheckpoint(grpc::CallbackServerContext* context,
                                                              const grpc::ByteBuffer* request,
                                                              grpc::ByteBuffer* response) {
  return ServeUnary<v1::RestoreCheckpointRequest, v1::RestoreCheckpointResponse>(
      gate_.Of("RestoreCheckpoint"), context, request, response, kControlMessageBytes, [this](const auto& call) {
        if (absl::Status accepted = Restore(call); !accepted.ok()) call->Fail(accepted);
      });
}

absl::Status StateServiceImpl::Restore(
    const UnaryCallPtr<v1::RestoreCheckpointRequest, v1::RestoreCheckpointResponse>& call) {
  const v1::RestoreCheckpointRequest& request = call->request();
  PENSTOCK_RETURN_IF_ERROR(CheckRequestId(request.request_id(), true));
  call->set_request_id(request.request_id());
  PENSTOCK_ASSIGN_OR_RETURN(const CheckpointName name, CheckpointOf(request));
  PENSTOCK_ASSIGN_OR_RETURN(const auto pipeline, LivePipeline(environment_, call->identity(), name.pipeline));
  PENSTOCK_ASSIGN_OR_RETURN(Admission::Ticket ticket, environment_.admission->Admit(call->caller(), pipeline->name()));
  pipeline->RestoreCheckpoint(ContextOf(call, std::move(ticket)), name.checkpoint, request.force(),
                              [call](const auto& answer) {
                                if (!answer.ok()) return call->Fail(answer.status());
                                v1::RestoreCheckpointResponse response;
                                response.set_step(answer->step);
                                response.set_state_token(answer->state_token);
                                call->Reply(response);
                              });
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* StateServiceImpl::DeleteCheckpoint(grpc::CallbackServerContext* context,
                                                             const grpc::ByteBuffer* request,
                                                             grpc::ByteBuffer* response) {
  return ServeUnary<v1::DeleteCheckpointRequest, v1::DeleteCheckpointResponse>(
      gate_.Of("DeleteCheckpoint"), context, request, response, kControlMessageBytes, [this](const auto& call) {
        if (absl::Status accepted = Delete(call); !accepted.ok()) call->Fail(accepted);
      });
}

absl::Status StateServiceImpl::Delete(
    const UnaryCallPtr<v1::DeleteCheckpointRequest, v1::DeleteCheckpointResponse>& call) {
  const v1::DeleteCheckpointRequest& request = call->request();
  PENSTOCK_RETURN_IF_ERROR(CheckRequestId(request.request_id(), true));
  call->set_request_id(request.request_id());
  PENSTOCK_ASSIGN_OR_RETURN(const CheckpointName name, CheckpointOf(request));
  PENSTOCK_RETURN_IF_ERROR(CheckSees(call->identity(), name.pipeline));
  if (!Exists(name.pipeline) && environment_.checkpoints->FindFolder(name.pipeline) != nullptr) {
    PENSTOCK_RETURN_IF_ERROR(environment_.admission->CheckOpen());
    CallContext context;
    context.caller = call->caller();
    context.request_id = request.request_id();
    context.payload_digest = PayloadDigest(request);
    environment_.pipelines->DeleteCheckpoint(std::move(context), {name.pipeline, name.checkpoint},
                                             [call](const absl::Status& deleted) {
                                               if (!deleted.ok()) return call->Fail(deleted);
                                               call->Reply(v1::DeleteCheckpointResponse());
                                             });
    return absl::OkStatus();
  }
  PENSTOCK_ASSIGN_OR_RETURN(const auto pipeline, LivePipeline(environment_, call->identity(), name.pipeline));
  PENSTOCK_ASSIGN_OR_RETURN(Admission::Ticket ticket, environment_.admission->Admit(call->caller(), pipeline->name()));
  pipeline->DeleteCheckpoint(ContextOf(call, std::move(ticket)), name.checkpoint, [call](const auto& answer) {
    if (!answer.ok()) return call->Fail(answer.status());
    call->Reply(v1::DeleteCheckpointResponse());
  });
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* StateServiceImpl::PublishCheckpoint(grpc::CallbackServerContext* context,
                                                              const grpc::ByteBuffer* request,
                                                              grpc::ByteBuffer* response) {
  return ServeUnary<v1::PublishCheckpointRequest, v1::Pipeline>(
      gate_.Of("PublishCheckpoint"), context, request, response, kControlMessageBytes, [this](const auto& call) {
        if (absl::Status accepted = Publish(call); !accepted.ok()) call->Fail(accepted);
      });
}

absl::Status StateServiceImpl::Publish(const UnaryCallPtr<v1::PublishCheckpointRequest, v1::Pipeline>& call) {
  const v1::PublishCheckpointRequest& request = call->request();
  PENSTOCK_RETURN_IF_ERROR(CheckRequestId(request.request_id(), true));
  call->set_request_id(request.request_id());
  PENSTOCK_RETURN_IF_ERROR(CheckGivenId(request.checkpoint_id()));
  PENSTOCK_ASSIGN_OR_RETURN(const std::string name, ParsePipelineName(request.pipeline(), "pipeline"));
  // Its own error where it is not there or does not serve.
  PENSTOCK_RETURN_IF_ERROR(LivePipeline(environment_, call->identity(), name).status());
  PENSTOCK_RETURN_IF_ERROR(environment_.admission->CheckOpen());
  PENSTOCK_ASSIGN_OR_RETURN(const PipelineEntry entry, environment_.pipelines->Get(name));
  if (entry.pipeline == nullptr) {
    return Error(absl::StatusCode::kFailedPrecondition, "PIPELINE_NOT_READY",
                 absl::StrCat("pipeline ", name, " does not serve"))
        .With("pipeline", name);
  }
  PipelineRecipe recipe;
  if (!request.checkpoint_id().empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(recipe, RecipeNow(entry));
  }
  CallContext context;
  context.caller = call->caller();
  context.request_id = request.request_id();
  context.session = call->session();
  context.payload_digest = PayloadDigest(request);
  environment_.pipelines->Publish(
      std::move(context), name, request.checkpoint_id(), std::move(recipe),
      [call, epoch = environment_.handles->epoch()](absl::StatusOr<PipelineEntry> published) {
        if (!published.ok()) return call->Fail(published.status());
        call->Reply(ToProto(*published, epoch));
      });
  return absl::OkStatus();
}

bool StateServiceImpl::Exists(const std::string& pipeline) const { return environment_.pipelines->Get(pipeline).ok(); }

grpc::ServerUnaryReactor* StateServiceImpl::ListCheckpoints(grpc::CallbackServerContext* context,
                                                            const grpc::ByteBuffer* request,
                                                            grpc::ByteBuffer* response) {
  return ServeUnary<v1::ListCheckpointsRequest, v1::ListCheckpointsResponse>(
      gate_.Of("ListCheckpoints"), context, request, response, kControlMessageBytes,
      [this](const auto& call) { call->Answer(List(call->identity(), call->request())); });
}

absl::StatusOr<v1::ListCheckpointsResponse> StateServiceImpl::List(const Identity& identity,
                                                                   const v1::ListCheckpointsRequest& request) {
  PENSTOCK_ASSIGN_OR_RETURN(const int size, CheckedPageSize(request.page_size()));
  const std::string scope =
      absl::StrCat("ListCheckpoints ", identity.name, " ", request.parent(), request.automatic() ? " all" : "");
  PENSTOCK_ASSIGN_OR_RETURN(const std::string after, environment_.page_tokens->Read(scope, request.page_token()));
  // One more than asked for tells whether there is another page.
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<CheckpointInfo> found, Checkpoints(identity, request, after, size + 1));
  v1::ListCheckpointsResponse response;
  CheckpointMessages messages;
  for (const CheckpointInfo& info : found) {
    if (response.checkpoints_size() == size) {
      response.set_next_page_token(environment_.page_tokens->Make(scope, response.checkpoints(size - 1).name()));
      break;
    }
    *response.add_checkpoints() = messages.Make(info, Exists(info.pipeline));
  }
  return response;
}

absl::StatusOr<std::vector<CheckpointInfo>> StateServiceImpl::Checkpoints(const Identity& identity,
                                                                          const v1::ListCheckpointsRequest& request,
                                                                          const std::string& after, int limit) const {
  const auto listed = [&](const CheckpointInfo& info) { return request.automatic() || !info.place.automatic; };
  CheckpointName last;
  if (!after.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(last, ParseCheckpointName(after, "page_token"));
  }
  if (request.parent() == kAllPipelines) {
    std::vector<CheckpointInfo> seen;
    std::vector<CheckpointInfo> some;
    do {
      some = environment_.checkpoints->List(last.pipeline, last.checkpoint, limit);
      for (CheckpointInfo& info : some) {
        last = {info.pipeline, info.id};
        const bool shown = listed(info) && identity.Sees(info.pipeline);
        if (static_cast<int>(seen.size()) < limit && shown) seen.push_back(std::move(info));
      }
    } while (static_cast<int>(seen.size()) < limit && static_cast<int>(some.size()) == limit);
    return seen;
  }
  PENSTOCK_ASSIGN_OR_RETURN(const std::string pipeline, ParsePipelineName(request.parent(), "parent"));
  PENSTOCK_RETURN_IF_ERROR(CheckSees(identity, pipeline));
  const std::shared_ptr<CheckpointFolder> folder = environment_.checkpoints->FindFolder(pipeline);
  std::vector<CheckpointInfo> list;
  if (folder != nullptr) list = folder->List();
  if (list.empty()) PENSTOCK_RETURN_IF_ERROR(environment_.pipelines->Get(pipeline).status());
  std::erase_if(list, [&](const CheckpointInfo& info) { return info.id <= last.checkpoint || !listed(info); });
  if (list.size() > static_cast<size_t>(limit)) list.resize(limit);
  return list;
}

grpc::ServerUnaryReactor* StateServiceImpl::WriteParameters(grpc::CallbackServerContext* context,
                                                            const grpc::ByteBuffer* request,
                                                            grpc::ByteBuffer* response) {
  return ServeUnary<v1::WriteParametersRequest, v1::WriteParametersResponse>(
      gate_.Of("WriteParameters"), context, request, response, kSpecificationMessageBytes, [this](const auto& call) {
        if (absl::Status accepted = Write(call); !accepted.ok()) call->Fail(accepted);
      });
}

absl::Status StateServiceImpl::Write(
    const UnaryCallPtr<v1::WriteParametersRequest, v1::WriteParametersResponse>& call) {
  const v1::WriteParametersRequest& request = call->request();
  PENSTOCK_RETURN_IF_ERROR(CheckRequestId(request.request_id(), true));
  call->set_request_id(request.request_id());
  if (request.handles_size() > kMaxWrittenHandles) {
    return InvalidField("handles", absl::StrCat("must have at most ", kMaxWrittenHandles, " entries"),
                        absl::StrCat(request.handles_size()));
  }
  if (request.has_step() && (request.step() < 0 || request.step() > kMaxGivenStep)) {
    return InvalidField("step", "must be between 0 and 2^52", absl::StrCat(request.step()));
  }
  WriteCall write = SettingsOf(request);
  for (int i = 0; i < request.handles_size(); ++i) {
    PENSTOCK_ASSIGN_OR_RETURN(HandleName handle,
                              HandleName::Parse(request.handles(i), absl::StrCat("handles[", i, "]")));
    write.handles.push_back(std::move(handle));
  }
  PENSTOCK_ASSIGN_OR_RETURN(const auto pipeline,
                            FindPipeline(environment_, call->identity(), request.pipeline(), "pipeline"));
  PENSTOCK_ASSIGN_OR_RETURN(Admission::Ticket ticket, environment_.admission->Admit(call->caller(), pipeline->name()));
  pipeline->WriteParameters(ContextOf(call, std::move(ticket)), std::move(write), [call](const auto& answer) {
    if (!answer.ok()) return call->Fail(answer.status());
    v1::WriteParametersResponse response;
    response.set_step(answer->step);
    response.set_state_token(answer->state_token);
    call->Reply(response);
  });
  return absl::OkStatus();
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* StateServiceImpl::ReadParameters(grpc::CallbackServerContext* context,
                                                                             const grpc::ByteBuffer* request) {
  auto stream = std::make_shared<ParameterStream>(gate_.Of("ReadParameters"), environment_, context);
  stream->Start();
  stream->Begin(*request);
  return stream.get();
}

}  // namespace penstock
