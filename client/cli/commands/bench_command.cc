// penstock bench

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/bench_calls.h"
#include "client/cli/bench_model.h"
#include "client/cli/bench_pipeline.h"
#include "client/cli/bench_point.h"
#include "client/cli/bench_report.h"
#include "client/cli/command_table.h"
#include "client/cli/connection_fault.h"
#include "client/cli/exit_code.h"
#include "client/cli/number_checks.h"
#include "client/cli/standing_pipeline.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

// "4" or "1:8" or "1:8:2": from, to and step, ends included.
absl::StatusOr<std::vector<double>> ParseRange(const std::string& text, const std::string& option) {
  std::vector<double> parts;
  for (const absl::string_view part : absl::StrSplit(text, ':')) {
    double value = 0;
    if (!absl::SimpleAtod(part, &value) || !(value > 0 && value <= 1e6)) {
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

// By address.
using Servers = std::vector<std::pair<std::string, std::unique_ptr<BenchTarget>>>;

absl::StatusOr<std::unique_ptr<BenchTarget>> ModelOf(PipelineClient* client, const BenchOptions& options,
                                                     Session& session) {
  PENSTOCK_ASSIGN_OR_RETURN(const inference::ModelMetadataResponse model, client->ModelMetadata(options.pipeline));
  PENSTOCK_ASSIGN_OR_RETURN(inference::ModelInferRequest request, MakeModelRequest(model, options.input, session));
  return std::make_unique<ModelTarget>(client, std::move(request));
}

absl::StatusOr<std::unique_ptr<BenchTarget>> PipelineOf(PipelineClient* client, const BenchOptions& options,
                                                        Session& session) {
  PENSTOCK_ASSIGN_OR_RETURN(const v1::Pipeline pipeline, StandingPipeline(*client, options.pipeline));
  if (options.train) {
    PENSTOCK_ASSIGN_OR_RETURN(v1::TrainStepRequest request, MakeTrainRequest(pipeline, options.input, session));
    return std::make_unique<PipelineTarget>(client, &session, std::move(request));
  }
  PENSTOCK_ASSIGN_OR_RETURN(v1::InferRequest request, MakeInferRequest(pipeline, options.input, session));
  return std::make_unique<PipelineTarget>(client, &session, std::move(request));
}

absl::StatusOr<Servers> MakeServers(const BenchOptions& options, Session& session) {
  Servers servers;
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  PENSTOCK_ASSIGN_OR_RETURN(
      auto first, options.open_inference ? ModelOf(client, options, session) : PipelineOf(client, options, session));
  servers.emplace_back(session.options().server, std::move(first));
  if (!options.compare.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * other, session.ClientOf("--compare", options.compare));
    auto second = ModelOf(other, options, session);
    if (!second.ok()) return OfCompared(second.status(), options.compare);
    servers.emplace_back(options.compare, *std::move(second));
  }
  return servers;
}

absl::Status Bench(const BenchOptions& options, Session& session) {
  const bool open = !options.rate.empty();
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<double> levels, open ? ParseRange(options.rate, "--rate")
                                                                   : ParseRange(options.concurrency, "--concurrency"));
  if (options.open_inference && options.train) return UsageError("--train", "--open-inference knows no training");
  if (!options.open_inference && !options.compare.empty()) return UsageError("--compare", "needs --open-inference");
  if (options.compare == session.options().server) {
    return UsageError("--compare", "must be another server than --server, got " + options.compare);
  }
  if (options.open_inference && options.stream)
    return UsageError("--stream", "--open-inference has streams of its own");
  session.set_endless();
  if (options.stream) session.set_work_stream();
  PENSTOCK_ASSIGN_OR_RETURN(Servers servers, MakeServers(options, session));
  std::vector<BenchPoint> points;
  double highest = 0;
  bool over = false;
  for (const double level : levels) {
    if (!open && (level != std::floor(level) || level > 1024)) {
      return UsageError("--concurrency", absl::StrCat("must be whole numbers up to 1024, got ", level));
    }
    for (auto& [address, target] : servers) {
      absl::StatusOr<BenchPoint> run = RunBenchPoint(level, options, *target, session);
      if (!run.ok()) return address == options.compare ? OfCompared(run.status(), address) : run.status();
      BenchPoint point = *std::move(run);
      point.server = address;
      const double latency = Percentile(point.result.measured.latencies, options.load.percentile) * 1e3;
      over |= options.threshold_ms > 0 && (latency > options.threshold_ms || point.result.measured.failures > 0);
      if (!point.result.stable) session.set_unstable();
      points.push_back(std::move(point));
    }
    std::reverse(servers.begin(), servers.end());  // so that neither is always the first
    if (over) break;
    highest = level;
  }
  Document document = BenchReport(points, options);
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
                "penstock bench mlp --concurrency 16 --input batch.safetensors -o json\n"
                "penstock bench mlp --open-inference --concurrency 32 --compare 127.0.0.1:8001");
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
  command->add_flag("--stream", options->stream, "All calls on one stream of StreamWork instead of calls of their own");
  command->add_flag("--open-inference", options->open_inference,
                    "By the Open Inference Protocol, of this daemon or of another server");
  command
      ->add_option("--compare", options->compare,
                   "With --open-inference: another server, in turns; it gets the same caller and credentials")
      ->type_name("HOST:PORT");
  command
      ->add_option("--input", options->input.file,
                   "Tensors named as the pipeline's inputs (and its target), safetensors or .npz; unset: made up")
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
