#include "client/cli/commands/pipeline_schedule.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/exit_code.h"
#include "client/cli/number_checks.h"
#include "client/cli/pipeline_text.h"
#include "engine/base/status_macros.h"
#include "engine/schedule/action.h"
#include "engine/schedule/render.h"
#include "engine/schedule/timed_schedule.h"

namespace penstock {
namespace {

// Pictures count in units of kTicksPerUnit; here one is a millisecond.
Ticks MillisecondTicks(int64_t nanos) { return nanos * kTicksPerUnit / 1'000'000; }

std::string Millis(double seconds) { return absl::StrFormat("%.3f ms", seconds * 1e3); }
std::string MillisOf(int64_t nanos) { return absl::StrFormat("%.3f", static_cast<double>(nanos) * 1e-6); }

absl::StatusOr<Simulation> PictureOf(const v1::GetScheduleResponse& schedule, bool measured) {
  std::vector<std::vector<TimedAction>> lanes(schedule.devices_size());
  for (const v1::ScheduledAction& one : schedule.actions()) {
    PENSTOCK_ASSIGN_OR_RETURN(const Action action, ParseAction(one.action()));
    if (one.lane() < 0 || one.lane() >= schedule.devices_size()) continue;
    const int64_t start = measured ? one.measured_start_nanos() : one.planned_start_nanos();
    const int64_t end = measured ? one.measured_end_nanos() : one.planned_end_nanos();
    lanes[one.lane()].push_back({action, MillisecondTicks(start), MillisecondTicks(end)});
  }
  return SimulationOf(std::move(lanes));
}

std::string TotalsText(const v1::ScheduleTotals& totals) {
  return absl::StrCat(Millis(totals.makespan_seconds()), ", bubble ", PercentText(totals.bubble()));
}

// "1f1b, 2 lanes, 8 micro-batches; planned 12.000 ms, bubble 11.1 %; step 7 measured 12.500 ms, ... (+4.2 %)"
std::string Heading(const v1::GetScheduleResponse& schedule, const std::string& name) {
  std::string text = absl::StrCat(name, ": ", schedule.kind(), ", ", schedule.devices_size(), " lanes, ",
                                  schedule.stages(), " stages, ", schedule.micro_batches(), " micro-batches\n",
                                  "planned   ", TotalsText(schedule.planned()), "\n");
  if (schedule.has_measured()) {
    const double planned = schedule.planned().makespan_seconds();
    const double more = planned > 0 ? schedule.measured().makespan_seconds() / planned - 1 : 0;
    absl::StrAppend(&text, "measured  ", TotalsText(schedule.measured()), ", step ", schedule.step(), ", ",
                    absl::StrFormat("%+.1f %% of the plan\n", 100 * more));
  }
  return text;
}

Table DeviationTable(const v1::GetScheduleResponse& schedule) {
  Table table({{"LANE", true},
               {"ACTION"},
               {"WHAT"},
               {"PLANNED", true},
               {"MEASURED", true},
               {"STARTS", true},
               {"PLANNED START", true, true},
               {"OF THE STEP", true}});
  for (const v1::ScheduleDeviation& one : schedule.deviations()) {
    const v1::ScheduledAction& where = one.where();
    table.Add({absl::StrCat(where.lane()), where.action(),
               one.kind() == v1::ScheduleDeviation::KIND_WAIT ? "wait before it" : "duration",
               Millis(one.planned_seconds()), Millis(one.measured_seconds()),
               MillisOf(where.measured_start_nanos()) + " ms", MillisOf(where.planned_start_nanos()) + " ms",
               absl::StrFormat("%+.1f %%", 100 * one.share())});
  }
  return table;
}

std::string CsvText(const v1::GetScheduleResponse& schedule) {
  const bool measured = schedule.has_measured();
  std::string text = absl::StrCat("action,lane,planned_start_ms,planned_end_ms",
                                  measured ? ",measured_start_ms,measured_end_ms\n" : "\n");
  for (const v1::ScheduledAction& one : schedule.actions()) {
    absl::StrAppend(&text, one.action(), ",", one.lane(), ",", MillisOf(one.planned_start_nanos()), ",",
                    MillisOf(one.planned_end_nanos()));
    if (measured) {
      absl::StrAppend(&text, ",", MillisOf(one.measured_start_nanos()), ",", MillisOf(one.measured_end_nanos()));
    }
    text += "\n";
  }
  return text;
}

std::string ActionsText(const v1::GetScheduleResponse& schedule) {
  const bool measured = schedule.has_measured();
  std::vector<Table::Column> columns = {{"LANE", true}, {"ACTION"}, {"PLANNED AT", true}, {"TAKES", true}};
  if (measured) columns.insert(columns.end(), {{"MEASURED AT", true}, {"TAKES", true}, {"LONGER BY", true}});
  Table table(columns);
  for (const v1::ScheduledAction& one : schedule.actions()) {
    const int64_t planned = one.planned_end_nanos() - one.planned_start_nanos();
    const int64_t took = one.measured_end_nanos() - one.measured_start_nanos();
    std::vector<std::string> row = {absl::StrCat(one.lane()), one.action(), MillisOf(one.planned_start_nanos()),
                                    MillisOf(planned)};
    if (measured)
      row.insert(row.end(), {MillisOf(one.measured_start_nanos()), MillisOf(took), MillisOf(took - planned)});
    table.Add(row);
  }
  return table.Text(false);
}

// Both pictures, if something was measured, on one scale.
absl::StatusOr<std::string> GanttText(const v1::GetScheduleResponse& schedule, int columns) {
  PENSTOCK_ASSIGN_OR_RETURN(const Simulation planned, PictureOf(schedule, false));
  if (!schedule.has_measured()) return "planned, in ms\n" + RenderGantt(planned, {.columns = columns, .totals = false});
  PENSTOCK_ASSIGN_OR_RETURN(const Simulation measured, PictureOf(schedule, true));
  const auto longest = static_cast<double>(std::max<Ticks>({planned.makespan, measured.makespan, 1}));
  const auto scaled = [&](const Simulation& one) {
    const double share = static_cast<double>(one.makespan) / longest;
    return RenderGantt(one, {.columns = static_cast<int>(std::lround(share * columns)), .totals = false});
  };
  return absl::StrCat("planned, in ms\n", scaled(planned), "\nmeasured, in ms\n", scaled(measured));
}

absl::StatusOr<std::string> Drawing(const v1::GetScheduleResponse& schedule, const std::string& form, int columns) {
  if (form == "gantt") return GanttText(schedule, columns);
  if (form == "csv") return CsvText(schedule);
  if (form == "text") return ActionsText(schedule);
  if (form == "deviations") return DeviationTable(schedule).Text(true);
  PENSTOCK_ASSIGN_OR_RETURN(const Simulation picture, PictureOf(schedule, schedule.has_measured()));
  return RenderSvg(picture);
}

}  // namespace

void AddPipelineScheduleOptions(CLI::App* show, PipelineScheduleOptions* options) {
  CLI::Option* pipeline =
      show->add_option("--pipeline", options->pipeline, "That of a live pipeline, in milliseconds")->type_name("NAME");
  for (CLI::Option* other : show->get_options([](const CLI::Option* option) { return !option->get_name().empty(); })) {
    const std::string name = other->get_name();
    const bool shared = name == "--pipeline" || name == "--micro-batches" || name == "--as" || name == "--columns" ||
                        name.find("help") != std::string::npos;
    if (!shared) pipeline->excludes(other);
  }
  CLI::Option* measured =
      show->add_flag("--measured", options->measured, "As its last step ran, beside the plan")->needs(pipeline);
  show->add_option("--step", options->step, "As this step ran")->check(Positive())->type_name("N")->needs(measured);
}

absl::Status ShowPipelineSchedule(const PipelineScheduleOptions& options, const std::string& form, int columns,
                                  Session& session) {
  if (form == "grid") return UsageError("--as", "of a pipeline can be gantt, svg, csv, text or deviations, got grid");
  if (form == "deviations" && !options.measured) {
    return UsageError("--measured", "is required: deviations are those from the plan");
  }
  if (options.measured && options.micro_batches > 0) {
    return UsageError("--micro-batches", "can't be chosen for what was measured");
  }
  v1::GetScheduleRequest request;
  request.set_pipeline(PipelineName(options.pipeline));
  request.set_source(options.measured ? v1::GetScheduleRequest::SOURCE_MEASURED
                                      : v1::GetScheduleRequest::SOURCE_PLANNED);
  request.set_step(options.step);
  request.set_micro_batches(options.micro_batches);
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  PENSTOCK_ASSIGN_OR_RETURN(const v1::GetScheduleResponse schedule, client->GetSchedule(request));
  PENSTOCK_ASSIGN_OR_RETURN(const std::string drawing, Drawing(schedule, form, columns));

  Document document;
  document.json = MessageToJson(schedule);
  for (const v1::ScheduledAction& one : schedule.actions()) {
    document.lines.push_back(MessageToJson(one));
    document.names.push_back(one.action());
  }
  // A file for programs holds nothing else.
  const bool plain = form == "svg" || form == "csv";
  document.text = plain ? drawing : Heading(schedule, ShortName(request.pipeline())) + "\n" + drawing;
  if (form == "gantt" && schedule.deviations_size() > 0) {
    v1::GetScheduleResponse first = schedule;
    while (first.deviations_size() > 5) first.mutable_deviations()->RemoveLast();
    document.text += "\nlargest deviations\n" + DeviationTable(first).Text(false);
  }
  session.Print(document);
  return absl::OkStatus();
}

}  // namespace penstock
