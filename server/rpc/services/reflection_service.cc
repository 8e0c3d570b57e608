#include "server/rpc/services/reflection_service.h"

#include <set>

#include "engine/base/guard.h"
#include "engine/base/status_macros.h"
#include "engine/wire/tensor_header.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "server/rpc/call_context.h"
#include "server/rpc/convert/status_to_grpc.h"
#include "server/rpc/streams/stall_guard.h"
#include "server/rpc/unary_call.h"

namespace penstock {
namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;

// Adds a file after those that it imports.
template <typename Answer>
void AddFile(const FileDescriptor* file, std::set<const FileDescriptor*>* seen, Answer* answer) {
  if (!seen->insert(file).second) return;
  for (int i = 0; i < file->dependency_count(); ++i) AddFile(file->dependency(i), seen, answer);
  google::protobuf::FileDescriptorProto copy;
  file->CopyTo(&copy);
  answer->add_file_descriptor_proto(copy.SerializeAsString());
}

template <typename Response>
void AnswerFile(const FileDescriptor* file, const std::string& wanted, Response* response) {
  if (file == nullptr) {
    auto* error = response->mutable_error_response();
    error->set_error_code(static_cast<int>(grpc::StatusCode::NOT_FOUND));
    error->set_error_message("nothing is called " + Shortened(wanted));
    return;
  }
  std::set<const FileDescriptor*> seen;
  AddFile(file, &seen, response->mutable_file_descriptor_response());
}

}  // namespace

template <typename Base, typename Request, typename Response>
Response ReflectionServiceImpl<Base, Request, Response>::Answer(const Request& request) const {
  const DescriptorPool* pool = DescriptorPool::generated_pool();
  Response response;
  response.set_valid_host(request.host());
  *response.mutable_original_request() = request;
  switch (request.message_request_case()) {
    case Request::kListServices:
      for (const std::string& name : services_) {
        response.mutable_list_services_response()->add_service()->set_name(name);
      }
      break;
    case Request::kFileByFilename:
      AnswerFile(pool->FindFileByName(request.file_by_filename()), request.file_by_filename(), &response);
      break;
    case Request::kFileContainingSymbol:
      AnswerFile(pool->FindFileContainingSymbol(request.file_containing_symbol()), request.file_containing_symbol(),
                 &response);
      break;
    case Request::kFileContainingExtension: {
      const auto& wanted = request.file_containing_extension();
      const auto* type = pool->FindMessageTypeByName(wanted.containing_type());
      const FieldDescriptor* field =
          type == nullptr ? nullptr : pool->FindExtensionByNumber(type, wanted.extension_number());
      AnswerFile(field == nullptr ? nullptr : field->file(), wanted.containing_type(), &response);
      break;
    }
    case Request::kAllExtensionNumbersOfType: {
      const std::string& name = request.all_extension_numbers_of_type();
      const auto* type = pool->FindMessageTypeByName(name);
      if (type == nullptr) {
        AnswerFile(nullptr, name, &response);
        break;
      }
      std::vector<const FieldDescriptor*> extensions;
      pool->FindAllExtensions(type, &extensions);
      auto* answer = response.mutable_all_extension_numbers_response();
      answer->set_base_type_name(name);
      for (const FieldDescriptor* field : extensions) {
        answer->add_extension_number(field->number());
      }
      break;
    }
    case Request::MESSAGE_REQUEST_NOT_SET: {
      auto* error = response.mutable_error_response();
      error->set_error_code(static_cast<int>(grpc::StatusCode::INVALID_ARGUMENT));
      error->set_error_message("message_request: must be set, got nothing");
      break;
    }
  }
  return response;
}

// Reads a question, writes the answer, reads the next; ends when the caller does.
template <typename Base, typename Request, typename Response>
class ReflectionServiceImpl<Base, Request, Response>::Stream final
    : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Stream(ReflectionServiceImpl* service, grpc::CallbackServerContext* context)
      : service_(service),
        context_(context),
        guard_(std::make_shared<StallGuard>(service->timers_, service->clock_, kReflectionPatience)) {
    if (absl::Status entered = Enter(); !entered.ok()) {
      Finish(ToGrpcStatus(entered, context));
      return;
    }
    guard_->Watch(context);
    StartRead(&read_);
  }

 private:
  absl::Status Enter() {
    PENSTOCK_RETURN_IF_ERROR(service_->gate_.Of("ServerReflectionInfo").Enter(*context_).status());
    PENSTOCK_ASSIGN_OR_RETURN(slot_, service_->slots_.Take(HostOf(*context_)));
    return absl::OkStatus();
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      Finish(grpc::Status::OK);
      return;
    }
    guard_->Progress();
    const absl::Status answered = Guarded("the stream", [this]() -> absl::Status {
      Request request;
      PENSTOCK_RETURN_IF_ERROR(ParseMessage(read_, kMaxReflectionBytes, &request));
      read_.Clear();
      written_ = SerializeMessage(service_->Answer(request));
      return absl::OkStatus();
    });
    if (answered.ok()) {
      StartWrite(&written_);
    } else {
      Finish(ToGrpcStatus(answered, context_));
    }
  }

  void OnWriteDone(bool ok) override {
    if (!ok) {
      Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the stream broke off"));
      return;
    }
    guard_->Progress();
    StartRead(&read_);
  }

  void OnDone() override {
    guard_->Stop();
    delete this;
  }

  ReflectionServiceImpl* const service_;
  grpc::CallbackServerContext* const context_;
  const std::shared_ptr<StallGuard> guard_;
  StreamSlots::Slot slot_;
  grpc::ByteBuffer read_;
  grpc::ByteBuffer written_;
};

template <typename Base, typename Request, typename Response>
grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>*
ReflectionServiceImpl<Base, Request, Response>::ServerReflectionInfo(grpc::CallbackServerContext* context) {
  return new Stream(this, context);
}

template class ReflectionServiceImpl<grpc::reflection::v1::ServerReflection::WithRawCallbackMethod_ServerReflectionInfo<
                                         grpc::reflection::v1::ServerReflection::Service>,
                                     grpc::reflection::v1::ServerReflectionRequest,
                                     grpc::reflection::v1::ServerReflectionResponse>;
template class ReflectionServiceImpl<
    grpc::reflection::v1alpha::ServerReflection::WithRawCallbackMethod_ServerReflectionInfo<
        grpc::reflection::v1alpha::ServerReflection::Service>,
    grpc::reflection::v1alpha::ServerReflectionRequest, grpc::reflection::v1alpha::ServerReflectionResponse>;

}  // namespace penstock
