#include "server/rpc/services/result_reply.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/handles/handle_store.h"
#include "engine/tensor/codec.h"
#include "server/rpc/call_context.h"
#include "server/rpc/convert/proto_convert.h"
#include "server/rpc/convert/status_to_grpc.h"
#include "server/rpc/convert/value_convert.h"

namespace penstock {
namespace {

constexpr int64_t kMaxInlineBytes = int64_t{1} << 20;

// Adds the tensors and values of a READY value of at most so many bytes. A call has one value at most.
void AddInline(const ServiceEnvironment& environment, const std::string& caller, const HandleInfo& info,
               int64_t max_bytes, v1::Result* result) {
  if (info.kind != HandleKind::kValue || info.state != HandleState::kReady || info.bytes > max_bytes) {
    return;
  }
  const absl::StatusOr<HandlePin> pin = environment.handles->Pin(caller, info.name);
  if (!pin.ok()) return;  // released meanwhile: the handle alone is the answer
  const absl::StatusOr<std::shared_ptr<const HeldValues>> held = pin->values();
  if (!held.ok()) return;
  for (const NamedTensor& tensor : (*held)->tensors) {
    const absl::StatusOr<at::Tensor> sendable = SendableTensor(tensor.tensor);
    const absl::StatusOr<TensorHeader> header = sendable.ok() ? HeaderOf(tensor.name, *sendable) : sendable.status();
    if (!header.ok()) {
      result->clear_tensors();
      return;
    }
    v1::Tensor* added = result->add_tensors();
    *added->mutable_header() = ToProto(*header);
    const std::string_view bytes = BytesOf(*sendable);
    added->set_data(bytes.data(), bytes.size());
  }
  *result->mutable_values() = ToProto(**held);
}

}  // namespace

absl::StatusOr<ReplyPlan> ReplyPlan::FromProto(const v1::ReplyOptions& options, const HandleStore& handles) {
  ReplyPlan plan;
  PENSTOCK_ASSIGN_OR_RETURN(plan.wait_for, CheckedDuration(options.wait_for(), absl::Seconds(60), "reply.wait_for"));
  if (options.inline_bytes() < 0 || options.inline_bytes() > kMaxInlineBytes) {
    return InvalidField("reply.inline_bytes", absl::StrCat("must lie in [0, ", kMaxInlineBytes, "]"),
                        absl::StrCat(options.inline_bytes()));
  }
  plan.inline_bytes = options.inline_bytes();
  PENSTOCK_ASSIGN_OR_RETURN(plan.lease, handles.CheckedLease(AsDuration(options.lease())));
  PENSTOCK_ASSIGN_OR_RETURN(plan.work_timeout,
                            CheckedDuration(options.work_timeout(), absl::Hours(24), "reply.work_timeout"));
  return plan;
}

void WhenSettled(const ServiceEnvironment& environment, const std::shared_ptr<AnsweredCall>& call,
                 const Accepted& accepted, const ReplyPlan& plan, bool cancel_with_call,
                 std::function<void(const Results&)> reply) {
  const std::vector<HandleName> names = accepted.handles();
  const int64_t deadline = environment.clock->NowNanos() + absl::ToInt64Nanoseconds(plan.wait_for);
  const HandleStore::WaitId wait = environment.handles->OnSettled(
      call->caller(), names, HandleStore::WaitMode::kAll, deadline,
      [environment, call, accepted, names, plan, reply](std::vector<HandleStore::HandleAnswer> answers) {
        Results results;
        for (size_t i = 0; i < names.size(); ++i) {
          v1::Result* result = accepted.outcome.has_value() && names[i] == *accepted.outcome ? &results.outcome
                               : accepted.graph.has_value() && names[i] == *accepted.graph   ? &results.graph
                                                                                             : &results.outputs;
          result->mutable_handle()->set_name(ToString(names[i]));
          if (answers[i].ok()) {
            *result->mutable_handle() = ToProto(*answers[i]);
            AddInline(environment, call->caller(), *answers[i], plan.inline_bytes, result);
          } else {
            *result->mutable_handle()->mutable_error() = ToRpcStatus(answers[i].status());
          }
        }
        reply(results);
      });
  call->OnCancelled([handles = environment.handles, caller = call->caller(), names, wait, cancel_with_call] {
    handles->CancelWait(wait);
    if (!cancel_with_call) return;
    for (const HandleName& name : names) {
      handles->RequestCancel(caller, name).status().IgnoreError();
      handles->Release(caller, name).status().IgnoreError();
    }
  });
}

}  // namespace penstock
