// Pages about the daemon as a whole.

#include <algorithm>
#include <cctype>
#include <optional>

#include "absl/strings/str_cat.h"
#include "engine/observe/process_statistics.h"
#include "server/http/pages/lines.h"

namespace penstock {
namespace {

// For a query: whatever is no letter, digit or hyphen as %XX.
std::string UrlEscape(std::string_view text) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0 || c == '-') {
      out += c;
    } else {
      out += {'%', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return out;
}

Section PipelineList(const StatusSources& sources) {
  Section section{.id = "pipelines", .title = "Pipelines"};
  section.empty = "no pipeline yet: penstock pipeline create NAME --model gpt --stages 2";
  section.columns = {
      {"name", "name"},           {"state", "state"},  {"schedule", "schedule"},      {"stages", "stages"},
      {"step", "step"},           {"loss", "loss"},    {"measured_bubble", "bubble"}, {"ideal_bubble", "ideal"},
      {"open_runs", "open runs"}, {"queued", "queued"}};
  const int64_t now = sources.registry->clock()->NowNanos();
  for (const PipelineRow& row : sources.pipelines()) {
    const auto pipeline = sources.registry->Find(row.name);
    if (pipeline == nullptr) {  // being made or deleted
      section.rows.push_back({row.name, row.state});
      section.rows.back().resize(section.columns.size(), Unknown());
      continue;
    }
    const ScheduleDescription schedule = pipeline->schedule();
    double queued = 0;
    for (size_t i = 0; i < kWorkQueueNames.size(); ++i) queued += pipeline->queues.at(i).depth.value();
    const ClassTimes times = TimesOf(*pipeline, now);
    const double steps = pipeline->step_number.value();
    section.rows.push_back({PipelineLink(row.name), row.state, schedule.kind, Count(pipeline->lane_count()),
                            Count(steps), steps > 0 ? Count(pipeline->loss.value()) : Unknown(),
                            times.InStep() > 0 ? Share(times.MeasuredBubble()) : Unknown(),
                            Share(pipeline->lane_count() > 0 ? pipeline->lane(0).ideal_bubble.value() : 0),
                            Count(static_cast<double>(OpenRuns(*pipeline))), Count(queued)});
  }
  section.json = sources.commands.pipelines;
  return section;
}

}  // namespace

std::string StateLine(const StatusSources& sources) {
  const auto pipelines = sources.registry->Snapshot();
  int64_t open = 0;
  for (const auto& pipeline : pipelines) open += OpenRuns(*pipeline);
  const DaemonFacts facts = sources.facts();
  return absl::StrCat(facts.state, ", ", pipelines.size(), pipelines.size() == 1 ? " pipeline" : " pipelines", ", ",
                      open, open == 1 ? " run open" : " runs open", ", up ",
                      Seconds(AgeOf(*sources.registry, facts.start_unix_seconds)).text);
}

double AgeOf(const MetricsRegistry& registry, double unix_seconds) {
  return std::max(0.0, static_cast<double>(absl::ToUnixNanos(registry.clock()->WallNow())) * 1e-9 - unix_seconds);
}

Cell PipelineLink(const std::string& name) { return Linked(name, absl::StrCat("/pipeline?name=", UrlEscape(name))); }

ClassTimes TimesOf(const PipelineMetrics& pipeline, int64_t now_nanos) {
  ClassTimes times;
  for (const StateTimes& lane : pipeline.LaneTimes(now_nanos)) times += TimesSinceStart(lane);
  return times;
}

int64_t OpenRuns(const PipelineMetrics& pipeline) {
  double open = 0;
  for (size_t mode = 0; mode < kBatchModeNames.size(); ++mode) open += pipeline.runs_active.at(mode).value();
  return static_cast<int64_t>(open);
}

Document IndexPage(const StatusSources& sources) {
  Document page{.title = "Overview", .state = StateLine(sources), .sections = {PipelineList(sources)}, .refresh = true};
  Section more{.id = "more", .title = "For machines"};
  more.columns = {{"path", "path"}, {"what", "what"}};
  more.rows = {
      {Linked("/metrics", "/metrics"), "for Prometheus"},
      {Linked("/healthz?verbose", "/healthz?verbose"), "does every pipeline get on, and if not, which stands still"},
      {Linked("/readyz?verbose", "/readyz?verbose"), "does the daemon take work, and if not, why"}};
  page.sections.push_back(std::move(more));
  return page;
}

Document StatusPage(const StatusSources& sources) {
  Document page{.title = "Status", .state = StateLine(sources), .sections = {}, .refresh = true};
  const DaemonFacts facts = sources.facts();
  const BuildDescription build = sources.registry->server().build();
  Section daemon{.id = "server", .title = "Daemon"};
  daemon.json = sources.commands.server;
  daemon.Fact("state", "state", facts.state);
  daemon.Fact("version", "version", build.version);
  daemon.Fact("torch", "LibTorch", build.torch);
  daemon.Fact("api_address", "API", facts.api_address);
  daemon.Fact("metrics_address", "metrics", facts.metrics_address.empty() ? "off" : facts.metrics_address);
  daemon.Fact("admin_address", "status pages", facts.admin_address);
  daemon.Fact("epoch", "epoch", Count(static_cast<double>(facts.epoch)));
  page.sections.push_back(std::move(daemon));
  AddRanks(sources, &page);

  Section process{.id = "process", .title = "Process"};
  process.Fact("uptime_seconds", "up", Seconds(AgeOf(*sources.registry, facts.start_unix_seconds)));
  if (const auto read = ReadProcessStatistics(); read.ok()) {
    process.Fact("cpu_seconds", "processor time", Seconds(read->cpu_seconds));
    process.Fact("resident_bytes", "resident memory", Bytes(static_cast<double>(read->resident_bytes)));
    process.Fact("open_files", "open files", Count(static_cast<double>(read->open_files)));
  }
  page.sections.push_back(std::move(process));

  Section conditions{.id = "conditions", .title = "Ready?"};
  conditions.columns = {{"name", "condition"}, {"holds", "holds"}, {"detail", "why"}};
  for (const HealthCondition& condition : sources.probes.ready()) {
    Cell holds(condition.holds ? "yes" : "no");
    holds.mark = condition.holds ? "good" : "bad";
    conditions.rows.push_back({condition.name, std::move(holds), condition.detail});
  }
  page.sections.push_back(std::move(conditions));

  Section lanes{.id = "lanes", .title = "Lanes"};
  lanes.empty = "no pipeline, no lanes";
  lanes.columns = {{"pipeline", "pipeline"}, {"lane", "lane"},   {"device", "device"},
                   {"layers", "layers"},     {"state", "state"}, {"state_seconds", "since"}};
  std::optional<int> follows;
  if (sources.follower != nullptr) follows = sources.follower().rank;
  const int64_t now = sources.registry->clock()->NowNanos();
  for (const auto& pipeline : sources.registry->Snapshot()) {
    for (int i = 0; i < pipeline->lane_count(); ++i) {
      const LaneDescription& lane = pipeline->lane(i).description;
      // Of another one's lanes only the leader is told.
      if (follows.has_value() && lane.rank != Rank(*follows)) continue;
      const StateTimes times = pipeline->lane(i).state.Snapshot(now);
      lanes.rows.push_back({PipelineLink(pipeline->name()), Count(i), lane.device, lane.layers,
                            StateCell(NameOf(times.state)),
                            Seconds(static_cast<double>(times.at_nanos - times.since_nanos) * 1e-9)});
    }
  }
  page.sections.push_back(std::move(lanes));
  page.sections.push_back(PipelineList(sources));
  return page;
}

Document FlagPage(const StatusSources& sources) {
  Document page{.title = "Settings", .state = StateLine(sources), .sections = {}};
  Section section{.id = "settings", .title = ""};
  section.note = "A flag wins over PENSTOCK_* variables, those over the file that --config names.";
  section.columns = {{"name", "setting"}, {"value", "value"}, {"origin", "from"}, {"help", "meaning"}};
  for (const SettingRow& row : sources.settings) {
    Cell origin(row.origin);
    if (row.origin != "default") origin.mark = "chosen";
    section.rows.push_back({"--" + row.name, row.value, std::move(origin), row.help});
  }
  page.sections.push_back(std::move(section));
  return page;
}

}  // namespace penstock
