#include "server/rpc/services/inference_service.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/handles/handle_store.h"
#include "engine/serve/pipeline_table.h"
#include "engine/wire/tensor_header.h"
#include "server/rpc/admission.h"
#include "server/rpc/call_context.h"
#include "server/rpc/call_followers.h"
#include "server/rpc/convert/inference_models.h"
#include "server/rpc/convert/inference_request.h"

namespace penstock {
namespace {

using inference::ModelMetadataResponse;

void Describe(const std::vector<TensorSignature>& signatures,
              google::protobuf::RepeatedPtrField<ModelMetadataResponse::TensorMetadata>* list) {
  for (const TensorSignature& signature : signatures) {
    if (signature.any) continue;  // the protocol has no word for it
    auto* tensor = list->Add();
    tensor->set_name(signature.name);
    tensor->set_datatype(std::string(DataTypeName(signature.type)));
    for (int64_t dimension : signature.shape) tensor->add_shape(dimension);
  }
}

// The protocol has no words for what is no tensor.
absl::StatusOr<NamedTensors> TensorsOf(const HandlePin& pin) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::shared_ptr<const HeldValues> held, pin.values());
  if (held->values.empty()) return held->tensors;
  const std::string field = absl::StrCat("outputs[", held->values[0].name, "]");
  const std::string type = held->values[0].value.TypeName();
  return Error(absl::StatusCode::kInvalidArgument, "WRONG_TYPE",
               absl::StrCat(field, ": expected Tensor, but got ", type, ", which this protocol does not carry"))
      .With("field", field)
      .With("value", type);
}

// Replies to an inference when its outputs have settled, and lets go of the handle that held them.
void AnswerWhenSettled(const ServiceEnvironment& environment, const std::shared_ptr<AnsweredCall>& call,
                       inference::ModelInferRequest request, const HandleName& outputs) {
  HandleStore* handles = environment.handles;
  auto pin = handles->Pin(call->caller(), outputs);
  if (!pin.ok()) return call->Fail(pin.status());
  auto kept = std::make_shared<HandlePin>(*std::move(pin));
  const HandleStore::WaitId wait = handles->OnSettled(
      call->caller(), {outputs}, HandleStore::WaitMode::kAll, std::numeric_limits<int64_t>::max(),
      [handles, call, outputs, kept, request = std::move(request)](const auto&) {
        const absl::StatusOr<NamedTensors> tensors = TensorsOf(*kept);
        absl::StatusOr<grpc::ByteBuffer> answer = tensors.ok() ? EncodeAnswer(request, *tensors) : tensors.status();
        handles->Release(call->caller(), outputs).status().IgnoreError();
        if (answer.ok()) {
          call->ReplyBytes(*std::move(answer));
        } else {
          call->Fail(answer.status());
        }
      });
  call->OnCancelled([handles, caller = call->caller(), outputs, wait] {
    handles->CancelWait(wait);
    handles->RequestCancel(caller, outputs).status().IgnoreError();
    handles->Release(caller, outputs).status().IgnoreError();
  });
}

}  // namespace

absl::StatusOr<std::shared_ptr<ServedPipeline>> InferenceServiceImpl::FindModel(const Identity& identity,
                                                                                const std::string& name,
                                                                                const std::string& version,
                                                                                const char* field) const {
  PENSTOCK_RETURN_IF_ERROR(CheckIdentifier(name, field));
  PENSTOCK_ASSIGN_OR_RETURN(std::shared_ptr<ServedPipeline> model, LivePipeline(environment_, identity, name));
  if (const absl::Status there = model->CheckVersion(version); !there.ok()) return WithValue(there, "pipeline", name);
  return model;
}

grpc::ServerUnaryReactor* InferenceServiceImpl::ServerLive(grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer* request,
                                                           grpc::ByteBuffer* response) {
  return ServeUnary<inference::ServerLiveRequest, inference::ServerLiveResponse>(
      gate_.Of("ServerLive"), context, request, response, kControlMessageBytes, [](const auto& call) {
        inference::ServerLiveResponse answer;
        answer.set_live(true);
        call->Reply(answer);
      });
}

grpc::ServerUnaryReactor* InferenceServiceImpl::ServerReady(grpc::CallbackServerContext* context,
                                                            const grpc::ByteBuffer* request,
                                                            grpc::ByteBuffer* response) {
  return ServeUnary<inference::ServerReadyRequest, inference::ServerReadyResponse>(
      gate_.Of("ServerReady"), context, request, response, kControlMessageBytes, [this](const auto& call) {
        inference::ServerReadyResponse answer;
        answer.set_ready(options_.ready());
        call->Reply(answer);
      });
}

grpc::ServerUnaryReactor* InferenceServiceImpl::ModelReady(grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer* request,
                                                           grpc::ByteBuffer* response) {
  return ServeUnary<inference::ModelReadyRequest, inference::ModelReadyResponse>(
      gate_.Of("ModelReady"), context, request, response, kControlMessageBytes, [this](const auto& call) {
        inference::ModelReadyResponse answer;
        const auto model = FindModel(call->identity(), call->request().name(), call->request().version(), "name");
        answer.set_ready(options_.ready() && model.ok() && (*model)->CheckReady(call->request().version()).ok());
        call->Reply(answer);
      });
}

