#pragma once

// One accepted call, from its acceptance to its end.

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/base/cancel_token.h"
#include "engine/base/timer_queue.h"
#include "engine/exec/pipeline.h"
#include "engine/observe/metrics.h"
#include "engine/serve/call_inputs.h"
#include "engine/serve/calls.h"
#include "engine/serve/hosted_pipeline.h"
#include "engine/serve/request_log.h"
#include "engine/serve/training_state.h"

namespace penstock {

enum class WorkMethod {
  kInfer,
  kForward,
  kBackward,
  kForwardBackward,
  kOptimizerStep,
  kTrainStep,
  kSaveCheckpoint,
  kRestoreCheckpoint,
  kWriteParameters,
  kDeleteCheckpoint
};
inline constexpr std::array<const char*, 10> kWorkMethodNames = {
    "Infer",     "Forward",        "Backward",          "ForwardBackward", "OptimizerStep",
    "TrainStep", "SaveCheckpoint", "RestoreCheckpoint", "WriteParameters", "DeleteCheckpoint"};

// The callers who wait for one save, restore, write or delete, and its answer once it is there. Guarded by the host's lock.
struct StateJoin {
  std::optional<StateAnswer> answer;
  std::vector<HostedPipeline::StateCallback> callbacks;
};

// What the request log keeps.
using RecordedAnswer = std::variant<Accepted, std::shared_ptr<StateJoin>>;

// A call with all that its run needs. The parameters never change after acceptance.
struct Work {
  enum class Phase { kNew, kQueued, kRunning, kDone };

  WorkMethod method = WorkMethod::kInfer;
  CallContext context = {};
  std::optional<TrainingCall> training = {};  // unset for inference

  // Parameters; those of other methods stay empty.
  std::vector<std::string> outputs = {};
  std::optional<LossSpec> loss = {};
  std::optional<int> micro_batches = {};
  std::optional<int64_t> total_rows = {};
  std::optional<int64_t> total_elements = {};
  StepRequest step = {};
  bool contributes = false;  // ForwardBackward and TrainStep
  bool has_target = false;   // the last input is the target
  bool retain_graph = false;
  int32_t priority = 0;  // of an inference
  absl::Duration accumulation_lease = absl::ZeroDuration();
  bool input_gradients = false;  // Forward: keep what they need; Backward: answer them as outputs
  bool force = false;
  std::string checkpoint_id = {};
  bool last_save = false;                // of the pipeline's life: it finds its identifier itself, and can be cancelled
  std::shared_ptr<StateJoin> join = {};  // save, restore and write only
  int written_handles = 0;               // WriteParameters: the first pins of the inputs
  std::optional<int64_t> written_step = {};

  CallInputs inputs = {};
  int graph_pin = -1;  // Backward: index of the graph among the inputs' pins
  bool inputs_checked = false;

  Accepted accepted = {};
  std::shared_ptr<CancelToken> cancel = std::make_shared<CancelToken>();
  int64_t rows = 0;          // of the inputs, once known
  int64_t queue_weight = 1;  // micro-batches, for the queue's gauges
  int64_t accepted_nanos = 0;
  int64_t started_nanos = 0;  // 0: it has not; set by the thread that runs it

  // Guarded by the host's lock, and so is context.place.
  Phase phase = Phase::kNew;
  bool inputs_ready = false;
  bool deadline_passed = false;
  size_t abandoned_handles = 0;
  TimerQueue::TimerId timer = TimerQueue::kNoTimer;

  const char* method_name() const { return kWorkMethodNames[static_cast<int>(method)]; }
  TrainingParty party() const { return {context.caller, context.session}; }
  RequestKey key() const { return {context.caller, method_name(), context.request_id}; }
  // A run that may be stopped: it leaves nothing behind.
  bool stoppable() const { return method == WorkMethod::kInfer || method == WorkMethod::kForward; }
  std::optional<BatchMode> batch_mode() const;
};

// The error of a call that was cancelled.
absl::Status CancelledCall();

// The tensor of a target. Fails: WRONG_TYPE naming the target.
absl::StatusOr<at::Tensor> TargetOf(const NamedValue& target);

}  // namespace penstock
