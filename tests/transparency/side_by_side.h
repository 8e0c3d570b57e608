#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "engine/exec/device_pool.h"
#include "engine/exec/pipeline.h"
#include "engine/model/loss.h"
#include "engine/schedule/action.h"
#include "tests/support/plain_reference.h"
#include "tests/transparency/random_case.h"

namespace penstock::testing {

// One case, run by a pipeline and by the plain loop side by side: losses, norms, all saved tensors after every step, and an
// inference at the end are compared bit for bit.
//
// Threads:   one at a time, with one intra-op thread (at::set_num_threads(1)) and RegisterValueLayers() done.
class SideBySide {
 public:
  // Both must outlive it; the pool has RandomCaseDevices().
  SideBySide(const RandomCase& one, DevicePool& pool) : case_(one), pool_(pool) {}

  // What differs first, or nothing.
  std::string Run();

  // How often an action of a kind was run in training.
  int CountOf(ActionKind kind) const { return actions_[static_cast<size_t>(kind)].load(); }

 private:
  std::string RunSteps();
  NamedValues Named(const std::vector<Value>& inputs) const;
  std::string Step(const RandomStep& step);
  std::string Applied(const RunOutcome& got);
  std::string StateDifference() const;
  std::string Inference();

  const RandomCase& case_;
  DevicePool& pool_;
  std::unique_ptr<Pipeline> pipeline_;
  std::unique_ptr<Loss> loss_;
  std::unique_ptr<PlainReference> plain_;
  std::array<std::atomic<int>, 10> actions_{};  // by kind
  int batch_ = 0;                               // number of the next mini-batch
};

}  // namespace penstock::testing
