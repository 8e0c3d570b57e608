// penstock evaluate

#include <cmath>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/byte_model.h"
#include "client/cli/command_table.h"
#include "client/cli/number_checks.h"
#include "client/cli/text_options.h"
#include "client/cli/text_windows.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

constexpr int64_t kWaitSeconds = 60;
constexpr absl::Duration kLongestBatch = absl::Hours(1);

struct EvaluateOptions : TextOptions {
  std::string pipeline;
  std::vector<std::string> metrics;
  int64_t batches = 8;
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

  Json ToJson(const std::string& pipeline) const {
    Json metrics = Json::object();
    for (const auto& [name, sum] : metrics_) metrics[name] = Mean(sum, metric_elements_);
    return {{"pipeline", pipeline},
            {"step", last_.step()},
            {"state_token", last_.state_token()},
            {"loss", Loss()},
            {"perplexity", std::exp(Loss())},
            {"metrics", metrics},
            {"counted_elements", counted_},
            {"rows", rows_}};
  }

  std::string Text() const {
    std::string text =
        absl::StrFormat("loss %s  perplexity %s", NumberText(Loss(), 4), NumberText(std::exp(Loss()), 2));
    for (const auto& [name, sum] : metrics_) {
      absl::StrAppend(&text, "  ", name, " ", NumberText(Mean(sum, metric_elements_), 4));
    }
    return absl::StrCat(text, "  of ", CountText(std::llround(counted_)), " bytes in ", CountText(rows_),
                        " rows, at step ", last_.step(), "\n");
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

absl::StatusOr<v1::Outcome> EvaluateBatch(PipelineClient& client, const ByteModel& model,
                                          const TextWindows::Batch& batch, const std::vector<std::string>& metrics) {
  v1::EvaluateRequest request;
  request.set_pipeline(model.pipeline);
  const auto set = [](const std::string& name, const HostTensor& tensor, v1::Input* input) {
    input->set_name(name);
    *input->mutable_tensor() = tensor.ToMessage();
    input->mutable_tensor()->mutable_header()->set_name(name);
  };
  set(model.input, batch.inputs, request.add_inputs());
  set(model.target, batch.targets, request.mutable_target());
  if (!model.loss.empty()) request.mutable_loss()->set_name(model.loss);
  request.mutable_metrics()->Assign(metrics.begin(), metrics.end());
  request.mutable_reply()->mutable_wait_for()->set_seconds(kWaitSeconds);
  PENSTOCK_ASSIGN_OR_RETURN(const v1::EvaluateResponse response, client.Evaluate(std::move(request)));
  const std::string& name = response.outcome().handle().name();
  PENSTOCK_ASSIGN_OR_RETURN(const v1::Handle handle, client.AwaitHandle(name, kLongestBatch));
  client.ReleaseHandles(std::vector<std::string>{name}).status().IgnoreError();  // else its lease ends
  return handle.outcome();
}

absl::Status Evaluate(const EvaluateOptions& options, Session& session) {
  PENSTOCK_ASSIGN_OR_RETURN(std::string text, ReadTexts(options, session));
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  PENSTOCK_ASSIGN_OR_RETURN(const v1::Pipeline pipeline, client->GetPipeline(options.pipeline));
  PENSTOCK_ASSIGN_OR_RETURN(const ByteModel model, AsByteModel(pipeline, options.sequence));
  PENSTOCK_RETURN_IF_ERROR(CheckBatch(options.batch, model.sequence));
  PENSTOCK_ASSIGN_OR_RETURN(const TextWindows windows,
                            TextWindows::Create(std::move(text), model.sequence, options.seed));
  Found found;
  for (int64_t i = 0; i < options.batches; ++i) {
    PENSTOCK_ASSIGN_OR_RETURN(const v1::Outcome outcome,
                              EvaluateBatch(*client, model, windows.BatchOf(i, options.batch), options.metrics));
    found.Add(outcome);
  }
  session.Print({found.ToJson(pipeline.name()), {}, {pipeline.name()}, found.Text(), ""});
  return absl::OkStatus();
}

}  // namespace

void AddEvaluateCommand(CommandTable& table) {
  CLI::App* command = table.Add(table.root(), "evaluate", "Loss and metrics of a byte-level model on text",
                                "penstock evaluate gpt --text held_out.txt --metric accuracy\n"
                                "penstock evaluate gpt --text held_out.txt --batches 32 -o json");
  auto options = std::make_shared<EvaluateOptions>();
  command->add_option("PIPELINE", options->pipeline, "Name of the pipeline")->required();
  AddTextOption(command, options.get(), "File to evaluate on; repeatable; - is stdin");
  command->add_option("--metric", options->metrics, "accuracy, top_5_accuracy (or another number); repeatable")
      ->type_name("NAME")
      ->allow_extra_args(false);
  command->add_option("--batches", options->batches, "Mini-batches, of which each row is a random place of the text")
      ->check(Positive())
      ->type_name("N")
      ->capture_default_str();
  AddRowOptions(command, options.get(), "Rows of each mini-batch");
  table.Run(command, [options](Session& session) { return Evaluate(*options, session); });
}

}  // namespace penstock
