#include "server/rpc/services/handle_service.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/handles/handle_store.h"
#include "server/identity/authenticator.h"
#include "server/rpc/call_context.h"
#include "server/rpc/convert/page_token.h"
#include "server/rpc/convert/payload_digest.h"
#include "server/rpc/convert/proto_convert.h"
#include "server/rpc/convert/status_to_grpc.h"
#include "server/rpc/streams/fetch_stream.h"
#include "server/rpc/streams/put_stream.h"

namespace penstock {
namespace {

constexpr int kMaxHandleNames = 1000;
// Of one reply: with names, times and errors beside them it stays below the 4 MiB that any client of gRPC takes.
constexpr size_t kMaxHandlesBytes = size_t{3} << 20;
// Names and times of so many stay below it, too.
constexpr size_t kMaxRenewAnswers = 10'000;
// A thousand names are more than other control calls may hold.
constexpr int64_t kNamesMessageBytes = int64_t{256} << 10;

// Whole names of handles. A name that can't be read fails the call: its place is in the message.
absl::StatusOr<std::vector<HandleName>> Names(const google::protobuf::RepeatedPtrField<std::string>& texts) {
  if (texts.empty() || texts.size() > kMaxHandleNames) {
    return InvalidField("names", absl::StrCat("must have 1 to ", kMaxHandleNames, " entries"),
                        absl::StrCat(texts.size()));
  }
  std::vector<HandleName> names;
  for (int i = 0; i < texts.size(); ++i) {
    PENSTOCK_ASSIGN_OR_RETURN(HandleName name, HandleName::Parse(texts[i], absl::StrCat("names[", i, "]")));
    names.push_back(std::move(name));
  }
  return names;
}

// Collects answers for a reply. Those that would make it too large are without what the handles hold, and with the
// first words of their errors only.
template <typename Response>
class Answers {
 public:
  void Add(v1::HandleAnswer answer) {
    v1::Handle* handle = answer.has_handle() ? answer.mutable_handle() : nullptr;
    const bool holds = handle != nullptr && handle->tensors_size() + handle->values_size() > 0;
    if (holds && bytes_ + answer.ByteSizeLong() > kMaxHandlesBytes) {
      handle->clear_tensors();
      handle->clear_values();
      handle->set_results_omitted(true);
    }
    google::rpc::Status* error = answer.has_error()                         ? answer.mutable_error()
                                 : handle != nullptr && handle->has_error() ? handle->mutable_error()
                                                                            : nullptr;
    if (error != nullptr && bytes_ + answer.ByteSizeLong() > kMaxHandlesBytes) *error = ShortError(*error);
    bytes_ += answer.ByteSizeLong();
    *response_.add_handles() = std::move(answer);
  }
  const Response& response() const { return response_; }

