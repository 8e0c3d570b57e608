// One pipeline: its lanes as they are now, and its last step.

#include "absl/strings/str_cat.h"
#include "engine/base/log.h"
#include "server/http/pages/lines.h"
#include "server/http/step_picture.h"

namespace penstock {
namespace {

// The lanes side by side, coloured by state.
Section LaneGraph(const PipelineMetrics& pipeline, int64_t now) {
  Section section{.id = "lanes", .title = "Lanes now"};
  section.columns = {{"lane", "lane"},
                     {"device", "device"},
                     {"layers", "layers"},
                     {"state", "state"},
                     {"busy_ratio", "busy in steps"},
                     {"inflight", "in flight"},
                     {"stash_bytes", "stash"},
                     {"progress_seconds", "last action"}};
  const double wall = static_cast<double>(absl::ToUnixNanos(pipeline.clock()->WallNow())) * 1e-9;
  std::string html = "<ol class=\"lanes\">\n";
  for (int i = 0; i < pipeline.lane_count(); ++i) {
    const LaneMetrics& lane = pipeline.lane(i);
    const StateTimes times = lane.state.Snapshot(now);
    const ClassTimes classes = TimesSinceStart(times);
    const std::string state(NameOf(times.state));
    const Cell busy = Share(classes.InStep() == 0 ? 0 : 1 - classes.MeasuredBubble());
    section.rows.push_back({Count(i), lane.description.device, lane.description.layers, StateCell(state), busy,
                            Count(lane.inflight_micro_batches.value()),
                            Bytes((*lane.memory)[MemoryKind::kStash].value()),
                            Seconds(std::max(0.0, wall - lane.last_progress.seconds()))});
    absl::StrAppend(&html, "<li class=\"edge-", state, "\"><b>lane ", i, "</b> <span class=\"where\">",
                    HtmlEscape(lane.description.device), "</span><span class=\"state s-", state, "\">", state,
                    "</span>");
    absl::StrAppend(&html, "<span class=\"small\">layers ", HtmlEscape(lane.description.layers),
                    "</span><span class=\"small\">", busy.text, " busy in steps</span></li>\n");
  }
  html += "</ol>\n";
  Section drawn = section;
  drawn.rows.clear();
  drawn.picture = Section::Picture{.html = html, .text = "", .json = ""};
  // Text and JSON are those of the table.
  const Document alone{.title = "", .state = "", .sections = {section}};
  const std::string text = ToText(alone);
  const std::string json = ToJson(alone);
  drawn.picture->text = text.substr(text.find('\n', text.find(section.title)) + 1);
  const size_t begin = json.find('[');
  drawn.picture->json = json.substr(begin, json.rfind(']') - begin + 1);
  return drawn;
}

// Where the time of each lane went since its start.
Section StateShares(const PipelineMetrics& pipeline, int64_t now) {
  Section section{.id = "state_seconds", .title = "Where the time went"};
  section.note = "Since the pipeline was made. Every second of a lane is in exactly one state.";
  section.columns = {{"state", "state"}};
  std::vector<StateTimes> lanes = pipeline.LaneTimes(now);
  for (size_t i = 0; i < lanes.size(); ++i)
    section.columns.push_back({absl::StrCat("lane_", i), absl::StrCat("lane ", i)});
  for (const StageStateInfo& info : StageStates()) {
    std::vector<Cell> row = {StateCell(info.name)};
    int64_t sum = 0;
    for (const StateTimes& lane : lanes) {
      sum += lane[info.state];
      row.push_back(Seconds(static_cast<double>(lane[info.state]) * 1e-9));
    }
    if (sum > 0) section.rows.push_back(std::move(row));
  }
  return section;
}

}  // namespace

Document PipelinePage(const StatusSources& sources, const PipelineMetrics& one) {
  const int64_t now = sources.registry->clock()->NowNanos();
  Document page{
      .title = absl::StrCat("Pipeline ", one.name()), .state = StateLine(sources), .sections = {}, .refresh = true};
  page.sections.push_back(LaneGraph(one, now));
  page.sections.push_back(DrawStep(LastStep(one)));
  const ScheduleDescription schedule = one.schedule();
  const ClassTimes times = TimesOf(one, now);
  Section facts{.id = "figures", .title = "Figures"};
  facts.Fact("schedule", "schedule", schedule.kind);
  facts.Fact("micro_batches", "micro-batches", Count(schedule.micro_batches));
  facts.Fact("chunks", "stages per lane", Count(schedule.chunks));
  facts.Fact("checkpoint_mode", "recomputation", schedule.checkpoint_mode);
  facts.Fact("step", "finished steps", Count(one.step_number.value()));
  facts.Fact("loss", "last loss", one.step_number.value() > 0 ? Count(one.loss.value()) : Unknown());
  facts.Fact("measured_bubble", "bubble, measured", times.InStep() > 0 ? Share(times.MeasuredBubble()) : Unknown());
  if (one.lane_count() > 0) {
    facts.Fact("predicted_bubble", "bubble, predicted", Share(one.lane(0).predicted_bubble.value()));
    facts.Fact("ideal_bubble", "bubble, ideal", Share(one.lane(0).ideal_bubble.value()));
  }
  facts.Fact("fill_ratio", "bubble filled by inference", Share(times.FillRatio()));
  facts.Fact("open_runs", "open runs", Count(static_cast<double>(OpenRuns(one))));
  page.sections.push_back(std::move(facts));
  page.sections.push_back(StateShares(one, now));
  for (const auto& [id, output] :
       {std::pair("pipeline", sources.commands.pipeline), std::pair("statistics", sources.commands.statistics)}) {
    Section section{.id = id, .title = "", .programs_only = true};
    section.json = [output = output, name = one.name()] { return output ? output(name) : std::string("null"); };
    page.sections.push_back(std::move(section));
  }
  return page;
}

}  // namespace penstock
