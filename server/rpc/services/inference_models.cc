#include "server/rpc/convert/inference_models.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/resource_id.h"
#include "engine/base/status_macros.h"
#include "engine/serve/pipeline_table.h"
#include "engine/wire/tensor_header.h"
#include "server/rpc/admission.h"
#include "server/rpc/audit_note.h"
#include "server/rpc/call_context.h"
#include "server/rpc/services/inference_service.h"

// Which models there are, what they take and give, and what was counted of them.

namespace penstock {
namespace {

absl::Status NotSupported(const std::string& field, const char* problem, const std::string& value) {
  return Error(absl::StatusCode::kUnimplemented, "FEATURE_DISABLED",
               absl::StrCat(field, ": ", problem, ", got ", Shortened(value)))
      .With("field", field)
      .With("value", Shortened(value));
}

absl::Status CheckRepository(const std::string& name) {
  return name.empty() ? absl::OkStatus()
                      : NotSupported("repository_name", "there is one repository, without a name", name);
}

CallContext ContextOf(const AnsweredCall& call) {
  CallContext context;
  context.caller = call.caller();
  return context;
}

// `verb`: what failed.
absl::Status CheckModel(const PipelineTable& pipelines, const Identity& identity, const std::string& name,
                        const char* verb) {
  if (IsResourceId(name) && identity.Sees(name) && pipelines.Get(name).ok()) return absl::OkStatus();
  return Error(absl::StatusCode::kNotFound, "PIPELINE_NOT_FOUND",
               absl::StrCat("failed to ", verb, ": there is no pipeline ", Shortened(name)))
      .With("pipeline", Shortened(name));
}

}  // namespace

grpc::ServerUnaryReactor* InferenceServiceImpl::ModelConfig(grpc::CallbackServerContext* context,
                                                            const grpc::ByteBuffer* request,
                                                            grpc::ByteBuffer* response) {
  return ServeUnary<inference::ModelConfigRequest, inference::ModelConfigResponse>(
      gate_.Of("ModelConfig"), context, request, response, kControlMessageBytes, [this](const auto& call) {
        const auto model = FindModel(call->identity(), call->request().name(), call->request().version(), "name");
        if (!model.ok()) return call->Fail(model.status());
        inference::ModelConfigResponse answer;
        *answer.mutable_config() = ConfigOf((*model)->name(), (*model)->pipeline().signature());
        call->Reply(answer);
      });
}

grpc::ServerUnaryReactor* InferenceServiceImpl::ModelStatistics(grpc::CallbackServerContext* context,
                                                                const grpc::ByteBuffer* request,
                                                                grpc::ByteBuffer* response) {
  return ServeUnary<inference::ModelStatisticsRequest, inference::ModelStatisticsResponse>(
      gate_.Of("ModelStatistics"), context, request, response, kControlMessageBytes,
      [this](const auto& call) { call->Answer(Statistics(call->identity(), call->request())); });
}

grpc::ServerUnaryReactor* InferenceServiceImpl::RepositoryIndex(grpc::CallbackServerContext* context,
                                                                const grpc::ByteBuffer* request,
                                                                grpc::ByteBuffer* response) {
  return ServeUnary<inference::RepositoryIndexRequest, inference::RepositoryIndexResponse>(
      gate_.Of("RepositoryIndex"), context, request, response, kControlMessageBytes,
      [this](const auto& call) { call->Answer(Index(call->identity(), call->request())); });
}

grpc::ServerUnaryReactor* InferenceServiceImpl::RepositoryModelLoad(grpc::CallbackServerContext* context,
                                                                    const grpc::ByteBuffer* request,
                                                                    grpc::ByteBuffer* response) {
  return ServeUnary<inference::RepositoryModelLoadRequest, inference::RepositoryModelLoadResponse>(
      gate_.Of("RepositoryModelLoad"), context, request, response, kControlMessageBytes, [this](const auto& call) {
        if (absl::Status accepted = Load(call); !accepted.ok()) call->Fail(accepted);
      });
}

grpc::ServerUnaryReactor* InferenceServiceImpl::RepositoryModelUnload(grpc::CallbackServerContext* context,
                                                                      const grpc::ByteBuffer* request,
                                                                      grpc::ByteBuffer* response) {
  return ServeUnary<inference::RepositoryModelUnloadRequest, inference::RepositoryModelUnloadResponse>(
      gate_.Of("RepositoryModelUnload"), context, request, response, kControlMessageBytes, [this](const auto& call) {
        if (absl::Status accepted = Unload(call); !accepted.ok()) call->Fail(accepted);
      });
}

absl::StatusOr<inference::ModelStatisticsResponse> InferenceServiceImpl::Statistics(
    const Identity& identity, const inference::ModelStatisticsRequest& request) const {
  inference::ModelStatisticsResponse answer;
  const auto add = [&](const ServedPipeline& model) {
    if (const auto metrics = model.metrics(); metrics != nullptr) {
      *answer.add_model_stats() = StatisticsOf(model.name(), *metrics, model.inference_times());
    }
  };
  if (!request.name().empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(const auto model, FindModel(identity, request.name(), request.version(), "name"));
    add(*model);
    return answer;
  }
  for (const PipelineEntry& entry : environment_.pipelines->List("", std::numeric_limits<int>::max())) {
    const bool ready = entry.state == PipelineEntry::State::kReady && entry.pipeline != nullptr;
    if (ready && identity.Sees(entry.name)) add(*entry.pipeline);
  }
  return answer;
}

absl::StatusOr<inference::RepositoryIndexResponse> InferenceServiceImpl::Index(
    const Identity& identity, const inference::RepositoryIndexRequest& request) const {
  PENSTOCK_RETURN_IF_ERROR(CheckRepository(request.repository_name()));
  inference::RepositoryIndexResponse answer;
  for (const PipelineEntry& entry : environment_.pipelines->List("", std::numeric_limits<int>::max())) {
    const bool wanted = !request.ready() || entry.state == PipelineEntry::State::kReady;
    if (!wanted || !identity.Sees(entry.name)) continue;
    for (auto& index : IndexOf(entry)) {
      if (!request.ready() || index.state() == "READY") *answer.add_models() = std::move(index);
    }
  }
  return answer;
}

// Other servers' clients look for "failed to load".
absl::Status InferenceServiceImpl::Load(
    const UnaryCallPtr<inference::RepositoryModelLoadRequest, inference::RepositoryModelLoadResponse>& call) const {
  const inference::RepositoryModelLoadRequest& request = call->request();
  PENSTOCK_RETURN_IF_ERROR(CheckRepository(request.repository_name()));
  for (const auto& [key, value] : request.parameters()) {
    return NotSupported("parameters",
                        "failed to load: a pipeline is made by CreatePipeline, and no parameter changes it", key);
  }
  if (call->note() != nullptr) call->note()->SetPipeline(request.model_name());
  PENSTOCK_RETURN_IF_ERROR(CheckModel(*environment_.pipelines, call->identity(), request.model_name(), "load"));
  PENSTOCK_RETURN_IF_ERROR(environment_.admission->CheckOpen());
  environment_.pipelines->Load(ContextOf(*call), request.model_name(), [call](const auto& entry) {
    if (!entry.ok()) return call->Fail(WithPrefix(entry.status(), "failed to load: "));
    call->Reply(inference::RepositoryModelLoadResponse());
  });
  return absl::OkStatus();
}

absl::Status InferenceServiceImpl::Unload(
    const UnaryCallPtr<inference::RepositoryModelUnloadRequest, inference::RepositoryModelUnloadResponse>& call) const {
  const inference::RepositoryModelUnloadRequest& request = call->request();
  PENSTOCK_RETURN_IF_ERROR(CheckRepository(request.repository_name()));
  for (const auto& [key, value] : request.parameters()) {
    if (key != "unload_dependents") {  // no model is made of others
      return NotSupported("parameters", "failed to unload: of parameters, only unload_dependents is known", key);
    }
  }
  if (call->note() != nullptr) call->note()->SetPipeline(request.model_name());
  PENSTOCK_RETURN_IF_ERROR(CheckModel(*environment_.pipelines, call->identity(), request.model_name(), "unload"));
  PENSTOCK_RETURN_IF_ERROR(environment_.admission->CheckOpen());
  environment_.pipelines->Unload(ContextOf(*call), request.model_name(), [call](const auto& entry) {
    if (!entry.ok()) return call->Fail(WithPrefix(entry.status(), "failed to unload: "));
    call->Reply(inference::RepositoryModelUnloadResponse());
  });
  return absl::OkStatus();
}

}  // namespace penstock
