#include "client/cli/bench_report.h"

#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace penstock {
namespace {

const char* LevelName(const BenchOptions& options) { return options.rate.empty() ? "concurrency" : "rate"; }

std::string Milliseconds(const BenchPoint& point, double percent) {
  return NumberText(Percentile(point.result.measured.latencies, percent) * 1e3, 2);
}

Json PointJson(const BenchPoint& point, const BenchOptions& options) {
  Json server;
  for (const ServerFigure& figure : point.figures) server[figure.key] = figure.value;
  const LoadWindow& measured = point.result.measured;
  Json latency;
  for (const int percent : {50, 90, 95, 99}) {
    latency[absl::StrCat("p", percent)] = Percentile(measured.latencies, percent);
  }
  latency["most"] = Percentile(measured.latencies, 100);
  Json json = {{LevelName(options), point.level},
               {"calls", measured.latencies.size()},
               {"failures", measured.failures},
               {"seconds", measured.seconds},
               {"calls_per_second", measured.throughput()},
               {"latency_seconds", latency},
               {"windows", point.result.windows},
               {"stable", point.result.stable},
               {"server", server}};
  if (!options.compare.empty()) json["address"] = point.server;
  return json;
}

double Ratio(double one, double other) { return other > 0 ? one / other : 0; }

// What the first server has of the second one's, for each level. The points of a level stand side by side, in either
// order.
void AddRatios(const std::vector<BenchPoint>& points, const BenchOptions& options, const std::string& first,
               Document* document) {
  document->json["ratios"] = Json::array();
  for (size_t i = 0; i + 1 < points.size(); i += 2) {
    const bool in_order = points[i].server == first;
    const LoadWindow& one = points[in_order ? i : i + 1].result.measured;
    const LoadWindow& other = points[in_order ? i + 1 : i].result.measured;
    Json ratio = {{LevelName(options), points[i].level},
                  {"calls_per_second", Ratio(one.throughput(), other.throughput())}};
    for (const int percent : {50, 99}) {
      ratio[absl::StrCat("p", percent)] =
          Ratio(Percentile(one.latencies, percent), Percentile(other.latencies, percent));
    }
    absl::StrAppend(&document->text, LevelName(options), " ", points[i].level, ": ", first, " has ",
                    NumberText(ratio["calls_per_second"].get<double>(), 2), " times the calls a second, ",
                    NumberText(ratio["p50"].get<double>(), 2), " times the p50 and ",
                    NumberText(ratio["p99"].get<double>(), 2), " times the p99\n");
    document->json["ratios"].push_back(std::move(ratio));
  }
}

}  // namespace

Document BenchReport(const std::vector<BenchPoint>& points, const BenchOptions& options) {
  const bool open = !options.rate.empty();
  const bool compare = !options.compare.empty();
  Document document;
  const std::string name = options.open_inference ? options.pipeline : PipelineName(options.pipeline);
  document.json = {{options.open_inference ? "model" : "pipeline", name},
                   {"calls", options.train ? "train" : "infer"},
                   {"points", Json::array()}};
  std::vector<Table::Column> columns;
  std::vector<std::string> csv_keys;
  if (compare) {
    columns.push_back({"SERVER"});
    csv_keys.push_back("server");
  }
  for (const std::string title :
       {open ? "RATE" : "CALLERS", "PER SECOND", "P50 MS", "P90 MS", "P95 MS", "P99 MS", "FAILED"}) {
    columns.push_back({title, true});
  }
  for (const std::string key :
       {LevelName(options), "calls_per_second", "p50_ms", "p90_ms", "p95_ms", "p99_ms", "failures"}) {
    csv_keys.push_back(key);
  }
  for (const ServerFigure& figure : points.front().figures) {
    columns.push_back({figure.title, true});
    csv_keys.push_back(figure.csv_key);
  }
  columns.push_back({""});
  csv_keys.push_back("stable");
  Table table(std::move(columns));
  std::string csv = absl::StrJoin(csv_keys, ",") + "\n";
  for (const BenchPoint& point : points) {
    const LoadWindow& measured = point.result.measured;
    std::vector<std::string> cells;
    if (compare) cells.push_back(point.server);
    cells.insert(cells.end(), {NumberText(point.level, point.level == std::floor(point.level) ? 0 : 2),
                               NumberText(measured.throughput(), 2), Milliseconds(point, 50), Milliseconds(point, 90),
                               Milliseconds(point, 95), Milliseconds(point, 99), absl::StrCat(measured.failures)});
    std::vector<std::string> values = cells;
    for (const ServerFigure& figure : point.figures) {
      cells.push_back(figure.text);
      values.push_back(figure.csv);
    }
    cells.push_back(point.result.stable ? "" : "unstable");
    values.push_back(point.result.stable ? "true" : "false");
    table.Add(cells);
    absl::StrAppend(&csv, absl::StrJoin(values, ","), "\n");
    document.json["points"].push_back(PointJson(point, options));
    document.lines.push_back(PointJson(point, options));
  }
  document.names = {name};
  document.text = table.Text(false);
  if (compare) AddRatios(points, options, points.front().server, &document);
  if (options.csv) document.text = csv;
  return document;
}

}  // namespace penstock
