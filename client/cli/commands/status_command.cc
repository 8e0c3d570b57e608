// penstock status

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/command_table.h"
#include "client/cli/pipeline_text.h"
#include "client/cli/rank_text.h"
#include "client/lib/durations.h"
#include "engine/base/clock.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

struct PipelineView {
  v1::Pipeline pipeline;
  v1::PipelineStatistics statistics;
};

std::string ServerText(const v1::ServerInfo& info, absl::Duration age, bool wide) {
  std::string text = absl::StrCat("penstockd ", info.version(), "  ", info.state(), "  API ", info.api_address(),
                                  "  metrics ", info.metrics_address().empty() ? "off" : info.metrics_address(),
                                  "  epoch ", info.epoch(), "  up ", ClockText(absl::ToDoubleSeconds(age)), "\n");
  std::vector<std::string> devices;
  for (const v1::DeviceInfo& device : info.devices()) {
    devices.push_back(
        absl::StrCat(device.name(), " (cores ", absl::StrJoin(device.cores(), ","),
                     device.memory_limit_bytes() > 0
                         ? absl::StrCat(", limit ", BytesText(static_cast<double>(device.memory_limit_bytes())))
                         : "",
                     ")"));
  }
  absl::StrAppend(&text, "Devices   ", absl::StrJoin(devices, ", "), "\n", "Handles   ", info.handles(), " live, ",
                  BytesText(static_cast<double>(info.handle_bytes())), "\n");
  if (info.has_group()) absl::StrAppend(&text, "Group     ", GroupLine(info.group()), "\n");
  if (wide) {
    const auto join = [](const auto& words) { return absl::StrJoin(words, ", "); };
    absl::StrAppend(&text, "Models    ", join(info.models()), "\nLayers    ", join(info.layers()), "\nSchedules ",
                    join(info.schedules()), "\nOptimizers ", join(info.optimizers()), "\nLosses    ",
                    join(info.losses()), "\n");
  }
  return text;
}

std::string GroupText(const v1::ServerInfo& info, absl::Time now, bool wide) {
  if (!info.has_group()) return "";
  const std::string links = LinksText({}, info.group(), 0);
  return absl::StrCat("\n", RanksText(info.group(), static_cast<double>(absl::ToUnixMicros(now)) * 1e-6, wide),
                      links.empty() ? "" : "\n", links);
}

std::string PipelinesText(const std::vector<PipelineView>& views, bool wide) {
  if (views.empty()) return "\nno pipelines; next: penstock pipeline create NAME --model gpt\n";
  Table table({{"PIPELINE"},
               {"STATE"},
               {"STEP", true},
               {"LOSS", true},
               {"BUBBLE", true},
               {"PREDICTED", true, true},
               {"IDEAL", true},
               {"QUEUED", true},
               {"HANDLES", true},
               {"LANES NOW", false, true}});
  for (const auto& [pipeline, statistics] : views) {
    std::vector<std::string> lanes;
    for (const v1::LaneStatistics& lane : statistics.lanes()) lanes.push_back(lane.state());
    table.Add({ShortName(pipeline.name()), StateWord(pipeline.state()), absl::StrCat(pipeline.step()),
               statistics.has_loss() ? NumberText(statistics.loss(), 4) : "-",
               statistics.samples() > 0 ? PercentText(statistics.measured_bubble()) : "-",
               PercentText(statistics.predicted_bubble()), PercentText(statistics.ideal_bubble()),
               absl::StrCat(statistics.train_queue_depth() + statistics.infer_queue_depth()),
               absl::StrCat(statistics.handles()), absl::StrJoin(lanes, ", ")});
  }
  return "\n" + table.Text(wide);
}

absl::Status Status(Session& session) {
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  PENSTOCK_ASSIGN_OR_RETURN(const v1::ServerInfo info, client->GetServerInfo());
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<v1::Pipeline> pipelines, client->ListPipelines());
  std::vector<PipelineView> views;
  Document document;
  document.json = {{"server", MessageToJson(info)}, {"pipelines", Json::array()}};
  for (const v1::Pipeline& pipeline : pipelines) {
    PipelineView view{pipeline, {}};
    // A pipeline that is being made or deleted has no statistics; that is no failure of `status`.
    absl::StatusOr<v1::PipelineStatistics> statistics = client->Statistics(pipeline.name());
    if (statistics.ok()) view.statistics = *statistics;
    document.json["pipelines"].push_back(
        {{"pipeline", MessageToJson(view.pipeline)}, {"statistics", MessageToJson(view.statistics)}});
    document.names.push_back(pipeline.name());
    views.push_back(std::move(view));
  }
  const absl::Time now = session.clock()->WallNow();
  const absl::Duration age = now - FromMessage(info.start_time());
  document.lines = {document.json};
  document.text = ServerText(info, age, false) + GroupText(info, now, false) + PipelinesText(views, false);
  document.wide = ServerText(info, age, true) + GroupText(info, now, true) + PipelinesText(views, true);
  session.Print(document);
  return absl::OkStatus();
}

}  // namespace

void AddStatusCommand(CommandTable& table) {
  CLI::App* command = table.Add(table.root(), "status", "Show the daemon, its devices, its ranks and its pipelines",
                                "penstock status\npenstock status -o wide\npenstock status -o json");
  table.Run(command, Status);
}

}  // namespace penstock
