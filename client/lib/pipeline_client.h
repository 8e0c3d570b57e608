#pragma once

// The client's side of penstock.v1, and what of the Open Inference Protocol a load needs. One class for all services: their
// calls share connections, a time limit, retries and an end (CancelCalls). Each service's methods stand in a file of its own.

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/lib/client_options.h"
#include "client/lib/host_tensor.h"
#include "client/lib/model_upload.h"
#include "client/lib/tensor_download.h"
#include "client/lib/tensor_upload.h"
#include "inference/grpc_service.pb.h"
#include "penstock/v1/admin.pb.h"
#include "penstock/v1/handle.pb.h"
#include "penstock/v1/insight.pb.h"
#include "penstock/v1/journal.pb.h"
#include "penstock/v1/model.pb.h"
#include "penstock/v1/pipeline.pb.h"
#include "penstock/v1/state.pb.h"
#include "penstock/v1/work.pb.h"

namespace penstock {

// "gpt" -> "pipelines/gpt"; a name that has its prefix stays as it is.
std::string PipelineName(std::string_view name);
// "resnet.pt2" -> "models/resnet.pt2", in the same way.
std::string ModelName(std::string_view name);

class StreamedCalls;

// Answers of `grpc.health.v1`.
enum class Health { kServing, kNotServing, kServiceUnknown };

// Calls a daemon: every RPC as a blocking function that returns a message or a Status.
//
// Model:     Requests and responses are the messages of the wire. Where a call has a request_id, an empty one is filled
//            in; all attempts of the call carry the same. Work whose tensors do not fit into a unary request is sent by
//            PutTensors first, and the handle released afterwards.
// Owns:      two connections: control calls never wait behind tensors.
// Threads:   any method from any thread.
// Lifecycle: Create() connects lazily. After CancelCalls() every call, running or new, ends with
//            CANCELLED, but GiveBack().
// Units:     ClientOptions::call_deadline, plus the time that a request asks the server to wait, bounds all attempts.
// Fails:     With the server's code; engine/base/error.h reads its reason, its named values and `request_id`.
//            UNAVAILABLE without a reason: the daemon could not be reached.
// Example:   auto client = *PipelineClient::Create({.address = "127.0.0.1:8470"});
//            v1::TrainStepRequest step;
//            step.set_pipeline("pipelines/gpt");
//            ... inputs and target ...
//            step.mutable_reply()->mutable_wait_for()->set_seconds(60);
//            auto answer = client->TrainStep(step);
//            double loss = answer->outcome().handle().outcome().loss();
class PipelineClient {
 public:
  static absl::StatusOr<std::unique_ptr<PipelineClient>> Create(ClientOptions options);
  ~PipelineClient();

  // Pipelines.
  absl::StatusOr<v1::Pipeline> CreatePipeline(v1::CreatePipelineRequest request);
  absl::StatusOr<v1::PlanPipelineResponse> PlanPipeline(const v1::PlanPipelineRequest& request);
  absl::StatusOr<v1::Pipeline> GetPipeline(const std::string& name);
  absl::StatusOr<std::vector<v1::Pipeline>> ListPipelines();  // every page
  // Other settings of the optimizer, all of them: put what shall be different into those of GetPipeline.
  absl::StatusOr<v1::Pipeline> UpdateOptimizer(v1::UpdateOptimizerRequest request);
  // Another cut, schedule, devices or batching, while it serves; what is not given stays as it is.
  absl::StatusOr<v1::Pipeline> UpdatePipeline(v1::UpdatePipelineRequest request);
  absl::StatusOr<v1::Pipeline> UnloadPipeline(v1::UnloadPipelineRequest request);
  absl::StatusOr<v1::Pipeline> LoadPipeline(v1::LoadPipelineRequest request);
  absl::StatusOr<v1::DeletePipelineResponse> DeletePipeline(v1::DeletePipelineRequest request);

