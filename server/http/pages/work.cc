// Pages about what waits, what is kept and what was done: queues, handles, checkpoints, runs.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/observe/trace_capture.h"
#include "engine/observe/trace_export.h"
#include "server/http/pages/lines.h"

namespace penstock {
namespace {

int64_t Took(const RunSpan& run) { return run.end_nanos - run.begin_nanos; }

std::vector<Cell> RunRow(const std::string& pipeline, const RunSpan& run, int64_t now) {
  // An inference stops for an error too, but mostly so that the weights can change; then it runs again.
  const bool trains = Trains(run.purpose);
  Cell ended(!run.failed ? "well" : trains ? "failed" : "stopped");
  ended.mark = !run.failed ? "good" : trains ? "bad" : "";
  const auto seconds = [](int64_t nanos) { return Seconds(static_cast<double>(nanos) * 1e-9); };
  return {PipelineLink(pipeline),
          RunName(run),
          Count(run.micro_batches),
          seconds(Took(run)),
          seconds(std::max<int64_t>(0, now - run.end_nanos)),
          std::move(ended)};
}

}  // namespace

Document QueuePage(const StatusSources& sources) {
  Document page{.title = "Queues", .state = StateLine(sources), .sections = {}, .refresh = true};
  Section queues{.id = "queues", .title = "What waits"};
  queues.note = "In micro-batches. A full queue refuses with QUEUE_FULL and the time after which to ask again.";
  queues.empty = "no pipeline, no queues";
  queues.columns = {{"pipeline", "pipeline"},          {"queue", "queue"},           {"depth", "waiting"},
                    {"capacity", "may wait"},          {"oldest_seconds", "oldest"}, {"waited", "have waited"},
                    {"mean_wait_seconds", "mean wait"}};
  Section refused{.id = "refused", .title = "What was refused"};
  refused.empty = "nothing";
  refused.columns = {{"pipeline", "pipeline"}, {"reason", "reason"}, {"calls", "calls"}};
  const int64_t now = sources.registry->clock()->NowNanos();
  for (const auto& pipeline : sources.registry->Snapshot()) {
    for (size_t i = 0; i < kWorkQueueNames.size(); ++i) {
      const QueueMetrics& queue = pipeline->queues.at(i);
      const HistogramSnapshot wait = queue.wait.Snapshot();
      const auto waited = static_cast<double>(wait.count());
      queues.rows.push_back({PipelineLink(pipeline->name()), std::string(kWorkQueueNames[i]),
                             Count(queue.depth.value()), Count(queue.capacity.value()),
                             Seconds(queue.OldestAgeSeconds(now)), Count(waited),
                             Seconds(waited > 0 ? static_cast<double>(wait.sum_nanos) * 1e-9 / waited : 0)});
    }
    for (size_t i = 0; i < kRejectReasonNames.size(); ++i) {
      const int64_t calls = pipeline->rejected.at(i).value();
      if (calls == 0) continue;
      refused.rows.push_back(
          {PipelineLink(pipeline->name()), std::string(kRejectReasonNames[i]), Count(static_cast<double>(calls))});
    }
  }
  page.sections = {std::move(queues), std::move(refused)};
  return page;
}

Document HandlePage(const StatusSources& sources) {
  Document page{.title = "Handles", .state = StateLine(sources), .sections = {}, .refresh = true};
  const ServerMetrics& server = sources.registry->server();
  Section tiers{.id = "tiers", .title = "What results take"};
  tiers.columns = {{"tier", "where"}, {"bytes", "taken"}, {"limit_bytes", "of"}, {"ratio", "full"}};
  for (size_t i = 0; i < kHandleTierNames.size(); ++i) {
    const double bytes = server.handle_bytes.at(i).value();
    const double limit = server.handle_limit_bytes.at(i).value();
    if (limit <= 0) continue;  // nothing may stand there
    tiers.rows.push_back({std::string(kHandleTierNames[i]), Bytes(bytes), Bytes(limit), Share(bytes / limit)});
  }
  Section live{.id = "pipelines", .title = "Of which pipelines"};
  live.columns = {{"pipeline", "pipeline"}, {"pending", "pending"}, {"ready", "ready"},
                  {"failed", "failed"},     {"bytes", "bytes"},     {"created", "ever made"}};
  for (const HandleRow& row : sources.handles()) {
    live.rows.push_back({PipelineLink(row.pipeline), Count(static_cast<double>(row.pending)),
                         Count(static_cast<double>(row.ready)), Count(static_cast<double>(row.failed)),
                         Bytes(static_cast<double>(row.bytes)), Count(static_cast<double>(row.created))});
  }
  Section owners{.id = "owners", .title = "Of which callers"};
  owners.note =
      "A caller is what calls name in the metadata penstock-caller; local without. Pending ones count as expected.";
  owners.columns = {{"owner", "caller"}, {"handles", "handles"}, {"handles_limit", "of"},
                    {"bytes", "bytes"},  {"bytes_limit", "of"},  {"ratio", "full"}};
  for (const OwnerRow& row : sources.owners()) {
    const auto number = [](int64_t value) { return static_cast<double>(value); };
    owners.rows.push_back({row.owner, Count(number(row.handles)), Count(number(row.handles_limit)),
                           Bytes(number(row.bytes)), Bytes(number(row.bytes_limit)),
                           Share(row.bytes_limit > 0 ? number(row.bytes) / number(row.bytes_limit) : 0)});
  }
  Section ended{.id = "ended", .title = "How they ended"};
  ended.columns = {{"reason", "reason"}, {"handles", "handles"}};
  for (size_t i = 0; i < kHandleEndNames.size(); ++i) {
    ended.rows.push_back(
        {std::string(kHandleEndNames[i]), Count(static_cast<double>(server.handles_ended.at(i).value()))});
  }
  page.sections = {std::move(tiers), std::move(owners), std::move(live), std::move(ended)};
  return page;
}

Document CheckpointPage(const StatusSources& sources) {
  Document page{.title = "Checkpoints", .state = StateLine(sources), .sections = {}};
  Section saved{.id = "checkpoints", .title = "What is saved"};
  saved.empty = "nothing is saved yet: penstock checkpoint save NAME";
  saved.columns = {{"pipeline", "pipeline"}, {"id", "checkpoint"}, {"step", "step"},
                   {"state", "state"},       {"bytes", "size"},    {"age_seconds", "age"}};
  for (const CheckpointRow& row : sources.checkpoints()) {
    saved.rows.push_back({PipelineLink(row.pipeline), row.id, Count(static_cast<double>(row.step)), row.state,
                          Bytes(static_cast<double>(row.bytes)), Seconds(AgeOf(*sources.registry, row.unix_seconds))});
  }
  saved.json = sources.commands.checkpoints;
  page.sections = {std::move(saved)};
  return page;
}

Document TracePage(const StatusSources& sources) {
  constexpr uint64_t kMaxRecords = 16'384;
  constexpr size_t kMaxRuns = 25;
  constexpr size_t kMaxSlow = 5;
  Document page{.title = "Traces", .state = StateLine(sources), .sections = {}, .refresh = true};
  const int64_t now = sources.registry->clock()->NowNanos();
  Section runs{.id = "runs", .title = "The last runs"};
  Section slow{.id = "slow", .title = "The slowest of them"};
  runs.empty = slow.empty = "no runs yet";
  runs.note =
      "An inference that stopped for new weights runs again. Every action as a file: penstock trace PIPELINE -O FILE";
  slow.note = "Training and inference apart, as far back as the trace rings are read.";
  runs.columns = {{"pipeline", "pipeline"}, {"run", "run"},         {"micro_batches", "micro-batches"},
                  {"seconds", "took"},      {"age_seconds", "ago"}, {"ended", "ended"}};
  slow.columns = runs.columns;
  for (const auto& pipeline : sources.registry->Snapshot()) {
    std::vector<RunSpan> spans = RunsOf(CaptureActions(*pipeline, kMaxRecords));
    // The latest first.
    std::reverse(spans.begin(), spans.end());
    for (size_t i = 0; i < std::min(spans.size(), kMaxRuns); ++i) {
      runs.rows.push_back(RunRow(pipeline->name(), spans[i], now));
    }
    std::stable_sort(spans.begin(), spans.end(), [](const RunSpan& a, const RunSpan& b) { return Took(a) > Took(b); });
    for (const bool trains : {true, false}) {
      size_t taken = 0;
      for (const RunSpan& span : spans) {
        if (Trains(span.purpose) != trains || taken == kMaxSlow) continue;
        slow.rows.push_back(RunRow(pipeline->name(), span, now));
        ++taken;
      }
    }
  }
  page.sections = {std::move(slow), std::move(runs)};
  return page;
}

}  // namespace penstock
