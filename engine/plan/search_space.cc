#include "engine/plan/search_space.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/plan/size_profile.h"
#include "engine/plan/spec_error.h"
#include "engine/schedule/generators.h"

namespace penstock {
namespace {

constexpr int kMaxTriedMicroBatches = 64;  // that are tried unasked
constexpr int kMaxNumbers = 64;            // in a list of limits
constexpr int kMaxChunks = 64;
constexpr int64_t kMaxRows = int64_t{1} << 30;
constexpr char kOneLaneKind[] = "1f1b";  // on one lane all kinds do the same

int64_t RowsOfMiniBatch(const PlanLimits& limits) {
  if (limits.mini_batch_rows > 0) return limits.mini_batch_rows;
  return limits.open.micro_batches ? kDefaultMiniBatchRows : 0;
}

// How many micro-batches really come of cutting so many rows.
int64_t RealMicroBatches(int64_t rows, int64_t micro_batches) {
  const int64_t piece = (rows + micro_batches - 1) / micro_batches;
  return (rows + piece - 1) / piece;
}

std::vector<ScheduleKind> KindChoices(const PlanRequest& request, int lanes) {
  std::vector<ScheduleKind> kinds;
  const PlanLimits& limits = request.limits;
  if (request.schedule.imported != nullptr) return {*KindOf({.imported = request.schedule.imported})};
  for (const ScheduleKind& kind : ScheduleKinds()) {
    if (!kind.trains) continue;
    if (!limits.open.kind) {
      if (kind.name == request.schedule.kind) kinds.push_back(kind);
      continue;
    }
    const bool listed = std::find(limits.kinds.begin(), limits.kinds.end(), kind.name) != limits.kinds.end();
    // With one chunk the kinds of several do what a simpler one does.
    const int chunks = request.schedule.chunks;
    if (!limits.open.chunks && (chunks < std::max(kind.min_chunks, kind.usual_chunks) || chunks > kind.max_chunks)) {
      continue;
    }
    // A lag by itself is no choice but a family: zb-h1 and zb-h2 are its ends.
    const bool wanted = limits.kinds.empty() ? kind.name != "lag" && (lanes > 1 || kind.name == kOneLaneKind) : listed;
    if (wanted) kinds.push_back(kind);
  }
  return kinds;
}

std::vector<int> ChunkChoices(const PlanRequest& request, const ScheduleKind& kind) {
  if (!request.limits.open.chunks) return {request.schedule.chunks};
  std::vector<int> chunks;
  const int least = std::max(kind.min_chunks, kind.usual_chunks);  // with one chunk, a simpler kind does the same
  for (int v = least; v <= std::min(kind.max_chunks, std::max(least, request.limits.max_chunks)); ++v)
    chunks.push_back(v);
  if (least > 1 && request.limits.max_chunks < least) chunks.clear();
  return chunks;
}

// The schedule with each value of the kind's own parameter that is left open.
std::vector<ScheduleSpec> WithParameters(const PlanRequest& request, ScheduleSpec schedule, int lanes) {
  std::vector<ScheduleSpec> found;
  schedule.lag = schedule.kind == "lag" ? request.schedule.lag : std::nullopt;
  schedule.live_limit = schedule.kind == "auto" ? request.schedule.live_limit : std::nullopt;
  if (schedule.kind == "lag" && !schedule.lag.has_value()) {
    for (int lag = std::max(0, lanes - 1); lag <= std::max(0, 2 * lanes - 2); ++lag) {
      schedule.lag = lag;
      found.push_back(schedule);
    }
    return found;
  }
  found.push_back(schedule);
  if (schedule.kind == "auto" && request.limits.open.kind && !schedule.live_limit.has_value() && lanes > 1) {
    schedule.live_limit = 2 * lanes - 1;  // as much as zb-h2 holds
    found.push_back(schedule);
  }
  return found;
}

}  // namespace

absl::Status CheckLimits(const PlanLimits& limits) {
  for (size_t i = 0; i < limits.kinds.size(); ++i) {
    const absl::StatusOr<ScheduleKind> kind = FindScheduleKind(limits.kinds[i]);
    if (kind.ok() && kind->trains) continue;
    return RefuseSpec(absl::StrCat("limits.kinds[", i, "]"), "must be a kind of schedule that trains", limits.kinds[i]);
  }
  if (limits.max_chunks < 1 || limits.max_chunks > kMaxChunks) {
    return RefuseSpec("limits.max_chunks", absl::StrCat("must lie in [1, ", kMaxChunks, "]"),
                      absl::StrCat(limits.max_chunks));
  }
  if (limits.micro_batches.size() > kMaxNumbers) {
    return RefuseSpec("limits.micro_batches", absl::StrCat("must have at most ", kMaxNumbers, " entries"),
                      absl::StrCat(limits.micro_batches.size()));
  }
  for (size_t i = 0; i < limits.micro_batches.size(); ++i) {
    if (limits.micro_batches[i] >= 1 && limits.micro_batches[i] <= kMaxPlannedMicroBatches) continue;
    return RefuseSpec(absl::StrCat("limits.micro_batches[", i, "]"),
                      absl::StrCat("must lie in [1, ", kMaxPlannedMicroBatches, "]"),
                      absl::StrCat(limits.micro_batches[i]));
  }
  if (limits.mini_batch_rows < 0 || limits.mini_batch_rows > kMaxRows) {
    return RefuseSpec("limits.mini_batch_rows", absl::StrCat("must lie in [1, ", kMaxRows, "]"),
                      absl::StrCat(limits.mini_batch_rows));
  }
  return absl::OkStatus();
}

int64_t MicroBatchRows(const PlanLimits& limits, int micro_batches) {
  const int64_t rows = RowsOfMiniBatch(limits);
  return (rows + micro_batches - 1) / micro_batches;
}

std::vector<int> MicroBatchChoices(const PlanRequest& request) {
  if (!request.limits.open.micro_batches) return {request.schedule.micro_batches};
  const int64_t rows = RowsOfMiniBatch(request.limits);
  std::vector<int> choices = request.limits.micro_batches;
  if (choices.empty()) {
    for (int m = 1; m <= std::min<int64_t>(rows, kMaxTriedMicroBatches); m *= 2) {
      if (RealMicroBatches(rows, m) == m) choices.push_back(m);
    }
  }
  std::sort(choices.begin(), choices.end());
  choices.erase(std::unique(choices.begin(), choices.end()), choices.end());
  return choices;
}

std::vector<int64_t> RowsToMeasure(const PlanRequest& request, int64_t profile_rows) {
  const std::vector<int> choices = MicroBatchChoices(request);
  const int64_t smallest = MicroBatchRows(request.limits, choices.back());
  if (smallest == 0) return {profile_rows};
  // Fewer micro-batches than devices leave devices idle: what they cost may be read off the line.
  const int devices = std::max(1, static_cast<int>(request.devices.size()));
  int fewest = choices.back();
  for (int m : choices) {
    if (m >= devices) fewest = std::min(fewest, m);
  }
  return SizesToMeasure(smallest, MicroBatchRows(request.limits, fewest));
}

bool MayChooseSplit(const PlanRequest& request) {
  const std::vector<ScheduleKind> kinds = KindChoices(request, static_cast<int>(request.devices.size()));
  return std::any_of(kinds.begin(), kinds.end(), [](const ScheduleKind& kind) { return kind.splits; });
}

std::vector<ScheduleSpec> SearchSpace(const PlanRequest& request, int lanes) {
  std::vector<ScheduleSpec> space;
  ScheduleSpec schedule = request.schedule;
  if (request.limits.open.checkpoint) schedule.checkpoint = CheckpointMode::kNever;
  for (const ScheduleKind& kind : KindChoices(request, lanes)) {
    schedule.kind = std::string(kind.name);
    for (int chunks : ChunkChoices(request, kind)) {
      schedule.chunks = chunks;
      for (int m : MicroBatchChoices(request)) {
        schedule.micro_batches = m;
        for (ScheduleSpec& one : WithParameters(request, schedule, lanes)) space.push_back(std::move(one));
      }
    }
  }
  return space;
}

}  // namespace penstock