  // Work.
  absl::StatusOr<v1::InferResponse> Infer(v1::InferRequest request);
  absl::StatusOr<v1::EvaluateResponse> Evaluate(v1::EvaluateRequest request);
  absl::StatusOr<v1::ForwardResponse> Forward(v1::ForwardRequest request);
  absl::StatusOr<v1::BackwardResponse> Backward(v1::BackwardRequest request);
  absl::StatusOr<v1::ForwardBackwardResponse> ForwardBackward(v1::ForwardBackwardRequest request);
  absl::StatusOr<v1::OptimizerStepResponse> OptimizerStep(v1::OptimizerStepRequest request);
  absl::StatusOr<v1::TrainStepResponse> TrainStep(v1::TrainStepRequest request);

  // Handles.
  absl::StatusOr<v1::Handle> PutTensors(const std::string& pipeline, std::span<const HostTensor> tensors,
                                        const UploadOptions& options = {});
  absl::StatusOr<FetchedHandle> FetchHandle(const std::string& name, const FetchOptions& options = {});
  absl::StatusOr<v1::WaitHandlesResponse> WaitHandles(const v1::WaitHandlesRequest& request);
  absl::StatusOr<v1::Handle> GetHandle(const std::string& name);
  // Every page. `owner`: for admins, whose, or - for all; empty: the caller's own.
  absl::StatusOr<std::vector<v1::Handle>> ListHandles(const std::string& parent, const std::string& owner = "");
  absl::StatusOr<v1::RenewHandlesResponse> RenewHandles(const v1::RenewHandlesRequest& request);
  // Another caller's handle of the same values.
  absl::StatusOr<v1::Handle> ShareHandle(v1::ShareHandleRequest request);
  absl::StatusOr<v1::ReleaseHandlesResponse> ReleaseHandles(std::span<const std::string> names,
                                                            const std::string& owner = "");
  // Releases handles that nobody needs any more, after CancelCalls() too. A failure leaves them to their leases.
  void GiveBack(std::span<const std::string> names);
  absl::StatusOr<v1::CancelHandlesResponse> CancelHandles(std::span<const std::string> names);

  // Waits until one handle has settled, with as many calls as it takes; returns it, or its own error if it failed or
  // was cancelled.
  absl::StatusOr<v1::Handle> AwaitHandle(const std::string& name, absl::Duration timeout);

  // The tensors and values of a work call's result, from the reply if they are there, else fetched.
  absl::StatusOr<FetchedHandle> FetchResult(const v1::Result& result, const FetchOptions& options = {});
  // Its tensors alone.
  absl::StatusOr<std::vector<HostTensor>> ResultTensors(const v1::Result& result, const FetchOptions& options = {});

  // State.
  absl::StatusOr<v1::Checkpoint> SaveCheckpoint(v1::SaveCheckpointRequest request);
  absl::StatusOr<v1::Checkpoint> CopyCheckpoint(v1::CopyCheckpointRequest request);
  absl::StatusOr<v1::RestoreCheckpointResponse> RestoreCheckpoint(v1::RestoreCheckpointRequest request);
  // What inference is answered from; without a checkpoint, the live weights.
  absl::StatusOr<v1::Pipeline> PublishCheckpoint(v1::PublishCheckpointRequest request);
  absl::Status DeleteCheckpoint(v1::DeleteCheckpointRequest request);
  // Every page. "-": of all pipelines, living and deleted.
  absl::StatusOr<std::vector<v1::Checkpoint>> ListCheckpoints(const std::string& pipeline);
  absl::StatusOr<ParameterDownload> ReadParameters(const v1::ReadParametersRequest& request);
  // `request.handles` are of PutTensors, ready.
  absl::StatusOr<v1::WriteParametersResponse> WriteParameters(v1::WriteParametersRequest request);

