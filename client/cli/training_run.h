#pragma once

// Many training steps through a client, with the next one always waiting at the daemon.

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/batch.h"
#include "client/lib/pipeline_client.h"

namespace penstock {

struct TrainingOptions {
  std::string pipeline;  // pipelines/{pipeline}
  int64_t steps = 0;
  int64_t first_batch = 0;  // the number of the first step's mini-batch: the pipeline's step
  int in_flight = 2;        // steps accepted and not yet finished: the daemon never waits for us
};

// Submits steps and reports their outcomes in order.
//
// Model:     A queue of outcome handles. A step is submitted when fewer than `in_flight` are open; the oldest is waited
//            for; handles of finished steps are released in batches.
// Owns:      the source of its mini-batches; the client outlives it.
// Threads:   one.
// Lifecycle: Run() once; then, whatever it returned, CleanUp() with a client that still works.
// Fails:     with the first error of a step or of the source. A step that found a loss or gradient that is not finite is
//            no failure.
class TrainingRun {
 public:
  // Called after each step, with its number from 1 on.
  using OnStep = std::function<void(int64_t number, const v1::Outcome& outcome)>;

  TrainingRun(PipelineClient& client, BatchSource batches, TrainingOptions options)
      : client_(client), batches_(std::move(batches)), options_(std::move(options)) {}

  absl::Status Run(const OnStep& on_step);

  // Cancels what has not started, releases what is left. Failures are left to the leases.
  void CleanUp(PipelineClient& client);

 private:
  absl::Status Submit(int64_t number);
  absl::Status ReleaseFinished();

  PipelineClient& client_;
  const BatchSource batches_;
  const TrainingOptions options_;
  std::deque<std::string> open_;       // outcome handles of steps that were accepted, oldest first
  std::vector<std::string> finished_;  // handles to release
};

}  // namespace penstock
