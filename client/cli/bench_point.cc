#include "client/cli/bench_point.h"

#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

constexpr int kOpenLoopCallers = 64;

}  // namespace

absl::StatusOr<BenchPoint> RunBenchPoint(double level, const BenchOptions& options, BenchTarget& target,
                                         Session& session) {
  LoadOptions load = options.load;
  load.stability = options.stability_percentage / 100;
  if (options.rate.empty()) {
    load.callers = static_cast<int>(level);
  } else {
    load.callers = kOpenLoopCallers;
    load.rate = level;
  }
  PENSTOCK_RETURN_IF_ERROR(target.Begin());
  const LoadWork work = {[&] { return target.Call(); }, [&](const std::string& result) { target.After(result); }};
  BenchPoint point;
  point.level = level;
  point.result = RunLoad(load, work, session.clock(), [&session] { return session.cancelled(); });
  if (session.cancelled()) {
    target.Interrupted();
    return Error(absl::StatusCode::kCancelled, "WORK_CANCELLED", "interrupted");
  }
  absl::StatusOr<std::vector<ServerFigure>> figures = target.End();
  if (point.result.measured.latencies.empty() && !point.result.first_failure.ok()) return point.result.first_failure;
  PENSTOCK_ASSIGN_OR_RETURN(point.figures, std::move(figures));
  return point;
}

}  // namespace penstock
