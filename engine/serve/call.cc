#include "engine/serve/call.h"

#include "engine/base/block_bytes.h"
#include "engine/base/check.h"
#include "engine/base/error.h"

namespace penstock {
namespace {

template <typename... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <typename... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

}  // namespace

const char* MethodName(const Request& request) {
  return std::visit(
      Overloaded{
          [](const InferCall&) { return "Infer"; }, [](const EvaluateCall&) { return "Evaluate"; },
          [](const ForwardCall&) { return "Forward"; }, [](const BackwardCall&) { return "Backward"; },
          [](const ContributionCall&) { return "ForwardBackward"; }, [](const StepCall&) { return "OptimizerStep"; },
          [](const ExpireCall&) { return "OptimizerStep"; }, [](const TrainStepCall&) { return "TrainStep"; },
          [](const SaveCall&) { return "SaveCheckpoint"; }, [](const RestoreCall&) { return "RestoreCheckpoint"; },
          [](const WriteCall&) { return "WriteParameters"; }, [](const DeleteCall&) { return "DeleteCheckpoint"; },
          [](const ReadCall&) { return "ReadParameters"; }, [](const CopyCall&) { return "CopyCheckpoint"; },
          [](const UpdateOptimizerCall&) { return "UpdateOptimizer"; },
          [](const CompactCall&) { return "CompactJournal"; }, [](const UpdateCall&) { return "UpdatePipeline"; }},
      request);
}

int64_t HeapBytes(const RecordedAnswer& answer) {
  if (const auto* join = std::get_if<std::shared_ptr<StateJoin>>(&answer)) return HeapBytes(*join);
  const auto& accepted = std::get<Accepted>(answer);
  int64_t bytes = BlockBytes(accepted.request_id);
  for (const auto* name : {&accepted.outcome, &accepted.outputs, &accepted.graph}) {
    if (name->has_value()) bytes += BlockBytes((*name)->pipeline);
  }
  if (accepted.durable != nullptr) bytes += BlockBytes(2 * sizeof(void*) + sizeof(Durability));
  return bytes;
}

const std::vector<const char*>& MethodNames() {
  static const auto* const names = new std::vector<const char*>{
      "Infer",         "Evaluate",       "Forward",           "Backward",        "ForwardBackward",  "OptimizerStep",
      "TrainStep",     "SaveCheckpoint", "RestoreCheckpoint", "WriteParameters", "DeleteCheckpoint", "UpdateOptimizer",
      "CopyCheckpoint"};
  return *names;
}

std::optional<TrainingCall> TrainingCallOf(const Request& request) {
  using Answer = std::optional<TrainingCall>;
  return std::visit(Overloaded{[](const InferCall&) -> Answer { return std::nullopt; },
                               [](const EvaluateCall&) -> Answer { return std::nullopt; },
                               [](const ForwardCall&) -> Answer { return TrainingCall::kForward; },
                               [](const BackwardCall&) -> Answer { return TrainingCall::kContribution; },
                               [](const ContributionCall&) -> Answer { return TrainingCall::kContribution; },
                               [](const StepCall& step) -> Answer {
                                 if (!step.discard) return TrainingCall::kApply;
                                 return step.force ? TrainingCall::kDiscardForced : TrainingCall::kDiscard;
                               },
                               [](const ExpireCall&) -> Answer { return TrainingCall::kExpire; },
                               [](const TrainStepCall&) -> Answer { return TrainingCall::kTrainStep; },
                               [](const SaveCall&) -> Answer { return TrainingCall::kSave; },
                               [](const CopyCall&) -> Answer { return TrainingCall::kSave; },
                               [](const RestoreCall& restore) -> Answer {
                                 return restore.force ? TrainingCall::kRestoreForced : TrainingCall::kRestore;
                               },
                               [](const WriteCall& write) -> Answer {
                                 return write.force ? TrainingCall::kRestoreForced : TrainingCall::kRestore;
                               },
                               [](const DeleteCall&) -> Answer { return TrainingCall::kDeleteCheckpoint; },
                               [](const ReadCall& read) -> Answer {
                                 return read.content == ReadContent::kGradients ? TrainingCall::kReadGradients
                                                                                : TrainingCall::kRead;
                               },
                               [](const UpdateOptimizerCall&) -> Answer { return TrainingCall::kUpdate; },
                               [](const UpdateCall&) -> Answer { return TrainingCall::kUpdate; },
                               [](const CompactCall&) -> Answer { return TrainingCall::kRead; }},
                    request);
}

std::optional<BatchMode> BatchModeOf(const Request& request) {
  using Answer = std::optional<BatchMode>;
  return std::visit(Overloaded{[](const InferCall&) -> Answer { return BatchMode::kInfer; },
                               [](const EvaluateCall&) -> Answer { return BatchMode::kEvaluate; },
                               [](const ForwardCall&) -> Answer { return BatchMode::kForward; },
                               [](const BackwardCall&) -> Answer { return BatchMode::kBackward; },
                               [](const ContributionCall&) -> Answer { return BatchMode::kTrain; },
                               [](const TrainStepCall&) -> Answer { return BatchMode::kTrain; },
                               [](const auto&) -> Answer { return std::nullopt; }},
                    request);
}

void Call::Guarded::Enter(Phase next) {
  const bool possible = (phase == Phase::kNew && next == Phase::kQueued) ||
                        (phase == Phase::kQueued && (next == Phase::kRunning || next == Phase::kDone)) ||
                        (phase == Phase::kRunning && next == Phase::kDone);
  PENSTOCK_CHECK(possible);
  phase = next;
}

int32_t Call::priority() const {
  if (const auto* evaluate = As<EvaluateCall>()) return evaluate->priority;
  const auto* infer = As<InferCall>();
  return infer == nullptr ? 0 : infer->request.priority;
}

absl::Status CallLeftInJournal() {
  return Error(absl::StatusCode::kUnavailable, "DRAINING",
               "the daemon stops; the call is in the journal and runs after the restart: ask again by its request_id");
}

absl::Status GraphConsumed() {
  return Error(absl::StatusCode::kFailedPrecondition, "GRAPH_CONSUMED", "a Backward has used up this graph");
}

absl::Status CancelledCall() { return Error(absl::StatusCode::kCancelled, "WORK_CANCELLED", "the call was cancelled"); }

}  // namespace penstock
