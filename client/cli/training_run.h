#pragma once

// Many training steps through a client, with the next one always waiting at the daemon.

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/byte_model.h"
#include "client/cli/text_windows.h"
#include "client/lib/pipeline_client.h"

namespace penstock {

struct TrainingOptions {
  ByteModel model;
  int64_t steps = 0;
  int64_t rows = 0;          // of each step
  int64_t first_window = 0;  // batches are drawn from here on: the pipeline's step
  int in_flight = 2;         // steps accepted and not yet finished: the daemon never waits for us
};

// Submits steps and reports their outcomes in order.
//
// Model:     A queue of outcome handles. A step is submitted when fewer than `in_flight` are open; the oldest is waited
//            for; handles of finished steps are released in batches.
// Owns:      nothing; client and windows outlive it.
// Threads:   one.
// Lifecycle: Run() once; then, whatever it returned, CleanUp() with a client that still works.
// Fails:     with the first step's error. A step that found a loss or gradient that is not finite is no failure.
class TrainingRun {
 public:
  // Called after each step, with its number from 1 on.
  using OnStep = std::function<void(int64_t number, const v1::Outcome& outcome)>;

  TrainingRun(PipelineClient& client, const TextWindows& windows, TrainingOptions options)
      : client_(client), windows_(windows), options_(std::move(options)) {}

  absl::Status Run(const OnStep& on_step);

  // Cancels what has not started, releases what is left. Failures are left to the leases.
  void CleanUp(PipelineClient& client);

 private:
  absl::Status Submit(int64_t number);
  absl::Status ReleaseFinished();

  PipelineClient& client_;
  const TextWindows& windows_;
  const TrainingOptions options_;
  std::deque<std::string> open_;       // outcome handles of steps that were accepted, oldest first
  std::vector<std::string> finished_;  // handles to release
};

}  // namespace penstock
