// penstock top

#include <algorithm>
#include <map>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "client/cli/command_table.h"
#include "client/cli/lane_bars.h"
#include "client/cli/message_json.h"
#include "client/cli/number_checks.h"
#include "client/cli/pipeline_text.h"
#include "client/cli/rank_text.h"
#include "client/cli/terminal.h"
#include "client/lib/deadline.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

struct TopOptions {
  std::string pipeline;  // empty: all
  double interval_seconds = 1;
  int looks = 0;    // 0: until Ctrl-C
  int columns = 0;  // of a bar; 0: as the terminal is wide
};

// Of a line, beside its bar: the lane before it, shares, memory and the longest state behind it.
constexpr int kBesideBar = 62;
constexpr int kUsualBar = 48;
constexpr int kMinBar = 8;
constexpr int kMaxBar = 400;

struct Look {
  std::map<std::string, v1::PipelineStatistics> pipelines;  // by name
  std::map<std::string, absl::Status> others;               // by name: why they have no statistics now
  v1::GroupInfo group;                                      // without ranks: the daemon is alone
  absl::Time time;
};

absl::StatusOr<Look> LookAt(const TopOptions& options, PipelineClient& client, Clock* clock) {
  Look look{.time = clock->WallNow()};
  PENSTOCK_ASSIGN_OR_RETURN(const v1::ServerInfo info, client.GetServerInfo());
  look.group = info.group();
  std::vector<std::string> names;
  if (options.pipeline.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::vector<v1::Pipeline> pipelines, client.ListPipelines());
    for (const v1::Pipeline& pipeline : pipelines) names.push_back(pipeline.name());
  } else {
    names.push_back(PipelineName(options.pipeline));
  }
  for (const std::string& name : names) {
    absl::StatusOr<v1::PipelineStatistics> statistics = client.Statistics(name);
    // One that is being made or deleted, or waits for its group, has none; that is an error where it was asked for by name.
    if (!statistics.ok() && (!options.pipeline.empty() || client.cancelled())) return statistics.status();
    if (statistics.ok()) {
      look.pipelines.emplace(name, *std::move(statistics));
    } else {
      look.others.emplace(name, statistics.status());
    }
  }
  return look;
}

Json LaneJson(const LaneShares& lane) {
  Json states = Json::object();
  for (const auto& [state, seconds] : lane.seconds) states[std::string(NameOf(state))] = seconds / lane.total();
  return {{"lane", lane.lane},   {"device", lane.device},   {"state", lane.state},
          {"busy", lane.busy()}, {"bubble", lane.bubble()}, {"memory_bytes", lane.memory_bytes},
          {"states", states}};
}

void AddPipeline(const std::string& name, const v1::PipelineStatistics& before, const v1::PipelineStatistics& after,
                 const TopOptions& options, bool colours, Document* document, std::vector<LaneShares>* all) {
  const std::vector<LaneShares> lanes = SharesBetween(before, after);
  double work = 0, in_step = 0;
  Json json = {{"pipeline", name}, {"step", after.step()}, {"samples", after.samples() - before.samples()}};
  std::string text;
  for (const LaneShares& lane : lanes) {
    work += lane.work();
    in_step += lane.in_step();
    json["lanes"].push_back(LaneJson(lane));
    absl::StrAppend(&text, absl::StrFormat("  %2d %-8s |", lane.lane, lane.device),
                    LaneBar(lane, options.columns, colours),
                    absl::StrFormat("| %7s %7s %10s  %s\n", PercentText(lane.busy()), PercentText(lane.bubble()),
                                    BytesText(static_cast<double>(lane.memory_bytes)), lane.state));
    all->push_back(lane);
  }
  const double bubble = in_step > 0 ? 1 - work / in_step : 0;
  json["bubble"] = bubble;
  json["ideal_bubble"] = after.ideal_bubble();
  json["train_queue_depth"] = after.train_queue_depth();
  json["infer_queue_depth"] = after.infer_queue_depth();
  absl::StrAppend(&document->text, ShortName(name), "  step ", after.step(),
                  after.has_loss() ? "  loss " + NumberText(after.loss(), 4) : "", "  bubble ",
                  in_step > 0 ? PercentText(bubble) : "-", " (ideal ", PercentText(after.ideal_bubble()), ")  queued ",
                  after.train_queue_depth(), " train, ", after.infer_queue_depth(), " infer  handles ", after.handles(),
                  "\n", text);
  document->json["pipelines"].push_back(json);
  document->names.push_back(name);
}

