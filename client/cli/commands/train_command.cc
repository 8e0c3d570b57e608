// penstock train

#include <deque>
#include <memory>
#include <numeric>
#include <optional>

#include "absl/strings/str_format.h"
#include "client/cli/array_file.h"
#include "client/cli/command_table.h"
#include "client/cli/data_batches.h"
#include "client/cli/number_checks.h"
#include "client/cli/output_file.h"
#include "client/cli/pipeline_text.h"
#include "client/cli/progress.h"
#include "client/cli/standing_pipeline.h"
#include "client/cli/text_batches.h"
#include "client/cli/text_options.h"
#include "client/cli/training_report.h"
#include "client/cli/training_run.h"
#include "engine/base/clock.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

constexpr absl::Duration kPatience = absl::Minutes(2);  // for a daemon that is being restarted
constexpr size_t kRecentSteps = 16;                     // over which progress shows speed and bubble

struct TrainOptions : TextOptions {
  std::string pipeline;
  int64_t steps = 100;
  std::string json;
};

// Follows the steps: losses for the report, speed and bubble of the last few for the progress line.
class StepFollower {
 public:
  StepFollower(const TrainOptions& options, double ideal_bubble, Clock* clock, Progress* progress)
      : options_(options), ideal_bubble_(ideal_bubble), clock_(clock), progress_(progress), start_(clock->NowNanos()) {}

  void OnStep(int64_t number, const v1::Outcome& outcome) {
    const int64_t now = clock_->NowNanos();
    if (number == 1) report_.loss_first = outcome.loss();
    report_.loss_last = outcome.loss();
    report_.steps = number;
    report_.seconds = static_cast<double>(now - start_) * 1e-9;
    if (outcome.has_applied() && !outcome.applied()) ++report_.not_applied;
    recent_.push_back({now, outcome.measured_bubble()});
    if (recent_.size() > kRecentSteps) recent_.pop_front();
    progress_->Show(number, Line(number, outcome));
  }

  TrainingReport& report() { return report_; }

 private:
  struct Recent {
    int64_t end_nanos;
    double bubble;
  };

  std::string Line(int64_t number, const v1::Outcome& outcome) const {
    const int64_t since = recent_.size() > 1 ? recent_.front().end_nanos : start_;
    const double steps = static_cast<double>(recent_.size() > 1 ? recent_.size() - 1 : 1);
    const double seconds_per_step = static_cast<double>(recent_.back().end_nanos - since) * 1e-9 / steps;
    const double bubble = std::accumulate(recent_.begin(), recent_.end(), 0.0,
                                          [](double sum, const Recent& r) { return sum + r.bubble; }) /
                          static_cast<double>(recent_.size());
    return absl::StrFormat("step %d/%d  loss %s  %.1f samples/s  left %s  bubble %s (ideal %s)%s", number,
                           options_.steps, NumberText(outcome.loss(), 4),
                           seconds_per_step > 0 ? static_cast<double>(options_.batch) / seconds_per_step : 0.0,
                           ClockText(seconds_per_step * static_cast<double>(options_.steps - number)),
                           PercentText(bubble), PercentText(ideal_bubble_),
                           outcome.has_applied() && !outcome.applied() ? "  NOT APPLIED" : "");
  }

  const TrainOptions& options_;
  const double ideal_bubble_;
  Clock* const clock_;
  Progress* const progress_;
  const int64_t start_;
  TrainingReport report_;
  std::deque<Recent> recent_;
};

absl::StatusOr<BatchSource> DataBatches(const TrainOptions& options, const ArrayFile& file,
                                        const v1::Pipeline& pipeline) {
  PENSTOCK_ASSIGN_OR_RETURN(DataRows rows, DataRows::Create(file, pipeline.signature(), options.target));
  return ShuffledBatches(std::move(rows), options.batch, options.seed);
}

void NameServer(const v1::ServerInfo& server, TrainingReport* report) {
  report->versions.insert(server.versions().begin(), server.versions().end());
  report->versions["penstock"] = server.version();
  report->api_address = server.api_address();
  report->metrics_address = server.metrics_address();
}

