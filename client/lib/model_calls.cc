// The calls of PipelineClient about the models in the server's root.

#include <string>
#include <utility>
#include <vector>

#include "client/lib/client_calls.h"
#include "client/lib/pipeline_client.h"

namespace penstock {
namespace {

constexpr absl::Duration kLongestRead = absl::Minutes(10);  // of a model's file, beyond the usual deadline

}  // namespace

std::string ModelName(std::string_view name) {
  constexpr std::string_view kPrefix = "models/";
  return name.starts_with(kPrefix) ? std::string(name) : std::string(kPrefix) + std::string(name);
}

absl::StatusOr<v1::Model> PipelineClient::UploadModel(const std::string& id, std::string_view file,
                                                      const ModelUploadOptions& options) {
  return penstock::UploadModel(runner_, stubs_->model_data, id, file, options);
}

absl::StatusOr<v1::Model> PipelineClient::GetModel(const std::string& name) {
  v1::GetModelRequest request;
  request.set_name(ModelName(name));
  return Call(stubs_->models, &v1::ModelService::Stub::GetModel, request, {}, kLongestRead);
}

absl::StatusOr<std::vector<v1::Model>> PipelineClient::ListModels() {
  // What a file holds is read when it is asked for the first time.
  std::vector<v1::Model> all;
  v1::ListModelsRequest request;
  request.set_page_size(kItemsPerPage);
  do {
    PENSTOCK_ASSIGN_OR_RETURN(v1::ListModelsResponse page,
                              Call(stubs_->models, &v1::ModelService::Stub::ListModels, request, {}, kLongestRead));
    for (v1::Model& model : *page.mutable_models()) all.push_back(std::move(model));
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  return all;
}

absl::Status PipelineClient::DeleteModel(const std::string& name) {
  v1::DeleteModelRequest request;
  request.set_name(ModelName(name));
  return Call(stubs_->models, &v1::ModelService::Stub::DeleteModel, request).status();
}

}  // namespace penstock
