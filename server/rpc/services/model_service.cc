#include "server/rpc/services/model_service.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "server/rpc/admission.h"
#include "server/rpc/convert/model_reply.h"
#include "server/rpc/convert/page_token.h"
#include "server/rpc/convert/status_to_grpc.h"
#include "server/rpc/streams/upload_stream.h"

namespace penstock {
namespace {

absl::StatusOr<std::string> ParseModelName(const std::string& name) {
  const std::string model(absl::StripPrefix(name, kModelPrefix));
  if (model.size() == name.size()) {
    return Error(absl::StatusCode::kInvalidArgument, "NAME_INVALID",
                 absl::StrCat("name: must be models/{model}, got ", Shortened(name)))
        .With("field", "name")
        .With("value", Shortened(name));
  }
  PENSTOCK_RETURN_IF_ERROR(CheckModelName(model, "name"));
  return model;
}

}  // namespace

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ModelServiceImpl::UploadModel(
    grpc::CallbackServerContext* context) {
  return new UploadStream(gate_.Of("UploadModel"), environment_, parts_, context);
}

grpc::ServerUnaryReactor* ModelServiceImpl::GetModel(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  return ServeUnary<v1::GetModelRequest, v1::Model>(gate_.Of("GetModel"), context, request, response,
                                                    kControlMessageBytes, [this](const auto& call) {
                                                      if (absl::Status accepted = Get(call); !accepted.ok())
                                                        call->Fail(accepted);
                                                    });
}

absl::Status ModelServiceImpl::Get(const UnaryCallPtr<v1::GetModelRequest, v1::Model>& call) {
  PENSTOCK_RETURN_IF_ERROR(CheckModelsEnabled(parts_, /*changes=*/false));
  PENSTOCK_ASSIGN_OR_RETURN(std::string name, ParseModelName(call->request().name()));
  parts_.reads->Post([root = parts_.root, call, name = std::move(name)] {
    const absl::StatusOr<ModelDescription> model = root->Describe(name);
    if (!model.ok()) return call->Fail(model.status());
    call->Reply(ToProto(*model, *root, /*layers=*/true));
  });
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* ModelServiceImpl::ListModels(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  return ServeUnary<v1::ListModelsRequest, v1::ListModelsResponse>(
      gate_.Of("ListModels"), context, request, response, kControlMessageBytes, [this](const auto& call) {
        if (absl::Status accepted = List(call); !accepted.ok()) call->Fail(accepted);
      });
}

absl::Status ModelServiceImpl::List(const UnaryCallPtr<v1::ListModelsRequest, v1::ListModelsResponse>& call) {
  PENSTOCK_RETURN_IF_ERROR(CheckModelsEnabled(parts_, /*changes=*/false));
  const std::string scope = "ListModels " + call->caller();
  PENSTOCK_ASSIGN_OR_RETURN(const int size, CheckedPageSize(call->request().page_size()));
  PENSTOCK_ASSIGN_OR_RETURN(const std::string after,
                            environment_.page_tokens->Read(scope, call->request().page_token()));
  parts_.reads->Post([root = parts_.root, tokens = environment_.page_tokens, call, scope, size, after] {
    const absl::StatusOr<ModelRoot::Page> page = root->List(after, size);
    if (!page.ok()) return call->Fail(page.status());
    v1::ListModelsResponse response;
    for (const ModelDescription& model : page->models) {
      *response.add_models() = ToProto(model, *root, /*layers=*/false);
    }
    if (page->more) response.set_next_page_token(tokens->Make(scope, page->models.back().name));
    call->Reply(response);
  });
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* ModelServiceImpl::DeleteModel(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  return ServeUnary<v1::DeleteModelRequest, v1::DeleteModelResponse>(
      gate_.Of("DeleteModel"), context, request, response, kControlMessageBytes, [this](const auto& call) {
        if (absl::Status accepted = Delete(call); !accepted.ok()) call->Fail(accepted);
      });
}

absl::Status ModelServiceImpl::Delete(const UnaryCallPtr<v1::DeleteModelRequest, v1::DeleteModelResponse>& call) {
  PENSTOCK_RETURN_IF_ERROR(CheckModelsEnabled(parts_, /*changes=*/true));
  PENSTOCK_ASSIGN_OR_RETURN(std::string name, ParseModelName(call->request().name()));
  PENSTOCK_RETURN_IF_ERROR(environment_.admission->CheckOpen());
  parts_.jobs->Post([root = parts_.root, call, name = std::move(name)] {
    if (absl::Status deleted = root->Delete(name); !deleted.ok()) return call->Fail(deleted);
    LogInfo("model deleted", {{"model", name}});
    call->Reply(v1::DeleteModelResponse());
  });
  return absl::OkStatus();
}

}  // namespace penstock