absl::Status Train(const TrainOptions& options, Session& session) {
  PENSTOCK_ASSIGN_OR_RETURN(std::string text, ReadTexts(options, session));
  std::optional<ArrayFile> file;
  if (!options.data.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(file, ArrayFile::Open(options.data));
  }
  session.set_endless();
  OutputFile json_file(options.json, session.out(), session.stop());
  if (!options.json.empty()) PENSTOCK_RETURN_IF_ERROR(json_file.Open());  // before hours of training, not after them
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client(kPatience));
  PENSTOCK_ASSIGN_OR_RETURN(const v1::Pipeline pipeline, StandingPipeline(*client, options.pipeline));
  PENSTOCK_ASSIGN_OR_RETURN(
      BatchSource batches, file.has_value()
                               ? DataBatches(options, *file, pipeline)
                               : TextBatches(pipeline, std::move(text), options.batch, options.sequence, options.seed));
  PENSTOCK_ASSIGN_OR_RETURN(const v1::ServerInfo server, client->GetServerInfo());
  PENSTOCK_ASSIGN_OR_RETURN(const v1::PipelineStatistics before, client->Statistics(pipeline.name()));

  Progress progress(session.err(), session.err_is_terminal() && !session.options().no_color, options.steps);
  StepFollower follower(options, before.ideal_bubble(), session.clock(), &progress);
  TrainingRun run(*client, std::move(batches),
                  {.pipeline = pipeline.name(), .steps = options.steps, .first_batch = pipeline.step()});
  const absl::Status status =
      run.Run([&](int64_t number, const v1::Outcome& outcome) { follower.OnStep(number, outcome); });
  progress.Close();
  if (!status.ok()) {
    PENSTOCK_ASSIGN_OR_RETURN(const auto last_client, session.LastClient());
    run.CleanUp(*last_client);
    return status;
  }

  PENSTOCK_ASSIGN_OR_RETURN(const v1::PipelineStatistics after, client->Statistics(pipeline.name()));
  TrainingReport& report = follower.report();
  report.rows = options.batch;
  CompareStatistics(before, after, &report);
  NameServer(server, &report);
  const Json json = ReportJson(report);
  // With --json - stdout holds the document alone.
  if (options.json != "-") session.Print({json, {}, {pipeline.name()}, ReportText(report), ""});
  if (!options.json.empty()) {
    PENSTOCK_RETURN_IF_ERROR(json_file.Append(json.dump(2) + "\n"));
    PENSTOCK_RETURN_IF_ERROR(json_file.Commit());
  }
  const std::string next = file.has_value() ? "evaluate " + ShortName(pipeline.name()) + " --data FILE"
                                            : "infer " + ShortName(pipeline.name()) + " --prompt TEXT --bytes 100";
  const bool all_applied = report.not_applied == 0;
  if (!all_applied) session.set_partial();
  session.Say("trained " + pipeline.name() + " to step " + std::to_string(after.step()) +
              (all_applied ? "" : ", " + std::to_string(report.not_applied) + " steps were not applied") +
              "; next: penstock " + next);
  return absl::OkStatus();
}

}  // namespace

void AddTrainCommand(CommandTable& table) {
  CLI::App* command = table.Add(table.root(), "train", "Train a pipeline on text, as bytes, or on arrays of a file",
                                "penstock train gpt --text book.txt --steps 200 --batch 32\n"
                                "penstock train mlp --data train.npz --steps 200 --batch 32\n"
                                "cat *.txt | penstock train gpt --text - --steps 1000 --json report.json");
  auto options = std::make_shared<TrainOptions>();
  command->add_option("PIPELINE", options->pipeline, "Name of the pipeline")->required();
  AddSourceOptions(command, options.get(), "File to learn from; repeatable; - is stdin",
                   "Instead, arrays with rows, .npz or safetensors, named as the pipeline's inputs and target");
  command->add_option("--steps", options->steps, "Optimizer steps")
      ->check(Positive())
      ->type_name("N")
      ->capture_default_str();
  AddRowOptions(command, options.get(), "Rows of each step",
                "Of the choice of text, or of the order of rows in each epoch");
  command->add_option("--json", options->json, "Write the report as one document; - is stdout")->type_name("FILE");
  table.Run(command, [options](Session& session) { return Train(*options, session); });
}

}  // namespace penstock