 private:
  Response response_;
  size_t bytes_ = 0;
};

constexpr char kAllOwners[] = "-";
// Owns nothing: what is looked up in its name is not there.
constexpr char kNobody[] = "";

// Whose handles a call is about: the caller's own, or those of the owner that an admin names. Where anybody else names
// one: nobody's.
absl::StatusOr<std::string> OwnerFor(const Identity& identity, const std::string& named) {
  if (named.empty() || named == identity.name) return identity.name;
  if (named != kAllOwners) PENSTOCK_RETURN_IF_ERROR(CheckIdentityName(named, "owner"));
  return identity.May(Role::kAdmin) ? named : std::string(kNobody);
}

// One's own handles stay one's own, whatever the pattern says; others' are seen on the pipelines that it names.
bool MayTouch(const Identity& identity, const std::string& owner, const HandleName& name) {
  return owner == identity.name || identity.Sees(name.pipeline);
}

// The pipeline of a parent; empty for pipelines/-, all of them.
absl::StatusOr<std::string> Parent(const std::string& parent) {
  if (parent == "pipelines/-") return std::string();
  return ParsePipelineName(parent, "parent");
}

}  // namespace

HandleServiceImpl::HandleServiceImpl(const ServiceEnvironment& environment)
    : environment_(environment),
      puts_(std::make_shared<TensorUploads>(environment.handles, environment.timers, environment.clock)),
      sharing_(environment.handles, environment.clock, environment.memory) {}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* HandleServiceImpl::PutTensors(
    grpc::CallbackServerContext* context) {
  return new PutStream(gate_.Of("PutTensors"), environment_, puts_, context);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* HandleServiceImpl::FetchHandle(grpc::CallbackServerContext* context,
                                                                           const grpc::ByteBuffer* request) {
  auto stream = std::make_shared<FetchStream>(gate_.Of("FetchHandle"), environment_, context);
  stream->Start();
  stream->Begin(*request);
  return stream.get();
}

grpc::ServerUnaryReactor* HandleServiceImpl::WaitHandles(grpc::CallbackServerContext* context,
                                                         const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  return ServeUnary<v1::WaitHandlesRequest, v1::WaitHandlesResponse>(
      gate_.Of("WaitHandles"), context, request, response, kNamesMessageBytes, [this](const auto& call) {
        if (absl::Status accepted = Wait(call); !accepted.ok()) call->Fail(accepted);
      });
}

absl::Status HandleServiceImpl::Wait(const UnaryCallPtr<v1::WaitHandlesRequest, v1::WaitHandlesResponse>& call) {
  const v1::WaitHandlesRequest& request = call->request();
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<HandleName> names, Names(request.names()));
  PENSTOCK_ASSIGN_OR_RETURN(const absl::Duration wait,
                            CheckedDuration(request.wait_for(), absl::Seconds(60), "wait_for"));
  if (!v1::WaitHandlesRequest::Mode_IsValid(request.mode())) {
    return InvalidField("mode", "must be ALL or ANY", absl::StrCat(static_cast<int>(request.mode())));
  }
  const auto mode =
      request.mode() == v1::WaitHandlesRequest::MODE_ANY ? HandleStore::WaitMode::kAny : HandleStore::WaitMode::kAll;
  HandleStore* handles = environment_.handles;
  const int64_t deadline = environment_.clock->NowNanos() + absl::ToInt64Nanoseconds(wait);
  const HandleStore::WaitId id = handles->OnSettled(call->caller(), names, mode, deadline,
                                                    [call, names](std::vector<HandleStore::HandleAnswer> answers) {
                                                      Answers<v1::WaitHandlesResponse> reply;
                                                      for (size_t i = 0; i < names.size(); ++i) {
                                                        reply.Add(ToProto(names[i], answers[i]));
                                                      }
                                                      call->Reply(reply.response());
                                                    });
  call->OnCancelled([handles, id] { handles->CancelWait(id); });
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* HandleServiceImpl::GetHandle(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  return ServeUnary<v1::GetHandleRequest, v1::Handle>(
      gate_.Of("GetHandle"), context, request, response, kControlMessageBytes, [this](const auto& call) {
        const auto name = HandleName::Parse(call->request().name());
        if (!name.ok()) return call->Fail(name.status());
        const auto info = environment_.handles->Get(call->caller(), *name);
        if (!info.ok()) return call->Fail(info.status());
        call->Reply(ToProto(*info));
      });
}

grpc::ServerUnaryReactor* HandleServiceImpl::ListHandles(grpc::CallbackServerContext* context,
                                                         const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  return ServeUnary<v1::ListHandlesRequest, v1::ListHandlesResponse>(
      gate_.Of("ListHandles"), context, request, response, kControlMessageBytes,
      [this](const auto& call) { call->Answer(List(call->identity(), call->request())); });
}

absl::StatusOr<v1::ListHandlesResponse> HandleServiceImpl::List(const Identity& identity,
                                                                const v1::ListHandlesRequest& request) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::string pipeline, Parent(request.parent()));
  PENSTOCK_ASSIGN_OR_RETURN(const int size, CheckedPageSize(request.page_size()));
  const bool all = request.owner() == kAllOwners && identity.May(Role::kAdmin);
  std::string owner = identity.name;
  if (!all) {
    PENSTOCK_ASSIGN_OR_RETURN(owner, OwnerFor(identity, request.owner()));
  }
  const std::string scope = absl::StrCat("ListHandles ", identity.name, " ", request.owner(), " ", pipeline);
  PENSTOCK_ASSIGN_OR_RETURN(const std::string place, environment_.page_tokens->Read(scope, request.page_token()));
  uint64_t after = 0;
  if (!place.empty() && !absl::SimpleAtoi(place, &after)) after = 0;
  HandlePage page = all ? environment_.handles->ListAll(pipeline, after, size)
                        : environment_.handles->List(owner, pipeline, after, size);
  v1::ListHandlesResponse response;
  size_t bytes = 0;
  for (size_t i = 0; i < page.handles.size(); ++i) {
    if (!MayTouch(identity, page.handles[i].owner, page.handles[i].name)) continue;
    v1::Handle handle = ToProto(page.handles[i]);
    if (!request.owner().empty()) handle.set_owner(page.handles[i].owner);
    bytes += handle.ByteSizeLong();
    if (response.handles_size() > 0 && bytes > kMaxHandlesBytes) {
      page.next = page.handles[i - 1].serial;
      break;
    }
    *response.add_handles() = std::move(handle);
  }
  if (page.next != 0) {
    response.set_next_page_token(environment_.page_tokens->Make(scope, absl::StrCat(page.next)));
  }
  return response;
}

grpc::ServerUnaryReactor* HandleServiceImpl::RenewHandles(grpc::CallbackServerContext* context,
                                                          const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  return ServeUnary<v1::RenewHandlesRequest, v1::RenewHandlesResponse>(
      gate_.Of("RenewHandles"), context, request, response, kNamesMessageBytes,
      [this](const auto& call) { call->Answer(Renew(call->caller(), call->request())); });
}

