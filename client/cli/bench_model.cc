#include "client/cli/bench_model.h"

#include "client/cli/output.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

// Of each counted since then.
double MeanSeconds(const inference::StatisticDuration& before, const inference::StatisticDuration& after) {
  if (after.count() <= before.count()) return 0;
  return static_cast<double>(after.ns() - before.ns()) * 1e-9 / static_cast<double>(after.count() - before.count());
}

ServerFigure Time(const std::string& name, double seconds, const std::string& title) {
  const std::string text = NumberText(seconds * 1e3, 2);
  return {name + "_seconds", seconds, name + "_ms", text, title, text};
}

}  // namespace

absl::Status ModelTarget::Begin() {
  PENSTOCK_ASSIGN_OR_RETURN(before_, client_->ModelStatistics(request_.model_name()));
  return absl::OkStatus();
}

absl::StatusOr<std::string> ModelTarget::Call() {
  PENSTOCK_RETURN_IF_ERROR(client_->ModelInfer(request_).status());
  return std::string();
}

absl::StatusOr<std::vector<ServerFigure>> ModelTarget::End() {
  PENSTOCK_ASSIGN_OR_RETURN(const inference::ModelStatistics after, client_->ModelStatistics(request_.model_name()));
  const uint64_t runs = after.execution_count() - before_.execution_count();
  const double rows =
      runs == 0 ? 0
                : static_cast<double>(after.inference_count() - before_.inference_count()) / static_cast<double>(runs);
  const auto& then = before_.inference_stats();
  const auto& now = after.inference_stats();
  return std::vector<ServerFigure>{
      {"rows_per_run", rows, "rows_per_run", NumberText(rows, 2), "ROWS A RUN", NumberText(rows, 1)},
      Time("server", MeanSeconds(then.success(), now.success()), "SERVER MS"),
      Time("queue", MeanSeconds(then.queue(), now.queue()), "QUEUE MS")};
}

}  // namespace penstock
