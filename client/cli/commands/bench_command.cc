// penstock bench

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "client/cli/bench_calls.h"
#include "client/cli/bench_load.h"
#include "client/cli/command_table.h"
#include "client/cli/exit_code.h"
#include "client/cli/lane_bars.h"
#include "client/cli/number_checks.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

constexpr size_t kHandlesPerRelease = 32;
constexpr int kOpenLoopCallers = 64;

struct BenchOptions {
  std::string pipeline;
  std::string concurrency = "1";
  std::string rate;  // empty: closed loop
  bool train = false;
  BenchInput input;
  double stability_percentage = 10;
  double threshold_ms = 0;  // 0: none
  bool csv = false;
  LoadOptions load;
};

// One load and what came of it.
struct Point {
  double level = 0;
  LoadResult result;
  double busy = 0;          // share of the lanes' time with work, inference included, in the daemon's own counters
  int64_t queue_depth = 0;  // calls of the kind that waited, at the end
  double compute = 0;  // of a step, from its start to its end in the daemon, on average; the rest is queue and network
};

// "4" or "1:8" or "1:8:2": from, to and step, ends included.
absl::StatusOr<std::vector<double>> ParseRange(const std::string& text, const std::string& option) {
  std::vector<double> parts;
  for (const absl::string_view part : absl::StrSplit(text, ':')) {
    double value = 0;
    if (!absl::SimpleAtod(part, &value) || value <= 0 || value > 1e6) {
      return UsageError(option, "must be FROM, FROM:TO or FROM:TO:STEP with numbers above 0, got " + text);
    }
    parts.push_back(value);
  }
  if (parts.size() == 1) parts.push_back(parts[0]);
  if (parts.size() == 2) parts.push_back(1);
  if (parts.size() != 3 || parts[1] < parts[0] || (parts[1] - parts[0]) / parts[2] > 1000) {
    return UsageError(option, "must be FROM, FROM:TO or FROM:TO:STEP, at most 1000 of them, got " + text);
  }
  std::vector<double> levels;
  for (int i = 0; parts[0] + i * parts[2] <= parts[1] * (1 + 1e-9); ++i) levels.push_back(parts[0] + i * parts[2]);
  return levels;
}

// Gives results back, many at a time, from any thread.
class Releases {
 public:
  explicit Releases(PipelineClient* client) : client_(client) {}

  void Add(const std::string& handle) ABSL_LOCKS_EXCLUDED(mu_) {
    std::vector<std::string> full;
    {
      absl::MutexLock lock(&mu_);
      names_.push_back(handle);
      if (names_.size() >= kHandlesPerRelease) full.swap(names_);
    }
    if (!full.empty()) client_->ReleaseHandles(full).status().IgnoreError();
  }

  // What is left; `client` is one that still works.
  void Flush(PipelineClient* client) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (!names_.empty()) client->ReleaseHandles(names_).status().IgnoreError();
    names_.clear();
  }

 private:
  PipelineClient* const client_;
  absl::Mutex mu_;
  std::vector<std::string> names_ ABSL_GUARDED_BY(mu_);
};

// The calls that are measured: one request, sent again and again from any thread.
class Calls {
 public:
  explicit Calls(v1::InferRequest request) : infer_(std::move(request)) {}
  explicit Calls(v1::TrainStepRequest request) : train_(std::move(request)) {}

  const std::string& pipeline() const { return train_.has_value() ? train_->pipeline() : infer_->pipeline(); }

  // The handle to give back. One that does not come to be ready goes to `releases`.
  absl::StatusOr<std::string> Call(PipelineClient* client, Releases* releases) ABSL_LOCKS_EXCLUDED(mu_) {
    v1::Handle handle;
    if (train_.has_value()) {
      PENSTOCK_ASSIGN_OR_RETURN(const v1::TrainStepResponse response, client->TrainStep(*train_));
      handle = response.outcome().handle();
    } else {
      PENSTOCK_ASSIGN_OR_RETURN(const v1::InferResponse response, client->Infer(*infer_));
      handle = response.outputs().handle();
    }
    if (handle.state() != v1::HANDLE_STATE_READY) {
      absl::StatusOr<v1::Handle> ready = client->AwaitHandle(handle.name(), absl::Minutes(10));
      if (!ready.ok()) {
        releases->Add(handle.name());
        return ready.status();
      }
      handle = *std::move(ready);
    }
    absl::MutexLock lock(&mu_);
    compute_seconds_ += handle.outcome().seconds();
    ++computed_;
    return handle.name();
  }

