#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/cancel_token.h"
#include "engine/exec/device_pool.h"
#include "engine/exec/pipeline.h"
#include "engine/model/loss.h"
#include "engine/schedule/action.h"
#include "tests/support/group_in_process.h"
#include "tests/support/plain_reference.h"
#include "tests/transparency/random_case.h"

namespace penstock::testing {

// What differs first between a pipeline and the plain loop.
struct Difference {
  // Faults of one kind are the same fault, more or less: a case is made smaller while its kind stays.
  std::string kind;  // "values", "status REASON", "create", "plain"; empty: nothing differs
  std::string text;

  bool found() const { return !kind.empty(); }
};

// One case, run by a pipeline and by the plain loop side by side: losses, norms, outputs, gradients and an evaluation
// before every step, all saved tensors after it, and an inference at the end are compared byte by byte. So -0 is not 0,
// and a NaN equals a NaN of the same sign and payload.
//
// Threads:   one at a time, with one intra-op thread (at::set_num_threads(1)) and RegisterValueLayers() done.
class SideBySide {
 public:
  // Both must outlive it; the pool has RandomCaseDevices().
  SideBySide(const RandomCase& one, DevicePool& pool) : case_(one), pool_(&pool) {}
  // The lanes stand on the ranks of a group, at random.
  SideBySide(const RandomCase& one, GroupInProcess& group) : case_(one), pool_(&group.devices()), group_(&group) {}

  // What differs first, or nothing.
  Difference Run();

  // Of the pipelines that it made: stages that did not stand on the leader's rank.
  int stages_elsewhere() const { return stages_elsewhere_; }
  // How often an action of a kind was run in training.
  int CountOf(ActionKind kind) const { return actions_[static_cast<size_t>(kind)].load(); }

 private:
  // A Forward of both sides that waits for its Backward.
  struct Half {
    ForwardOutcome got;
    std::vector<Batch> want;  // by micro-batch
    const RandomContribution* contribution = nullptr;
    int number = 0;  // of its mini-batch
  };

  Difference RunSteps();
  Difference MakePipeline(const RandomLayout& layout);
  Difference Move();
  void BeforeAction(const Action& action);
  void Arm(const RandomContribution& contribution, int64_t action);
  Difference Attempted(const RandomContribution& contribution, const absl::Status& status);
  NamedValues Named(const std::vector<Value>& inputs) const;
  Difference Step(const RandomStep& step);
  Difference Whole(const RandomStep& step);
  Difference Contribution(const RandomContribution& contribution, const RandomBatch& batch,
                          std::optional<double> total);
  Difference CompareLoss(const RunOutcome& got, const RandomContribution& contribution, const RandomBatch& batch,
                         std::optional<double> total);
  Difference Forward(const RandomContribution& contribution, const RandomBatch& batch, int number, Half& half);
  Difference Backward(Half& half);
  Difference BackwardOnce(Half& half, bool retain, bool attempt);
  Difference Applied(const absl::StatusOr<RunOutcome>& got, const RandomStep& step);
  Difference BeforeTheStep();
  Difference CompareGradients() const;
  Difference Evaluation() const;
  Difference CompareState() const;
  Difference Inference();

  const RandomCase& case_;
  DevicePool* const pool_;
  GroupInProcess* const group_ = nullptr;
  const RandomLayout* layout_ = nullptr;  // of the pipeline
  std::unique_ptr<Pipeline> pipeline_;
  std::unique_ptr<Loss> loss_;
  std::unique_ptr<PlainReference> plain_;
  std::array<std::atomic<int>, 10> actions_{};  // by kind
  int stages_elsewhere_ = 0;
  int batch_ = 0;  // number of the next mini-batch
  // Of the attempt under way.
  std::atomic<int64_t> until_broken_ = -1;  // actions that begin before the one that breaks; -1: none does
  std::shared_ptr<CancelToken> cancel_;     // null: it throws
};

}  // namespace penstock::testing
