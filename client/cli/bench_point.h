#pragma once

// One load of `penstock bench`: its options and its result.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/bench_calls.h"
#include "client/cli/bench_load.h"
#include "client/cli/bench_target.h"
#include "client/cli/session.h"

namespace penstock {

struct BenchOptions {
  std::string pipeline;
  std::string concurrency = "1";
  std::string rate;  // empty: closed loop
  bool train = false;
  bool open_inference = false;
  bool stream = false;
  std::string compare;  // another server of the Open Inference Protocol; empty: none
  BenchInput input;
  double stability_percentage = 10;
  double threshold_ms = 0;  // 0: none
  bool csv = false;
  LoadOptions load;
};

// One load and its result.
struct BenchPoint {
  double level = 0;
  std::string server;  // its address
  LoadResult result;
  std::vector<ServerFigure> figures;
};

// Runs one load until it is stable.
//
// Fails:     WORK_CANCELLED once the session was interrupted; the first failure where no call succeeded; as Begin() and
//            End().
absl::StatusOr<BenchPoint> RunBenchPoint(double level, const BenchOptions& options, BenchTarget& target,
                                         Session& session);

}  // namespace penstock
