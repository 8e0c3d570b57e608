#include "client/cli/training_report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/output.h"
#include "client/lib/durations.h"
#include "engine/observe/stage_state.h"

namespace penstock {
namespace {

double Difference(const v1::LaneStatistics* before, const v1::LaneStatistics& after, const std::string& state) {
  const auto now = after.state_seconds().find(state);
  if (now == after.state_seconds().end()) return 0;
  double then = 0;
  if (before != nullptr) {
    const auto found = before->state_seconds().find(state);
    if (found != before->state_seconds().end()) then = found->second;
  }
  return now->second - then;
}

const v1::LaneStatistics* FindLane(const v1::PipelineStatistics& statistics, int lane) {
  for (const v1::LaneStatistics& candidate : statistics.lanes()) {
    if (candidate.lane() == lane) return &candidate;
  }
  return nullptr;
}

}  // namespace

void CompareStatistics(const v1::PipelineStatistics& before, const v1::PipelineStatistics& after,
                       TrainingReport* report) {
  double work = 0;
  double in_step = 0;
  for (const v1::LaneStatistics& lane : after.lanes()) {
    LaneTime time{lane.lane(), lane.device(), {lane.layers().begin(), lane.layers().end()}, {}, 0};
    const v1::LaneStatistics* earlier = FindLane(before, lane.lane());
    for (const StageStateInfo& info : StageStates()) {
      const std::string state(info.name);
      const double seconds = Difference(earlier, lane, state);
      if (seconds <= 0) continue;
      time.seconds.emplace_back(state, seconds);
      time.total += seconds;
      if (info.state_class == StateClass::kWork) work += seconds;
      if (info.state_class != StateClass::kOutsideStep) in_step += seconds;
    }
    report->lanes.push_back(std::move(time));
  }
  report->wall_seconds = absl::ToDoubleSeconds(FromMessage(after.time()) - FromMessage(before.time()));
  report->bubble_measured = in_step > 0 ? 1 - work / in_step : 0;
  report->bubble_predicted = after.predicted_bubble();
  report->bubble_ideal = after.ideal_bubble();
  report->handles_created = after.handles_created() - before.handles_created();
  report->handles_live = after.handles();
}

Json ReportJson(const TrainingReport& report) {
  Json lanes = Json::array();
  for (const LaneTime& lane : report.lanes) {
    Json seconds = Json::object();
    for (const auto& [state, value] : lane.seconds) seconds[state] = value;
    lanes.push_back({{"lane", lane.lane}, {"device", lane.device}, {"layers", lane.layers}, {"seconds", seconds}});
  }
  return {
      {"steps", report.steps},
      {"loss_first", report.loss_first},
      {"loss_last", report.loss_last},
      {"samples_per_second", report.SamplesPerSecond()},
      {"bubble",
       {{"measured", report.bubble_measured}, {"predicted", report.bubble_predicted}, {"ideal", report.bubble_ideal}}},
      {"lanes", lanes},
      {"versions", report.versions}};
}

std::string ReportText(const TrainingReport& report) {
  std::vector<Table::Column> columns = {{"SECONDS"}};
  for (const LaneTime& lane : report.lanes) {
    columns.push_back({absl::StrCat("LANE ", lane.lane, " ", lane.device), true});
    columns.push_back({"", true});
  }
  Table table(columns);
  const auto add_row = [&](const std::string& name, const auto& seconds_of) {
    std::vector<std::string> row = {name};
    bool any = false;
    for (const LaneTime& lane : report.lanes) {
      const double seconds = seconds_of(lane);
      any = any || seconds > 0;
      row.push_back(NumberText(seconds, 2));
      row.push_back(lane.total > 0 ? PercentText(seconds / lane.total) : "");
    }
    if (any) table.Add(std::move(row));
  };
  for (const StageStateInfo& info : StageStates()) {
    add_row(std::string(info.name), [&](const LaneTime& lane) {
      for (const auto& [state, seconds] : lane.seconds) {
        if (state == info.name) return seconds;
      }
      return 0.0;
    });
  }
  add_row("sum", [](const LaneTime& lane) { return lane.total; });
  std::string text = "Where the time went\n" + table.Text(false);
  absl::StrAppendFormat(&text, "wall time  %.2f\n\n", report.wall_seconds);
  absl::StrAppend(&text, "Bubble     ", PercentText(report.bubble_measured), " measured, ",
                  PercentText(report.bubble_predicted), " predicted, ", PercentText(report.bubble_ideal), " ideal\n");
  absl::StrAppend(&text, "Loss       ", NumberText(report.loss_first, 4), " at the first step, ",
                  NumberText(report.loss_last, 4), " at the last\n");
  absl::StrAppendFormat(&text, "Speed      %d steps of %d rows in %.1f s: %.1f samples/s\n", report.steps, report.rows,
                        report.seconds, report.SamplesPerSecond());
  if (report.not_applied > 0) {
    absl::StrAppend(&text, "Not applied  ", report.not_applied, " steps: their loss or gradient was not finite\n");
  }
  absl::StrAppend(&text, "Handles    ", report.handles_created, " created, ", report.handles_live, " live\n");
  std::vector<std::string> versions;
  for (const auto& [name, version] : report.versions) versions.push_back(name + " " + version);
  text += "Versions   ";
  for (size_t i = 0; i < versions.size(); ++i) text += (i == 0 ? "" : ", ") + versions[i];
  absl::StrAppend(&text, "\nAPI        ", report.api_address, "\nMetrics    ",
                  report.metrics_address.empty() ? "off" : report.metrics_address, "\n");
  return text;
}

}  // namespace penstock