  // Models in the server's root, by name: resnet.pt2 or models/resnet.pt2.
  absl::StatusOr<v1::Model> UploadModel(const std::string& id, std::string_view file,
                                        const ModelUploadOptions& options = {});
  absl::StatusOr<v1::Model> GetModel(const std::string& name);
  absl::StatusOr<std::vector<v1::Model>> ListModels();  // every page
  absl::Status DeleteModel(const std::string& name);

  // Insight.
  absl::StatusOr<v1::PipelineStatistics> Statistics(const std::string& pipeline);
  // Calls `on_update` for each update until it returns false or the stream ends.
  absl::Status WatchStatistics(const v1::WatchStatisticsRequest& request,
                               const std::function<bool(const v1::PipelineStatistics&)>& on_update);

  // All pages as one: the answer has no token.
  absl::StatusOr<v1::GetScheduleResponse> GetSchedule(v1::GetScheduleRequest request);
  // Calls `on_data` with each piece of the file, in order; if it fails, the call ends with that. Returns the summary.
  // As long as it records, it waits: until the steps have ended or the calls are cancelled.
  absl::StatusOr<v1::TraceSummary> ExportTrace(const v1::ExportTraceRequest& request,
                                               const std::function<absl::Status(std::string_view)>& on_data);

  // Journals. At most `limit` calls.
  absl::StatusOr<std::vector<v1::JournalCall>> ListJournalCalls(const std::string& pipeline, bool newest_first,
                                                                int64_t limit);
  absl::StatusOr<v1::VerifyJournalResponse> VerifyJournal(const std::string& pipeline);
  absl::StatusOr<v1::CompactJournalResponse> CompactJournal(const std::string& pipeline);
  absl::StatusOr<v1::BackUpJournalResponse> BackUpJournal(const v1::BackUpJournalRequest& request);
  absl::StatusOr<std::vector<v1::HistoryStep>> GetHistory(const std::string& pipeline);  // every page

  // Open Inference Protocol, of this daemon or of another server. Models have no prefix: "gpt".
  absl::StatusOr<inference::ModelMetadataResponse> ModelMetadata(const std::string& model);
  absl::StatusOr<inference::ModelInferResponse> ModelInfer(const inference::ModelInferRequest& request);
  // Fails: NOT_FOUND where the server has no statistics of it, too.
  absl::StatusOr<inference::ModelStatistics> ModelStatistics(const std::string& model);

  // The daemon.
  absl::StatusOr<v1::ServerInfo> GetServerInfo();
  absl::StatusOr<v1::DrainState> Drain(const v1::DrainRequest& request);
  absl::StatusOr<v1::SetLogLevelResponse> SetLogLevel(const v1::SetLogLevelRequest& request);
  absl::StatusOr<Health> CheckHealth(const std::string& service);

  void CancelCalls();
  bool cancelled() const;

 private:
  struct Stubs;

  explicit PipelineClient(const ClientOptions& options);

  // One unary call with all of its attempts. `wait_for` is added to the deadline.
  template <typename Stub, typename Method, typename Request>
  auto Call(Stub& stub, Method method, const Request& request, const std::string& request_id = {},
            absl::Duration wait_for = absl::ZeroDuration());

  // A work call: request_id, tensors that are too large, deadline.
  template <typename Response, typename Method, typename Request>
  absl::StatusOr<Response> Work(Method method, Request* (v1::StreamWorkRequest::*request_on)(),
                                Response* (v1::StreamWorkResponse::*response_on)(), Request request);

  // Lists page after page.
  template <typename Item, typename Stub, typename Method, typename Request, typename ItemsOf>
  absl::StatusOr<std::vector<Item>> ListAll(Stub& stub, Method method, Request request, const ItemsOf& items_of);

  const ClientOptions options_;
  CallRunner runner_;
  CallRunner last_runner_;  // never cancelled
  std::unique_ptr<Stubs> stubs_;
  std::unique_ptr<StreamedCalls> streamed_;  // null: calls of work are calls of their own
};

}  // namespace penstock
