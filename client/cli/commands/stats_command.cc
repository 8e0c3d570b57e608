// penstock stats

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/command_table.h"
#include "client/cli/number_checks.h"
#include "client/cli/pipeline_text.h"
#include "client/lib/durations.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

struct StatsOptions {
  std::string pipeline;
  double interval_seconds = 1;
  int updates = 1;  // 0: until Ctrl-C
};

std::string LanesText(const v1::PipelineStatistics& statistics, bool wide) {
  Table table({{"LANE", true},
               {"DEVICE"},
               {"STATE"},
               {"AGE", true},
               {"PEAK ACTIVATION", true},
               {"SECONDS", false, true},
               {"LAYERS", false, true}});
  for (const v1::LaneStatistics& lane : statistics.lanes()) {
    double age = 0;
    std::vector<std::string> states;
    for (const auto& [state, seconds] : std::map(lane.state_seconds().begin(), lane.state_seconds().end())) {
      age += seconds;
      if (seconds > 0) states.push_back(absl::StrCat(state, " ", NumberText(seconds, 3)));
    }
    table.Add({absl::StrCat(lane.lane()), lane.device(), lane.state(), ClockText(age),
               BytesText(static_cast<double>(lane.peak_activation_bytes())), absl::StrJoin(states, ", "),
               absl::StrJoin(lane.layers(), ", ")});
  }
  return table.Text(wide);
}

std::string StatsText(const std::string& name, const v1::PipelineStatistics& statistics, bool wide) {
  return absl::StrCat(
      name, "  step ", statistics.step(), statistics.has_loss() ? "  loss " + NumberText(statistics.loss(), 4) : "",
      "  rows ", statistics.samples(), "  bubble ",
      statistics.samples() > 0 ? PercentText(statistics.measured_bubble()) : "-", " (predicted ",
      PercentText(statistics.predicted_bubble()), ", ideal ", PercentText(statistics.ideal_bubble()), ")\nqueued ",
      statistics.train_queue_depth(), " train, ", statistics.infer_queue_depth(), " infer  handles ",
      statistics.handles(), ", ", BytesText(static_cast<double>(statistics.handle_bytes())), " of ",
      statistics.handles_created(), " made\n", LanesText(statistics, wide));
}

absl::Status Stats(const StatsOptions& options, Session& session) {
  if (options.updates != 1) session.set_endless();
  const std::string name = PipelineName(options.pipeline);
  v1::WatchStatisticsRequest request;
  request.set_pipeline(name);
  request.set_max_updates(options.updates);
  *request.mutable_interval() = ToMessage(absl::Seconds(options.interval_seconds));
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  const absl::Status watched = client->WatchStatistics(request, [&](const v1::PipelineStatistics& statistics) {
    session.Print({MessageToJson(statistics),
                   {},
                   {name},
                   StatsText(ShortName(name), statistics, false),
                   StatsText(ShortName(name), statistics, true)});
    return static_cast<bool>(session.out());  // where nobody reads it, the exit code tells
  });
  return session.cancelled() ? absl::OkStatus() : watched;
}

}  // namespace

void AddStatsCommand(CommandTable& table) {
  CLI::App* command = table.Add(table.root(), "stats", "Show the counts of a pipeline since it was made",
                                "penstock stats gpt\npenstock stats gpt --updates 0 --interval 5 -o jsonl");
  auto options = std::make_shared<StatsOptions>();
  command->add_option("PIPELINE", options->pipeline, "Name of the pipeline")->required();
  command->add_option("--interval", options->interval_seconds, "Time between two updates")
      ->check(CLI::Range(0.1, 3600.0))
      ->type_name("SECONDS")
      ->capture_default_str();
  command->add_option("--updates", options->updates, "How many; 0: until Ctrl-C")
      ->check(NonNegative())
      ->type_name("N")
      ->capture_default_str();
  table.Run(command, [options](Session& session) { return Stats(*options, session); });
}

}  // namespace penstock
