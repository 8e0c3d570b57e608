#pragma once

// A daemon in memory, for tests of those who call one: it keeps handles and counts steps, and computes nothing.

#include <grpcpp/grpcpp.h>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "inference/grpc_service.grpc.pb.h"
#include "penstock/v1/admin_service.grpc.pb.h"
#include "penstock/v1/handle_service.grpc.pb.h"
#include "penstock/v1/insight_service.grpc.pb.h"
#include "penstock/v1/pipeline_service.grpc.pb.h"
#include "penstock/v1/state_service.grpc.pb.h"
#include "penstock/v1/work_service.grpc.pb.h"

namespace penstock::testing {

// A gRPC status with a google.rpc.Status in its trailer, as the daemon sends it.
grpc::Status RichStatus(grpc::StatusCode code, const std::string& reason, const std::string& message,
                        const std::map<std::string, std::string>& values = {}, int retry_after_seconds = -1);

// What a test may break in streams.
struct StreamFaults {
  int break_upload_after_chunks = -1;  // once: UNAVAILABLE after so many chunks
  int break_fetch_after_chunks = -1;   // once
  int damage_fetch_chunk = -1;         // once: a wrong byte in this chunk
  bool break_read = false;             // once: parameters end in UNAVAILABLE after all their bytes
  int break_fetch_after_values = -1;   // once: of results that are no tensors
  int64_t upload_credit = 1 << 20;
  bool silent_work = false;  // requests on StreamWork get no answer until they are cancelled
};

// Answers every service of the daemon in process.
//
// Model:     One pipeline "gpt" (bytes in, scores out: the byte after the last one), steps with falling losses, handles
//            with bytes, checkpoints, statistics. As a model of the Open Inference Protocol "mlp" returns its input, and has
//            four rows in each run.
//            Fail(method, status) makes the next calls of a method fail, one status each.
// Threads:   any method from any thread.
class FakeDaemon {
 public:
  FakeDaemon();
  ~FakeDaemon();

  std::shared_ptr<grpc::Channel> Channel();
  // Where it listens, too: HOST:PORT.
  std::string Address() const;

  void Fail(const std::string& method, grpc::Status status) ABSL_LOCKS_EXCLUDED(mu_);
  // The next answers of a method carry `grpc-retry-pushback-ms`.
  void PushBack(const std::string& milliseconds) ABSL_LOCKS_EXCLUDED(mu_);
  void SetFaults(const StreamFaults& faults) ABSL_LOCKS_EXCLUDED(mu_);
  void SetReady(bool ready) ABSL_LOCKS_EXCLUDED(mu_);
  // From now on it leads ranks. What links have carried grows from one answer to the next.
  void SetGroup(const v1::GroupInfo& group) ABSL_LOCKS_EXCLUDED(mu_);
  // From now on the pipeline has no loss of its own and takes rows of any length, up to its model's option.
  void SetFlexible() ABSL_LOCKS_EXCLUDED(mu_);
  // While it is, the pipeline has no signature, and statistics are refused as PIPELINE_NOT_READY.
  void SetUnloaded(bool unloaded) ABSL_LOCKS_EXCLUDED(mu_);

  // The next creation is answered when GetPipeline has told all of this of it.
  void SetProgress(std::deque<v1::CreateProgress> progress) ABSL_LOCKS_EXCLUDED(mu_);

  // What was seen, in order: request_ids per method ("" where a call has none), and callers.
  std::vector<std::string> RequestIds(const std::string& method) const ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<std::string> Callers() const ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<std::string> Traceparents() const ABSL_LOCKS_EXCLUDED(mu_);
  v1::TrainStepRequest LastTrainStep() const ABSL_LOCKS_EXCLUDED(mu_);
  inference::ModelInferRequest LastModelInfer() const ABSL_LOCKS_EXCLUDED(mu_);
  v1::EvaluateRequest LastEvaluate() const ABSL_LOCKS_EXCLUDED(mu_);
  v1::ReadParametersRequest LastRead() const ABSL_LOCKS_EXCLUDED(mu_);
  v1::CreatePipelineRequest LastCreate() const ABSL_LOCKS_EXCLUDED(mu_);
  v1::UpdateOptimizerRequest LastUpdate() const ABSL_LOCKS_EXCLUDED(mu_);
  v1::UpdatePipelineRequest LastReplan() const ABSL_LOCKS_EXCLUDED(mu_);
  v1::PublishCheckpointRequest LastPublish() const ABSL_LOCKS_EXCLUDED(mu_);
  v1::PlanPipelineRequest LastPlan() const ABSL_LOCKS_EXCLUDED(mu_);
  v1::RestoreCheckpointRequest LastRestore() const ABSL_LOCKS_EXCLUDED(mu_);
  v1::SaveCheckpointRequest LastSave() const ABSL_LOCKS_EXCLUDED(mu_);
  v1::CopyCheckpointRequest LastCopy() const ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<int64_t> UploadedOffsets() const ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<std::string> FetchedTensors() const ABSL_LOCKS_EXCLUDED(mu_);  // "tensor@offset" per call
  int64_t LiveHandles() const ABSL_LOCKS_EXCLUDED(mu_);
  int64_t Steps() const ABSL_LOCKS_EXCLUDED(mu_);

