#include "server/rpc/call_followers.h"

#include <grpc/census.h>
#include <grpc/grpc.h>

#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/guard.h"
#include "server/rpc/convert/status_to_grpc.h"

namespace penstock {
namespace {

using grpc::experimental::InterceptionHookPoints;

std::vector<std::string_view> Values(const grpc::ServerContextBase& context, const char* key) {
  std::vector<std::string_view> values;
  const auto [begin, end] = context.client_metadata().equal_range(key);
  for (auto one = begin; one != end; ++one) values.emplace_back(one->second.data(), one->second.size());
  return values;
}

// Either may be null.
struct Followers {
  std::shared_ptr<RequestTrace> trace;
  std::shared_ptr<AuditNote> note;

  void Finish(const grpc::Status& status) const {
    if (trace != nullptr) trace->Finish(static_cast<int>(status.error_code()), status.error_message());
    if (note != nullptr) note->Finish(static_cast<int>(status.error_code()), ReasonIn(status));
  }
};

class CallFollowing final : public grpc::experimental::Interceptor {
 public:
  CallFollowing(Followers followers, grpc_call* call) : followers_(std::move(followers)) {
    // The library keeps one pointer per call for tracing, and looks at it in a filter that is not linked.
    grpc_census_call_set_context(call, reinterpret_cast<census_context*>(this));
  }

  // A call that ends without a status of ours was cancelled.
  ~CallFollowing() override {
    Guarded("what follows a call", [this] { followers_.Finish(grpc::Status::CANCELLED); }).IgnoreError();
  }

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      Guarded("what follows a call",
              [&] {  // without it the call ends as it does
                const grpc::Status status = methods->GetSendStatus();
                if (!status.ok() && followers_.trace != nullptr) {
                  methods->ModifySendStatus(WithErrorValues(status, followers_.trace->Ids()));
                }
                followers_.Finish(status);
              })
          .IgnoreError();
    }
    methods->Proceed();
  }

  const Followers& followers() const { return followers_; }

 private:
  const Followers followers_;
};

const Followers* FollowersOf(grpc::ServerContextBase& context) {
  if (context.c_call() == nullptr) return nullptr;
  census_context* kept = grpc_census_call_get_context(context.c_call());
  return kept == nullptr ? nullptr : &reinterpret_cast<const CallFollowing*>(kept)->followers();
}

}  // namespace

grpc::experimental::Interceptor* CallFollowersFactory::CreateServerInterceptor(
    grpc::experimental::ServerRpcInfo* info) {
  const std::string_view path = info->method();
  grpc::ServerContextBase* context = info->server_context();
  if (context->c_call() == nullptr) return nullptr;
  Followers followers;
  if (tracer_ != nullptr && path.substr(0, 6) != "/grpc.") {
    followers.trace =
        tracer_->Begin(path, ReadTraceContext(Values(*context, "traceparent"), Values(*context, "tracestate")));
  }
  if (audit_ != nullptr) followers.note = std::make_shared<AuditNote>(audit_, clock_, path, context->peer());
  if (followers.trace == nullptr && followers.note == nullptr) return nullptr;
  return new CallFollowing(std::move(followers), context->c_call());
}

std::shared_ptr<RequestTrace> TraceOf(grpc::ServerContextBase& context) {
  const Followers* followers = FollowersOf(context);
  return followers == nullptr ? nullptr : followers->trace;
}

std::shared_ptr<AuditNote> AuditNoteOf(grpc::ServerContextBase& context) {
  const Followers* followers = FollowersOf(context);
  return followers == nullptr ? nullptr : followers->note;
}

void NoteTarget(grpc::ServerContextBase& context, const google::protobuf::Message& request) {
  if (const auto note = AuditNoteOf(context); note != nullptr) note->SetTarget(request);
}

}  // namespace penstock