absl::StatusOr<v1::RenewHandlesResponse> HandleServiceImpl::Renew(const std::string& caller,
                                                                  const v1::RenewHandlesRequest& request) {
  PENSTOCK_ASSIGN_OR_RETURN(const absl::Duration lease,
                            environment_.handles->CheckedLease(AsDuration(request.lease())));
  if (!request.parent().empty()) {
    v1::RenewHandlesResponse response;
    if (!request.names().empty()) {
      return InvalidField("parent", "must be empty where names are given", Shortened(request.parent()));
    }
    PENSTOCK_ASSIGN_OR_RETURN(const std::string pipeline, Parent(request.parent()));
    PENSTOCK_ASSIGN_OR_RETURN(const std::vector<RenewedHandle> renewed,
                              environment_.handles->RenewAll(caller, pipeline, lease));
    for (size_t i = 0; i < renewed.size() && i < kMaxRenewAnswers; ++i) {
      *response.add_handles() = ToProto(renewed[i]);
    }
    return response;
  }
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<HandleName> names, Names(request.names()));
  Answers<v1::RenewHandlesResponse> reply;
  for (const HandleName& name : names) reply.Add(ToProto(name, environment_.handles->Renew(caller, name, lease)));
  return reply.response();
}

grpc::ServerUnaryReactor* HandleServiceImpl::ShareHandle(grpc::CallbackServerContext* context,
                                                         const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  return ServeUnary<v1::ShareHandleRequest, v1::Handle>(
      gate_.Of("ShareHandle"), context, request, response, kControlMessageBytes, [this](const auto& call) {
        const absl::Status id = CheckRequestId(call->request().request_id(), false);
        if (!id.ok()) return call->Fail(id);
        call->set_request_id(call->request().request_id());
        call->Answer(Share(call->caller(), call->request()));
      });
}

absl::StatusOr<v1::Handle> HandleServiceImpl::Share(const std::string& caller, const v1::ShareHandleRequest& request) {
  PENSTOCK_ASSIGN_OR_RETURN(const HandleName name, HandleName::Parse(request.name()));
  const std::string& recipient = request.recipient();
  PENSTOCK_RETURN_IF_ERROR(CheckIdentityName(recipient, "recipient"));
  if (!environment_.authenticator->MayExist(recipient)) {
    return Error(absl::StatusCode::kNotFound, "RECIPIENT_UNKNOWN",
                 absl::StrCat("recipient: the identity map does not have ", recipient))
        .With("field", "recipient")
        .With("value", recipient);
  }
  PENSTOCK_ASSIGN_OR_RETURN(const HandleInfo info, sharing_.Share({.caller = caller,
                                                                   .name = name,
                                                                   .recipient = recipient,
                                                                   .lease = AsDuration(request.lease()),
                                                                   .request_id = request.request_id(),
                                                                   .payload_digest = PayloadDigest(request)}));
  v1::Handle handle = ToProto(info);
  handle.set_owner(recipient);
  return handle;
}

grpc::ServerUnaryReactor* HandleServiceImpl::ReleaseHandles(grpc::CallbackServerContext* context,
                                                            const grpc::ByteBuffer* request,
                                                            grpc::ByteBuffer* response) {
  return ServeUnary<v1::ReleaseHandlesRequest, v1::ReleaseHandlesResponse>(
      gate_.Of("ReleaseHandles"), context, request, response, kNamesMessageBytes, [this](const auto& call) {
        const auto names = Names(call->request().names());
        if (!names.ok()) return call->Fail(names.status());
        const auto owner = OwnerFor(call->identity(), call->request().owner());
        if (!owner.ok()) return call->Fail(owner.status());
        Answers<v1::ReleaseHandlesResponse> reply;
        for (const HandleName& name : *names) {
          const std::string whose = MayTouch(call->identity(), *owner, name) ? *owner : kNobody;
          reply.Add(ToProto(name, environment_.handles->Release(whose, name)));
        }
        call->Reply(reply.response());
      });
}

grpc::ServerUnaryReactor* HandleServiceImpl::CancelHandles(grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer* request,
                                                           grpc::ByteBuffer* response) {
  return ServeUnary<v1::CancelHandlesRequest, v1::CancelHandlesResponse>(
      gate_.Of("CancelHandles"), context, request, response, kNamesMessageBytes,
      [this](const auto& call) { call->Answer(Cancel(call->caller(), call->request())); });
}

absl::StatusOr<v1::CancelHandlesResponse> HandleServiceImpl::Cancel(const std::string& caller,
                                                                    const v1::CancelHandlesRequest& request) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<HandleName> names, Names(request.names()));
  v1::CancelHandlesResponse response;
  for (const HandleName& name : names) {
    auto* answer = response.add_answers();
    answer->set_name(ToString(name));
    const absl::StatusOr<CancelEffect> effect = environment_.handles->RequestCancel(caller, name);
    if (!effect.ok()) {
      *answer->mutable_error() = ToRpcStatus(effect.status());
      continue;
    }
    answer->set_effect(*effect == CancelEffect::kCancelled    ? v1::CancelHandlesResponse::EFFECT_CANCELLED
                       : *effect == CancelEffect::kCancelling ? v1::CancelHandlesResponse::EFFECT_CANCELLING
                                                              : v1::CancelHandlesResponse::EFFECT_NOT_CANCELLABLE);
  }
  return response;
}

}  // namespace penstock
