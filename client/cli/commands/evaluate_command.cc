// penstock evaluate

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/array_file.h"
#include "client/cli/command_table.h"
#include "client/cli/data_batches.h"
#include "client/cli/number_checks.h"
#include "client/cli/standing_pipeline.h"
#include "client/cli/text_batches.h"
#include "client/cli/text_options.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

constexpr int64_t kTextBatches = 8;
constexpr int64_t kWaitSeconds = 60;
constexpr absl::Duration kLongestBatch = absl::Hours(1);

struct EvaluateOptions : TextOptions {
  std::string pipeline;
  std::vector<std::string> metrics;
  std::optional<int64_t> batches;
};

// Means over all mini-batches so far: the loss over counted elements, metrics over theirs.
class Found {
 public:
  void Add(const v1::Outcome& outcome) {
    const auto elements = static_cast<double>(outcome.metric_elements());
    loss_ += outcome.loss() * outcome.counted_elements();
    for (const auto& [name, value] : outcome.metrics()) metrics_[name] += value * elements;
    counted_ += outcome.counted_elements();
    metric_elements_ += elements;
    rows_ += outcome.rows();
    last_ = outcome;
  }

  // Of text: with the perplexity, which elements of arrays have not.
  Json ToJson(const std::string& pipeline, bool of_text) const {
    Json metrics = Json::object();
    for (const auto& [name, sum] : metrics_) metrics[name] = Mean(sum, metric_elements_);
    Json json = {{"pipeline", pipeline}, {"step", last_.step()}, {"state_token", last_.state_token()},
                 {"loss", Loss()},       {"metrics", metrics},   {"counted_elements", counted_},
                 {"rows", rows_}};
    if (of_text) json["perplexity"] = std::exp(Loss());
    return json;
  }

  std::string Text(bool of_text) const {
    std::string text = absl::StrCat("loss ", NumberText(Loss(), 4));
    if (of_text) absl::StrAppend(&text, "  perplexity ", NumberText(std::exp(Loss()), 2));
    for (const auto& [name, sum] : metrics_) {
      absl::StrAppend(&text, "  ", name, " ", NumberText(Mean(sum, metric_elements_), 4));
    }
    return absl::StrCat(text, "  of ", CountText(std::llround(counted_)), of_text ? " bytes in " : " elements in ",
                        CountText(rows_), " rows, at step ", last_.step(), "\n");
  }

 private:
  static double Mean(double sum, double of) { return of == 0 ? 0 : sum / of; }
  double Loss() const { return Mean(loss_, counted_); }

  double loss_ = 0;
  std::map<std::string, double> metrics_;
  double counted_ = 0;
  double metric_elements_ = 0;
  int64_t rows_ = 0;
  v1::Outcome last_;
};

absl::StatusOr<v1::Outcome> EvaluateBatch(PipelineClient& client, const std::string& pipeline, const Batch& batch,
                                          const std::vector<std::string>& metrics) {
  v1::EvaluateRequest request;
  request.set_pipeline(pipeline);
  SetBatch(batch, &request);
  request.mutable_metrics()->Assign(metrics.begin(), metrics.end());
  request.mutable_reply()->mutable_wait_for()->set_seconds(kWaitSeconds);
  PENSTOCK_ASSIGN_OR_RETURN(const v1::EvaluateResponse response, client.Evaluate(std::move(request)));
  const std::string& name = response.outcome().handle().name();
  PENSTOCK_ASSIGN_OR_RETURN(const v1::Handle handle, client.AwaitHandle(name, kLongestBatch));
  client.ReleaseHandles(std::vector<std::string>{name}).status().IgnoreError();  // else its lease ends
  return handle.outcome();
}

struct Batches {
  BatchSource source;
  int64_t count = 0;
};

absl::StatusOr<Batches> BatchesOf(const EvaluateOptions& options, const std::optional<ArrayFile>& file,
                                  std::string text, const v1::Pipeline& pipeline) {
  if (!file.has_value()) {
    PENSTOCK_ASSIGN_OR_RETURN(BatchSource source,
                              TextBatches(pipeline, std::move(text), options.batch, options.sequence, options.seed));
    return Batches{std::move(source), options.batches.value_or(kTextBatches)};
  }
  PENSTOCK_ASSIGN_OR_RETURN(DataRows rows, DataRows::Create(*file, pipeline.signature(), options.target));
  const int64_t all = rows.rows() / options.batch + (rows.rows() % options.batch == 0 ? 0 : 1);
  return Batches{BatchesInOrder(std::move(rows), options.batch), std::min(all, options.batches.value_or(all))};
}

absl::Status Evaluate(const EvaluateOptions& options, Session& session) {
  PENSTOCK_ASSIGN_OR_RETURN(std::string text, ReadTexts(options, session));
  std::optional<ArrayFile> file;
  if (!options.data.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(file, ArrayFile::Open(options.data));
  }
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  PENSTOCK_ASSIGN_OR_RETURN(const v1::Pipeline pipeline, StandingPipeline(*client, options.pipeline));
  PENSTOCK_ASSIGN_OR_RETURN(const Batches batches, BatchesOf(options, file, std::move(text), pipeline));
  Found found;
  for (int64_t i = 0; i < batches.count; ++i) {
    PENSTOCK_ASSIGN_OR_RETURN(const Batch batch, batches.source(i));
    PENSTOCK_ASSIGN_OR_RETURN(const v1::Outcome outcome,
                              EvaluateBatch(*client, pipeline.name(), batch, options.metrics));
    found.Add(outcome);
  }
  const bool of_text = !file.has_value();
  session.Print({found.ToJson(pipeline.name(), of_text), {}, {pipeline.name()}, found.Text(of_text), ""});
  return absl::OkStatus();
}

}  // namespace

void AddEvaluateCommand(CommandTable& table) {
  CLI::App* command = table.Add(table.root(), "evaluate", "Loss and metrics on text, as bytes, or on arrays of a file",
                                "penstock evaluate gpt --text held_out.txt --metric accuracy\n"
                                "penstock evaluate mlp --data test.npz --metric mean_absolute_error\n"
                                "penstock evaluate gpt --text held_out.txt --batches 32 -o json");
  auto options = std::make_shared<EvaluateOptions>();
  command->add_option("PIPELINE", options->pipeline, "Name of the pipeline")->required();
  AddSourceOptions(
      command, options.get(), "File to evaluate on; repeatable; - is stdin",
      "Instead, arrays with rows, .npz or safetensors, named as the pipeline's inputs and target: each row once");
  command->add_option("--metric", options->metrics, "accuracy, top_5_accuracy (or another number); repeatable")
      ->type_name("NAME")
      ->allow_extra_args(false);
  command
      ->add_option("--batches", options->batches,
                   "Mini-batches, at most: of text 8, of which each row is a random place; of --data all")
      ->check(Positive())
      ->type_name("N");
  AddRowOptions(command, options.get(), "Rows of each mini-batch",
                "Of the choice of text; rows of --data are in order");
  table.Run(command, [options](Session& session) { return Evaluate(*options, session); });
}

}  // namespace penstock