grpc::ServerUnaryReactor* InferenceServiceImpl::ServerMetadata(grpc::CallbackServerContext* context,
                                                               const grpc::ByteBuffer* request,
                                                               grpc::ByteBuffer* response) {
  return ServeUnary<inference::ServerMetadataRequest, inference::ServerMetadataResponse>(
      gate_.Of("ServerMetadata"), context, request, response, kControlMessageBytes, [this](const auto& call) {
        inference::ServerMetadataResponse answer;
        answer.set_name("penstock");
        answer.set_version(options_.version);
        for (const char* works : {"binary_tensor_data", "logging", "model_configuration", "model_repository",
                                  "parameters", "statistics", "trace"})
          answer.add_extensions(works);
        call->Reply(answer);
      });
}

grpc::ServerUnaryReactor* InferenceServiceImpl::ModelMetadata(grpc::CallbackServerContext* context,
                                                              const grpc::ByteBuffer* request,
                                                              grpc::ByteBuffer* response) {
  return ServeUnary<inference::ModelMetadataRequest, ModelMetadataResponse>(
      gate_.Of("ModelMetadata"), context, request, response, kControlMessageBytes, [this](const auto& call) {
        const auto model = FindModel(call->identity(), call->request().name(), call->request().version(), "name");
        if (!model.ok()) return call->Fail(model.status());
        const ModelSignature& signature = (*model)->pipeline().signature();
        ModelMetadataResponse answer;
        answer.set_name(call->request().name());
        for (const std::string& version : VersionsOf((*model)->publication())) answer.add_versions(version);
        answer.set_platform(kModelPlatform);
        Describe(signature.inputs, answer.mutable_inputs());
        Describe(signature.outputs, answer.mutable_outputs());
        call->Reply(answer);
      });
}

grpc::ServerUnaryReactor* InferenceServiceImpl::ModelInfer(grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer* request,
                                                           grpc::ByteBuffer* response) {
  return RunUnary(std::make_shared<UnaryCallBase>(gate_.Of("ModelInfer"), context, response),
                  [&](const std::shared_ptr<UnaryCallBase>& call) {
                    if (absl::Status accepted = Infer(call, *request); !accepted.ok()) call->Fail(accepted);
                  });
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* InferenceServiceImpl::ModelStreamInfer(
    grpc::CallbackServerContext* context) {
  const auto stream = std::make_shared<InferStream>(
      &streams_, gate_.Of("ModelStreamInfer"), environment_, context,
      [this](const std::shared_ptr<StreamedRequest>& call, const grpc::ByteBuffer& request) {
        if (absl::Status accepted = Infer(call, request); !accepted.ok()) call->Fail(accepted);
      });
  stream->Begin();
  return stream.get();
}

absl::Status InferenceServiceImpl::Infer(const std::shared_ptr<AnsweredCall>& call, const grpc::ByteBuffer& bytes) {
  const auto size = static_cast<int64_t>(bytes.Length());
  PENSTOCK_RETURN_IF_ERROR(call->HoldMessage(environment_.memory, size));
  const ReceivedMessage received(bytes);
  PENSTOCK_ASSIGN_OR_RETURN(SplitInferRequest request, SplitRequest(received.pieces()));
  const inference::ModelInferRequest& message = request.message;
  call->set_client_id(message.id());
  if (call->note() != nullptr) call->note()->SetPipeline(message.model_name());
  PENSTOCK_ASSIGN_OR_RETURN(const auto model,
                            FindModel(call->identity(), message.model_name(), message.model_version(), "model_name"));
  PENSTOCK_ASSIGN_OR_RETURN(const InferenceParameters parameters, ReadParameters(message));
  PENSTOCK_ASSIGN_OR_RETURN(Admission::Ticket ticket, environment_.admission->Admit(call->caller(), model->name()));
  call->Keep(ticket);
  CallContext context;
  context.place = std::move(ticket);
  context.caller = call->caller();
  context.work_timeout = parameters.timeout;
  // Before the tensors are taken out of the message, which has more bytes than they.
  PENSTOCK_ASSIGN_OR_RETURN(
      MemoryReservation inputs,
      TakeMemory(environment_.memory, {MemoryClass::kInputs, call->caller(), model->name()}, size));
  context.inputs_held = std::make_shared<MemoryReservation>(std::move(inputs));
  context.observer = call->trace();
  if (call->trace() != nullptr) call->trace()->Set("penstock.pipeline", model->name());
  InferCall infer;
  infer.reply_bytes = std::numeric_limits<int64_t>::max();
  infer.version = message.model_version();
  infer.request.priority = parameters.priority;
  for (const auto& output : message.outputs()) infer.request.outputs.push_back(output.name());
  PENSTOCK_ASSIGN_OR_RETURN(infer.inputs, DecodeInputs(request));
  PENSTOCK_ASSIGN_OR_RETURN(const Accepted accepted, model->Infer(std::move(context), std::move(infer)));
  inference::ModelInferRequest echo;  // what the answer repeats; the inputs are not needed any more
  echo.set_model_name(message.model_name());
  echo.set_model_version(absl::StrCat(accepted.version));
  echo.set_id(message.id());
  AnswerWhenSettled(environment_, call, std::move(echo), *accepted.outputs);
  return absl::OkStatus();
}

}  // namespace penstock
