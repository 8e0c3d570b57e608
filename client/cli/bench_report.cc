#include "client/cli/bench_report.h"

#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace penstock {
namespace {

std::string Milliseconds(const BenchPoint& point, double percent) {
  return NumberText(Percentile(point.result.measured.latencies, percent) * 1e3, 2);
}

Json PointJson(const BenchPoint& point, const BenchOptions& options) {
  Json server = {{"busy", point.busy}, {options.train ? "train_queue_depth" : "infer_queue_depth", point.queue_depth}};
  if (options.train) server["compute_seconds"] = point.compute;
  const LoadWindow& measured = point.result.measured;
  Json latency;
  for (const int percent : {50, 90, 95, 99}) {
    latency[absl::StrCat("p", percent)] = Percentile(measured.latencies, percent);
  }
  latency["most"] = Percentile(measured.latencies, 100);
  return {{options.rate.empty() ? "concurrency" : "rate", point.level},
          {"calls", measured.latencies.size()},
          {"failures", measured.failures},
          {"seconds", measured.seconds},
          {"calls_per_second", measured.throughput()},
          {"latency_seconds", latency},
          {"windows", point.result.windows},
          {"stable", point.result.stable},
          {"server", server}};
}

}  // namespace

Document BenchReport(const std::vector<BenchPoint>& points, const BenchOptions& options) {
  const bool open = !options.rate.empty();
  Document document;
  document.json = {{"pipeline", PipelineName(options.pipeline)},
                   {"calls", options.train ? "train" : "infer"},
                   {"points", Json::array()}};
  std::vector<Table::Column> columns = {{open ? "RATE" : "CALLERS", true},
                                        {"PER SECOND", true},
                                        {"P50 MS", true},
                                        {"P90 MS", true},
                                        {"P95 MS", true},
                                        {"P99 MS", true},
                                        {"FAILED", true},
                                        {"LANES BUSY", true},
                                        {"QUEUED", true}};
  if (options.train) columns.push_back({"COMPUTE MS", true});
  columns.push_back({""});
  Table table(std::move(columns));
  std::string csv = open ? "rate" : "concurrency";
  csv += ",calls_per_second,p50_ms,p90_ms,p95_ms,p99_ms,failures,busy,";
  csv += options.train ? "train_queue_depth,compute_ms,stable\n" : "infer_queue_depth,stable\n";
  for (const BenchPoint& point : points) {
    const LoadWindow& measured = point.result.measured;
    const std::vector<std::string> cells = {NumberText(point.level, point.level == std::floor(point.level) ? 0 : 2),
                                            NumberText(measured.throughput(), 2),
                                            Milliseconds(point, 50),
                                            Milliseconds(point, 90),
                                            Milliseconds(point, 95),
                                            Milliseconds(point, 99),
                                            absl::StrCat(measured.failures)};
    std::vector<std::string> row = cells;
    row.insert(row.end(), {PercentText(point.busy), absl::StrCat(point.queue_depth)});
    if (options.train) row.push_back(NumberText(point.compute * 1e3, 2));
    row.push_back(point.result.stable ? "" : "unstable");
    table.Add(row);
    absl::StrAppend(&csv, absl::StrJoin(cells, ","), ",", NumberText(point.busy, 4), ",", point.queue_depth, ",",
                    options.train ? NumberText(point.compute * 1e3, 2) + "," : "",
                    point.result.stable ? "true" : "false", "\n");
    document.json["points"].push_back(PointJson(point, options));
    document.lines.push_back(PointJson(point, options));
  }
  document.names = {PipelineName(options.pipeline)};
  document.text = options.csv ? csv : table.Text(false);
  return document;
}

}  // namespace penstock
