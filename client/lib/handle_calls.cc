// The calls of PipelineClient about handles and their tensors.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/lib/client_calls.h"
#include "client/lib/deadline.h"
#include "client/lib/durations.h"
#include "client/lib/pipeline_client.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"

namespace penstock {
namespace {

constexpr absl::Duration kLongestWait = absl::Seconds(60);  // that the server grants one call
constexpr absl::Duration kLastDuty = absl::Seconds(10);     // of a release after CancelCalls()

}  // namespace

absl::StatusOr<v1::Handle> PipelineClient::PutTensors(const std::string& pipeline, std::span<const HostTensor> tensors,
                                                      const UploadOptions& options) {
  return UploadTensors(runner_, stubs_->tensor_handles, PipelineName(pipeline), tensors, options);
}

absl::StatusOr<FetchedHandle> PipelineClient::FetchHandle(const std::string& name, const FetchOptions& options) {
  return DownloadHandle(runner_, stubs_->tensor_handles, name, options);
}

absl::StatusOr<v1::WaitHandlesResponse> PipelineClient::WaitHandles(const v1::WaitHandlesRequest& request) {
  return Call(stubs_->handles, &v1::HandleService::Stub::WaitHandles, request, "", FromMessage(request.wait_for()));
}

absl::StatusOr<v1::Handle> PipelineClient::GetHandle(const std::string& name) {
  v1::GetHandleRequest request;
  request.set_name(name);
  return Call(stubs_->handles, &v1::HandleService::Stub::GetHandle, request);
}

absl::StatusOr<std::vector<v1::Handle>> PipelineClient::ListHandles(const std::string& parent,
                                                                    const std::string& owner) {
  v1::ListHandlesRequest request;
  request.set_owner(owner);
  request.set_parent(PipelineName(parent));
  return ListAll<v1::Handle>(stubs_->handles, &v1::HandleService::Stub::ListHandles, request,
                             [](v1::ListHandlesResponse& page) { return page.mutable_handles(); });
}

absl::StatusOr<v1::RenewHandlesResponse> PipelineClient::RenewHandles(const v1::RenewHandlesRequest& request) {
  return Call(stubs_->handles, &v1::HandleService::Stub::RenewHandles, request);
}

absl::StatusOr<v1::Handle> PipelineClient::ShareHandle(v1::ShareHandleRequest request) {
  FillRequestId(&request);
  return Call(stubs_->handles, &v1::HandleService::Stub::ShareHandle, request, request.request_id());
}

absl::StatusOr<v1::ReleaseHandlesResponse> PipelineClient::ReleaseHandles(std::span<const std::string> names,
                                                                          const std::string& owner) {
  v1::ReleaseHandlesRequest request;
  request.set_owner(owner);
  request.mutable_names()->Add(names.begin(), names.end());
  return Call(stubs_->handles, &v1::HandleService::Stub::ReleaseHandles, request);
}

void PipelineClient::GiveBack(std::span<const std::string> names) {
  if (ReleaseHandles(names).ok() || !runner_.cancelled()) return;
  v1::ReleaseHandlesRequest request;
  request.mutable_names()->Add(names.begin(), names.end());
  last_runner_
      .Run(kLastDuty, {},
           [&](grpc::ClientContext& context) {
             v1::ReleaseHandlesResponse response;
             return DecodeCallError(stubs_->handles.ReleaseHandles(&context, request, &response), context);
           })
      .IgnoreError();
}

absl::StatusOr<v1::CancelHandlesResponse> PipelineClient::CancelHandles(std::span<const std::string> names) {
  v1::CancelHandlesRequest request;
  request.mutable_names()->Add(names.begin(), names.end());
  return Call(stubs_->handles, &v1::HandleService::Stub::CancelHandles, request);
}

absl::StatusOr<v1::Handle> PipelineClient::AwaitHandle(const std::string& name, absl::Duration timeout) {
  timeout = std::min(timeout, runner_.left());
  const int64_t end = DeadlineAfter(runner_.clock(), timeout);
  while (true) {
    const absl::Duration left = absl::Nanoseconds(end - runner_.clock()->NowNanos());
    v1::WaitHandlesRequest request;
    request.add_names(name);
    *request.mutable_wait_for() = ToMessage(std::clamp(left, absl::ZeroDuration(), kLongestWait));
    PENSTOCK_ASSIGN_OR_RETURN(v1::WaitHandlesResponse response, WaitHandles(request));
    if (response.handles_size() != 1) {
      return Error(absl::StatusCode::kInternal, "BUG", "the server answered for other handles than asked for");
    }
    if (response.handles(0).has_error()) return StatusFromMessage(response.handles(0).error());
    v1::Handle& handle = *response.mutable_handles(0)->mutable_handle();
    if (handle.state() == v1::HANDLE_STATE_READY) return std::move(handle);
    if (handle.has_error()) return StatusFromMessage(handle.error());
    if (handle.state() != v1::HANDLE_STATE_PENDING) {
      return Error(absl::StatusCode::kNotFound, "HANDLE_RELEASED", "the handle holds nothing any more")
          .With("handle", name);
    }
    if (left <= kLongestWait) {
      return Error(absl::StatusCode::kDeadlineExceeded, "HANDLE_PENDING",
                   absl::StrCat("the handle is still pending after ", absl::FormatDuration(timeout)))
          .With("handle", name);
    }
  }
}

absl::StatusOr<FetchedHandle> PipelineClient::FetchResult(const v1::Result& result, const FetchOptions& options) {
  if (result.tensors_size() == 0 && result.values_size() == 0) return FetchHandle(result.handle().name(), options);
  FetchedHandle fetched{.handle = result.handle(), .tensors = {}, .values = {}};
  for (const v1::Tensor& message : result.tensors()) {
    PENSTOCK_ASSIGN_OR_RETURN(HostTensor tensor, HostTensor::FromMessage(message));
    fetched.tensors.push_back(std::move(tensor));
  }
  fetched.values.assign(result.values().begin(), result.values().end());
  return fetched;
}

absl::StatusOr<std::vector<HostTensor>> PipelineClient::ResultTensors(const v1::Result& result,
                                                                      const FetchOptions& options) {
  PENSTOCK_ASSIGN_OR_RETURN(FetchedHandle fetched, FetchResult(result, options));
  return std::move(fetched.tensors);
}

}  // namespace penstock
