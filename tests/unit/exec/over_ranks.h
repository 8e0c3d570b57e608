#pragma once

// What the tests of pipelines over several ranks share: the same pipeline in one process and over ranks, and the calls
// that are made to both.

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "engine/exec/device_pool.h"
#include "tests/support/group_in_process.h"
#include "tests/unit/exec/function_layers.h"

namespace penstock::testing {

inline std::vector<Device> ThreeCpus() { return {{"cpu:0", {0}}, {"cpu:1", {0}}, {"cpu:2", {0}}}; }

// The rank of each stage.
inline std::unique_ptr<Pipeline> MakeOver(GroupInProcess& group, const PipelineSpec& spec,
                                          const std::vector<int>& ranks, Pipeline::Options options = {}) {
  options.edits.plan = [ranks](Plan& plan) {
    for (size_t s = 0; s < ranks.size(); ++s) plan.stages.at(s).rank = Rank(ranks[s]);
  };
  auto pipeline = Pipeline::Create(spec, group.Options(std::move(options)));
  EXPECT_TRUE(pipeline.ok()) << pipeline.status();
  return pipeline.ok() ? *std::move(pipeline) : nullptr;
}

inline std::unique_ptr<Pipeline> MakeAlone(DevicePool& devices, const PipelineSpec& spec) {
  Pipeline::Options options;
  options.devices = &devices;
  auto pipeline = Pipeline::Create(spec, std::move(options));
  EXPECT_TRUE(pipeline.ok()) << pipeline.status();
  return pipeline.ok() ? *std::move(pipeline) : nullptr;
}

// One inference on its way. Must outlive it.
struct Inference {
  absl::Notification done;
  absl::StatusOr<ForwardOutcome> answer = absl::UnknownError("open");

  void Ask(Pipeline& pipeline, ForwardRequest request) {
    pipeline.InferAsync(std::move(request), [this](absl::StatusOr<ForwardOutcome> outcome) {
      answer = std::move(outcome);
      done.Notify();
    });
  }
  absl::StatusOr<ForwardOutcome>& Answer() {
    done.WaitForNotification();
    return answer;
  }
};

inline absl::StatusOr<RunOutcome> Evaluate(Pipeline& pipeline, EvaluationRequest request) {
  absl::Notification done;
  absl::StatusOr<RunOutcome> answer;
  pipeline.EvaluateAsync(std::move(request), [&](absl::StatusOr<RunOutcome> outcome) {
    answer = std::move(outcome);
    done.Notify();
  });
  done.WaitForNotification();
  return answer;
}

// Names and bits of tensors.
inline bool SameValues(const NamedValues& a, const NamedValues& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    const at::Tensor* one = a[i].value.tensor();
    const at::Tensor* other = b[i].value.tensor();
    if (a[i].name != b[i].name || (one == nullptr) != (other == nullptr)) return false;
    if (one != nullptr && !SameTensors({{"", *one}}, {{"", *other}})) return false;
  }
  return true;
}

inline bool SameState(const Pipeline& a, const Pipeline& b) {
  return SameTensors(a.ExportState(true).value(), b.ExportState(true).value());
}

}  // namespace penstock::testing