  // Puts a value handle in place.
  std::string AddHandle(const std::vector<v1::Tensor>& tensors, v1::HandleState state = v1::HANDLE_STATE_READY,
                        const std::vector<v1::NamedValue>& values = {}) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Services;
  struct Stored {
    v1::Handle handle;
    std::vector<v1::Tensor> tensors;
    std::vector<v1::NamedValue> values = {};
  };
  struct Upload {
    v1::PutStart start;
    std::vector<v1::Tensor> tensors;
  };

  // Notes a call; returns the failure that a test ordered for it, or OK.
  grpc::Status Enter(grpc::ServerContext* context, const std::string& method, const std::string& request_id = "")
      ABSL_LOCKS_EXCLUDED(mu_);
  std::string StoreLocked(v1::Handle handle, std::vector<v1::Tensor> tensors) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  v1::Pipeline PipelineLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AnswerLocked(const std::string& name, v1::HandleAnswer* answer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  std::unique_ptr<Services> services_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;

  mutable absl::Mutex mu_;
  std::map<std::string, std::deque<grpc::Status>> failures_ ABSL_GUARDED_BY(mu_);
  std::string pushback_ ABSL_GUARDED_BY(mu_);
  StreamFaults faults_ ABSL_GUARDED_BY(mu_);
  std::deque<v1::CreateProgress> progress_ ABSL_GUARDED_BY(mu_);
  bool ready_ ABSL_GUARDED_BY(mu_) = true;
  std::optional<v1::GroupInfo> group_ ABSL_GUARDED_BY(mu_);
  bool flexible_ ABSL_GUARDED_BY(mu_) = false;
  bool unloaded_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, std::vector<std::string>> request_ids_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> callers_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> traceparents_ ABSL_GUARDED_BY(mu_);
  v1::TrainStepRequest last_train_step_ ABSL_GUARDED_BY(mu_);
  v1::EvaluateRequest last_evaluate_ ABSL_GUARDED_BY(mu_);
  inference::ModelInferRequest last_model_infer_ ABSL_GUARDED_BY(mu_);
  uint64_t model_rows_ ABSL_GUARDED_BY(mu_) = 0;
  v1::ReadParametersRequest last_read_ ABSL_GUARDED_BY(mu_);
  v1::CreatePipelineRequest last_create_ ABSL_GUARDED_BY(mu_);
  v1::UpdateOptimizerRequest last_update_ ABSL_GUARDED_BY(mu_);
  v1::UpdatePipelineRequest last_replan_ ABSL_GUARDED_BY(mu_);
  v1::PublishCheckpointRequest last_publish_ ABSL_GUARDED_BY(mu_);
  v1::PlanPipelineRequest last_plan_ ABSL_GUARDED_BY(mu_);
  v1::RestoreCheckpointRequest last_restore_ ABSL_GUARDED_BY(mu_);
  v1::SaveCheckpointRequest last_save_ ABSL_GUARDED_BY(mu_);
  v1::CopyCheckpointRequest last_copy_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, Stored> handles_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, Upload> uploads_ ABSL_GUARDED_BY(mu_);  // broken ones, by request_id
  std::vector<int64_t> uploaded_offsets_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> fetched_ ABSL_GUARDED_BY(mu_);
  v1::LogLevel log_level_ ABSL_GUARDED_BY(mu_) = v1::LOG_LEVEL_INFO;
  int64_t created_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t steps_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace penstock::testing