void AddGroup(const Look& before, const Look& after, Document* document) {
  if (after.group.ranks().empty()) return;
  document->json["group"] = MessageToJson(after.group);
  const std::string links = LinksText(before.group, after.group, absl::ToDoubleSeconds(after.time - before.time));
  absl::StrAppend(&document->text, "\n", GroupLine(after.group), "\n",
                  RanksText(after.group, static_cast<double>(absl::ToUnixMicros(after.time)) * 1e-6, false),
                  links.empty() ? "" : "\n", links);
}

Document Show(const Look& before, const Look& after, const TopOptions& options, bool colours) {
  Document document;
  document.json = {{"pipelines", Json::array()}};
  std::vector<LaneShares> all;
  document.text = absl::StrFormat("%-14s%-*s%9s %7s %10s  %s\n", "PIPELINE", options.columns, "", "BUSY", "BUBBLE",
                                  "ACTIVATION", "STATE");
  for (const auto& [name, statistics] : after.pipelines) {
    const auto old = before.pipelines.find(name);
    AddPipeline(name, old == before.pipelines.end() ? v1::PipelineStatistics() : old->second, statistics, options,
                colours, &document, &all);
  }
  for (const auto& [name, why] : after.others) {
    document.json["pipelines"].push_back({{"pipeline", name}, {"reason", ReasonOf(why)}});
    absl::StrAppend(&document.text, ShortName(name), "  ", ReasonOf(why), ": ", why.message(), "\n");
  }
  if (after.pipelines.empty() && after.others.empty())
    document.text += "no pipelines; next: penstock pipeline create NAME --model gpt\n";
  absl::StrAppend(&document.text, LaneLegend(all, colours), "\n");
  AddGroup(before, after, &document);
  document.lines = {document.json};
  return document;
}

absl::Status Top(const TopOptions& options, Session& session) {
  session.set_endless();
  TopOptions shape = options;
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  const bool live = session.out_has_colours() && (session.options().output == OutputFormat::kTable ||
                                                  session.options().output == OutputFormat::kWide);
  PENSTOCK_ASSIGN_OR_RETURN(Look before, LookAt(options, *client, session.clock()));
  const std::unique_ptr<Terminal> terminal = live ? session.OpenTerminal() : nullptr;
  Clock* clock = session.clock();
  const bool never = false;
  absl::Mutex mutex;
  for (int shown = 0; options.looks == 0 || shown < options.looks; ++shown) {
    // In pieces, so that Ctrl-C and q are heard.
    const int64_t next = DeadlineAfter(clock, absl::Seconds(options.interval_seconds));
    while (clock->NowNanos() < next && !session.cancelled()) {
      if (terminal != nullptr && terminal->Pressed('q')) return absl::OkStatus();
      absl::MutexLock lock(&mutex);
      clock->AwaitUntil(&mutex, absl::Condition(&never), std::min(next, clock->NowNanos() + 100'000'000));
    }
    if (session.cancelled()) return absl::OkStatus();
    absl::StatusOr<Look> after = LookAt(options, *client, clock);
    if (session.cancelled()) return absl::OkStatus();
    PENSTOCK_RETURN_IF_ERROR(after.status());
    const int columns = terminal != nullptr ? terminal->Columns() : 0;  // at each look: it may have changed
    if (options.columns == 0) {
      shape.columns = columns == 0 ? kUsualBar : std::clamp(columns - kBesideBar, kMinBar, kMaxBar);
    }
    Document document = Show(before, *after, shape, live);
    if (columns > 0) document.text = CutLines(document.text, columns);
    if (live) document.text = "\x1b[H\x1b[2J" + document.text;
    session.Print(document);
    if (!session.out()) return absl::OkStatus();  // nobody reads it: the exit code tells
    before = *std::move(after);
  }
  return absl::OkStatus();
}

}  // namespace

void AddTopCommand(CommandTable& table) {
  CLI::App* command =
      table.Add(table.root(), "top", "Show what the lanes and the links of ranks are doing, again and again",
                "penstock top    # q ends it\npenstock top gpt --interval 0.5\npenstock top --looks 1 -o json");
  auto options = std::make_shared<TopOptions>();
  command->add_option("PIPELINE", options->pipeline, "Only this pipeline");
  command->add_option("--interval", options->interval_seconds, "Time that each look covers")
      ->check(CLI::Range(0.1, 3600.0))
      ->type_name("SECONDS")
      ->capture_default_str();
  command->add_option("--looks", options->looks, "How many looks; 0: until Ctrl-C")
      ->check(NonNegative())
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--columns", options->columns, "Width of a bar; unset: as the terminal is wide")
      ->check(CLI::Range(kMinBar, kMaxBar))
      ->type_name("N");
  table.Run(command, [options](Session& session) { return Top(*options, session); });
}

}  // namespace penstock
