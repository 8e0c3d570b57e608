#include "server/rpc/convert/inference_models.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/serve/pipeline_table.h"
#include "engine/wire/tensor_header.h"
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
      gate_.Of("RepositoryModelLoad"), context, request, response, kControlMessageBytes,
      [this](const auto& call) { call->Answer(Load(call->identity(), call->request())); });
}

absl::StatusOr<inference::ModelStatisticsResponse> InferenceServiceImpl::Statistics(
    const Identity& identity, const inference::ModelStatisticsRequest& request) const {
  inference::ModelStatisticsResponse answer;
  const auto add = [&](const ServedPipeline& model) {
    if (const auto metrics = model.metrics(); metrics != nullptr) {
      *answer.add_model_stats() = StatisticsOf(model.name(), *metrics);
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
absl::StatusOr<inference::RepositoryModelLoadResponse> InferenceServiceImpl::Load(
    const Identity& identity, const inference::RepositoryModelLoadRequest& request) const {
  PENSTOCK_RETURN_IF_ERROR(CheckRepository(request.repository_name()));
  for (const auto& [key, value] : request.parameters()) {
    return NotSupported("parameters",
                        "failed to load: a pipeline is made by CreatePipeline, and no parameter changes it", key);
  }
  const auto model = FindModel(identity, request.model_name(), "", "model_name");
  if (absl::IsNotFound(model.status())) {
    return Error(absl::StatusCode::kNotFound, "PIPELINE_NOT_FOUND",
                 absl::StrCat("failed to load: there is no pipeline ", Shortened(request.model_name())))
        .With("pipeline", Shortened(request.model_name()));
  }
  PENSTOCK_RETURN_IF_ERROR(model.status());
  return inference::RepositoryModelLoadResponse();
}

}  // namespace penstock
