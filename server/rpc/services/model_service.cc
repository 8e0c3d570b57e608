#include "server/rpc/services/model_service.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "server/rpc/admission.h"
#include "server/rpc/convert/page_token.h"
#include "server/rpc/convert/proto_convert.h"
#include "server/rpc/convert/status_to_grpc.h"
#include "server/rpc/streams/upload_stream.h"

namespace penstock {
namespace {

constexpr char kPrefix[] = "models/";

absl::StatusOr<std::string> ParseModelName(const std::string& name) {
  const std::string model(absl::StripPrefix(name, kPrefix));
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

absl::Status CheckModelsEnabled(const ModelParts& parts, bool changes) {
  const char* flag = !parts.root->exists()                 ? "--model-root"
                     : changes && parts.uploads == nullptr ? "--allow-model-upload"
                                                           : nullptr;
  if (flag == nullptr) return absl::OkStatus();
  return Error(absl::StatusCode::kUnimplemented, "FEATURE_DISABLED",
               absl::StrCat("this daemon was started without ", flag))
      .With("field", flag)
      .With("value", "off");
}

v1::Model ToProto(const ModelDescription& model, const ModelRoot& root, bool layers) {
  v1::Model message;
  message.set_name(kPrefix + model.name);
  message.set_byte_size(model.bytes);
  *message.mutable_create_time() = ToTimestamp(model.changed);
  if (!model.error.ok()) {
    *message.mutable_error() = ToRpcStatus(model.error);
    return message;
  }
  message.set_digest(model.digest);
  *message.mutable_signature() = ToProto(model.signature);
  for (const ModelDescription::Dimension& dimension : model.dimensions) {
    v1::ModelDimension* added = message.add_dimensions();
    added->set_name(dimension.name);
    added->set_least(dimension.range.least);
    added->set_most(dimension.range.most);
    for (const std::string& input : dimension.inputs) added->add_inputs(input);
  }
  message.set_parameters(model.parameters);
  message.set_parameter_bytes(model.parameter_bytes);
  message.set_buffer_bytes(model.buffer_bytes);
  message.set_nodes(model.nodes);
  for (const auto& [name, calls] : model.operators) {
    v1::ModelOperator* added = message.add_operators();
    added->set_name(name);
    added->set_calls(calls);
  }
  for (const ModelDescription::LayerInfo& layer : model.layers) {
    if (!layers) break;
    v1::ModelLayer* added = message.add_layers();
    added->set_name(layer.name);
    added->set_module(layer.module);
    added->set_parameters(layer.parameters);
  }
  if (layers) message.mutable_tied_names()->insert(model.tied_names.begin(), model.tied_names.end());
  message.set_evaluation_graph(model.evaluation_graph);
  message.set_training_graph(model.training_graph);
  if (root.options().users) {
    for (const std::string& pipeline : root.options().users(model.name)) message.add_pipelines("pipelines/" + pipeline);
  }
  return message;
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ModelServiceImpl::UploadModel(
    grpc::CallbackServerContext* context) {
  return new UploadStream(environment_, parts_, context);
}

grpc::ServerUnaryReactor* ModelServiceImpl::GetModel(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  return ServeUnary<v1::GetModelRequest, v1::Model>(context, request, response, kControlMessageBytes,
                                                    [this](const auto& call) {
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
      context, request, response, kControlMessageBytes, [this](const auto& call) {
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
      context, request, response, kControlMessageBytes, [this](const auto& call) {
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
