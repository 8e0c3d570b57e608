#pragma once

// The fixed label values of what is counted, and cells that are indexed by them.

#include <array>
#include <cstddef>
#include <string_view>

namespace penstock {

// For each set an enum, and the label values in the order of the enum.

enum class Phase { kForward, kBackward, kBackwardInput, kBackwardWeight, kRecompute, kOptimizer, kInfer };
inline constexpr std::array<std::string_view, 7> kPhaseNames = {
    "forward", "backward", "backward_input", "backward_weight", "recompute", "optimizer", "infer"};

// What the memory of a lane is taken by. Stash: what forwards keep for their backwards. Undo: copies of what a step
// changes.
enum class MemoryKind { kWeights, kGradients, kOptimizer, kStash, kBuffers, kUndo };
inline constexpr std::array<std::string_view, 6> kMemoryKindNames = {"weights", "gradients", "optimizer",
                                                                     "stash",   "buffers",   "undo"};

// Of what an accelerator's allocator has taken: given to tensors, or kept for the next ones.
inline constexpr std::array<std::string_view, 2> kAllocatorUseNames = {"allocated", "cached"};

enum class LinkKind { kActivation, kGradient };
inline constexpr std::array<std::string_view, 2> kLinkKindNames = {"activation", "gradient"};

enum class BatchMode { kTrain, kForward, kBackward, kInfer, kEvaluate };
inline constexpr std::array<std::string_view, 5> kBatchModeNames = {"train", "forward", "backward", "infer",
                                                                    "evaluate"};

enum class BatchOutcome { kOk, kFailed, kCancelled };
inline constexpr std::array<std::string_view, 3> kBatchOutcomeNames = {"ok", "failed", "cancelled"};

enum class NonfiniteKind { kLoss, kGradient };
inline constexpr std::array<std::string_view, 2> kNonfiniteKindNames = {"loss", "gradient"};

enum class WorkQueue { kTrain, kInfer };
inline constexpr std::array<std::string_view, 2> kWorkQueueNames = {"train", "infer"};

enum class RejectReason { kQueueFull, kQuota, kMemory, kDeadline, kDraining, kInvalid };
inline constexpr std::array<std::string_view, 6> kRejectReasonNames = {"queue_full", "quota",    "memory",
                                                                       "deadline",   "draining", "invalid"};

enum class CheckpointOperation { kSave, kRestore };
inline constexpr std::array<std::string_view, 2> kCheckpointOperationNames = {"save", "restore"};

enum class HandleGauge { kPending, kReady, kFailed };
inline constexpr std::array<std::string_view, 3> kHandleGaugeNames = {"pending", "ready", "failed"};

enum class HandleTier { kDevice, kHost, kFile };
inline constexpr std::array<std::string_view, 3> kHandleTierNames = {"device", "host", "file"};

enum class HandleEnd { kReleased, kExpired, kCancelled };
inline constexpr std::array<std::string_view, 3> kHandleEndNames = {"released", "expired", "cancelled"};

enum class ReadyCondition { kConfig, kModel, kAdmission };
inline constexpr std::array<std::string_view, 3> kReadyConditionNames = {"config", "model", "admission"};

// Why a call was not let in.
enum class Denial { kCredentialMissing, kCredentialInvalid, kCredentialExpired, kRoleMissing };
inline constexpr std::array<std::string_view, 4> kDenialNames = {"credential_missing", "credential_invalid",
                                                                 "credential_expired", "role_missing"};

// What became of a record of the audit log: `dropped` found the queue full, `failed` could not be written.
enum class AuditOutcome { kWritten, kDropped, kFailed };
inline constexpr std::array<std::string_view, 3> kAuditOutcomeNames = {"written", "dropped", "failed"};

// Cells by enum: cells[BatchMode::kTrain].
template <typename Enum, typename Cell, size_t kCount>
class CellsBy {
 public:
  Cell& operator[](Enum e) { return cells_[static_cast<size_t>(e)]; }
  const Cell& operator[](Enum e) const { return cells_[static_cast<size_t>(e)]; }
  // By position in the array of names.
  const Cell& at(size_t i) const { return cells_[i]; }

 private:
  std::array<Cell, kCount> cells_{};
};

// The status codes of gRPC in the order of their numbers, as label values.
inline constexpr std::array<std::string_view, 17> kGrpcCodeNames = {
    "OK",       "Canceled",       "Unknown",          "InvalidArgument",   "DeadlineExceeded",
    "NotFound", "AlreadyExists",  "PermissionDenied", "ResourceExhausted", "FailedPrecondition",
    "Aborted",  "OutOfRange",     "Unimplemented",    "Internal",          "Unavailable",
    "DataLoss", "Unauthenticated"};

}  // namespace penstock