  // Since the last time that it was asked.
  double TakeMeanCompute() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const double mean = computed_ > 0 ? compute_seconds_ / static_cast<double>(computed_) : 0;
    compute_seconds_ = 0;
    computed_ = 0;
    return mean;
  }

 private:
  const std::optional<v1::InferRequest> infer_;
  const std::optional<v1::TrainStepRequest> train_;
  absl::Mutex mu_;
  double compute_seconds_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t computed_ ABSL_GUARDED_BY(mu_) = 0;
};

absl::StatusOr<Point> RunPoint(double level, const BenchOptions& options, Calls& calls, PipelineClient* client,
                               Session& session) {
  LoadOptions load = options.load;
  load.stability = options.stability_percentage / 100;
  if (options.rate.empty()) {
    load.callers = static_cast<int>(level);
  } else {
    load.callers = kOpenLoopCallers;
    load.rate = level;
  }
  Releases releases(client);
  const LoadWork work = {[&] { return calls.Call(client, &releases); },
                         [&](const std::string& handle) { releases.Add(handle); }};
  PENSTOCK_ASSIGN_OR_RETURN(const v1::PipelineStatistics before, client->Statistics(calls.pipeline()));
  Point point;
  point.level = level;
  point.result = RunLoad(load, work, session.clock(), [&session] { return session.cancelled(); });
  if (session.cancelled()) {
    if (const auto last = session.LastClient(); last.ok()) releases.Flush(last->get());
    return Error(absl::StatusCode::kCancelled, "WORK_CANCELLED", "interrupted");
  }
  releases.Flush(client);
  if (point.result.measured.latencies.empty() && !point.result.first_failure.ok()) return point.result.first_failure;
  PENSTOCK_ASSIGN_OR_RETURN(const v1::PipelineStatistics after, client->Statistics(calls.pipeline()));
  const std::vector<LaneShares> lanes = SharesBetween(before, after);
  for (const LaneShares& lane : lanes) point.busy += lane.busy() / static_cast<double>(lanes.size());
  point.queue_depth = options.train ? after.train_queue_depth() : after.infer_queue_depth();
  point.compute = calls.TakeMeanCompute();
  return point;
}

std::string Milliseconds(const Point& point, double percent) {
  return NumberText(Percentile(point.result.measured.latencies, percent) * 1e3, 2);
}

Json PointJson(const Point& point, const BenchOptions& options) {
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

Document Report(const std::vector<Point>& points, const BenchOptions& options) {
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
  for (const Point& point : points) {
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

absl::Status Bench(const BenchOptions& options, Session& session) {
  const bool open = !options.rate.empty();
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<double> levels, open ? ParseRange(options.rate, "--rate")
                                                                   : ParseRange(options.concurrency, "--concurrency"));
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  PENSTOCK_ASSIGN_OR_RETURN(const v1::Pipeline pipeline, client->GetPipeline(options.pipeline));
  std::unique_ptr<Calls> calls;
  if (options.train) {
    PENSTOCK_ASSIGN_OR_RETURN(v1::TrainStepRequest request, MakeTrainRequest(pipeline, options.input, session));
    calls = std::make_unique<Calls>(std::move(request));
  } else {
    PENSTOCK_ASSIGN_OR_RETURN(v1::InferRequest request, MakeInferRequest(pipeline, options.input, session));
    calls = std::make_unique<Calls>(std::move(request));
  }
  std::vector<Point> points;
  double highest = 0;
  bool over = false;
  for (const double level : levels) {
    if (!open && (level != std::floor(level) || level > 1024)) {
      return UsageError("--concurrency", absl::StrCat("must be whole numbers up to 1024, got ", level));
    }
    PENSTOCK_ASSIGN_OR_RETURN(Point point, RunPoint(level, options, *calls, client, session));
    const double latency = Percentile(point.result.measured.latencies, options.load.percentile) * 1e3;
    over = options.threshold_ms > 0 && (latency > options.threshold_ms || point.result.measured.failures > 0);
    if (!point.result.stable) session.set_unstable();
    if (!over) highest = level;
    points.push_back(std::move(point));
    if (over) break;
  }
  Document document = Report(points, options);
  if (options.threshold_ms > 0) {
    document.json["highest_load_within_threshold"] = highest;
    if (!options.csv) {
      absl::StrAppend(&document.text, "highest load with p", options.load.percentile, " within ", options.threshold_ms,
                      " ms: ", highest > 0 ? absl::StrCat(highest) : "none", over ? "" : " (the range ended there)",
                      "\n");
    }
  }
  session.Print(document);
  return absl::OkStatus();
}

}  // namespace

void AddBenchCommand(CommandTable& table) {
  CLI::App* command =
      table.Add(table.root(), "bench", "Measure latency and throughput under load, of inference or of training",
                "penstock bench gpt --concurrency 1:8\n"
                "penstock bench gpt --rate 10:100:10 --poisson --latency-threshold 50\n"
                "penstock bench gpt --train --concurrency 1:4 --rows 32\n"
                "penstock bench mlp --concurrency 16 --input batch.safetensors -o json");
  auto options = std::make_shared<BenchOptions>();
  LoadOptions& load = options->load;
  command->add_option("PIPELINE", options->pipeline, "Name of the pipeline")->required();
  CLI::Option* concurrency =
      command->add_option("--concurrency", options->concurrency, "Closed loop: calls in flight, FROM:TO:STEP")
          ->type_name("RANGE")
          ->capture_default_str();
  command->add_option("--rate", options->rate, "Open loop instead: calls per second, FROM:TO:STEP")
      ->type_name("RANGE")
      ->excludes(concurrency);
  command->add_flag("--poisson", load.poisson, "Open loop: calls come at random instead of evenly");
  command->add_option("--seed", load.seed, "Of the random gaps")->type_name("N")->capture_default_str();
  command->add_flag(
      "--train", options->train,
      "Training steps instead of inference, with a learning rate of 0: weights stay, the step number rises");
  command
      ->add_option("--input", options->input.file,
                   "Tensors named as the pipeline's inputs (and its target), safetensors; unset: made up")
      ->type_name("FILE");
  command->add_option("--rows", options->input.rows, "Rows of a made-up input")
      ->check(CLI::Range(1, 1'000'000))
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--sequence", options->input.sequence, "Length of its rows, where the pipeline does not say")
      ->check(Positive())
      ->type_name("N");
  const auto seconds = [&](const char* name, double* value, const char* help) {
    command->add_option(name, *value, help)
        ->check(CLI::Range(0.05, 3600.0))
        ->type_name("SECONDS")
        ->capture_default_str();
  };
  seconds("--warm-up", &load.warm_up_seconds, "Calls before the first window are not counted");
  seconds("--window", &load.window_seconds, "Length of a window");
  command->add_option("--max-windows", load.max_windows, "Give up, as unstable, after so many")
      ->check(CLI::Range(3, 1000))
      ->type_name("N")
      ->capture_default_str();
  command
      ->add_option("--stability-percentage", options->stability_percentage,
                   "Three windows in a row must be within it of their mean, in throughput and in the percentile")
      ->check(CLI::Range(0.0, 200.0))
      ->type_name("P")
      ->capture_default_str();
  command->add_option("--percentile", load.percentile, "Which one must be stable, and is compared with the threshold")
      ->check(CLI::Range(1.0, 100.0))
      ->type_name("P")
      ->capture_default_str();
  command
      ->add_option("--latency-threshold", options->threshold_ms,
                   "Stop at the first load above it; names the last below")
      ->check(Positive())
      ->type_name("MS");
  command->add_flag("--csv", options->csv, "Comma-separated values instead of a table");
  table.Run(command, [options](Session& session) { return Bench(*options, session); });
}

}  // namespace penstock
