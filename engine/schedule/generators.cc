#include "engine/schedule/generators.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

using Request = ScheduleRequest;
using Result = absl::StatusOr<Schedule>;

// What "auto" may cost: micro-batches that are simulated, over all lanes and candidates. Some seconds.
constexpr int64_t kMaxAutoWork = 1 << 23;

ScheduleCosts CostsOf(const Request& request) {
  ScheduleCosts costs = request.costs;
  if (costs.stages.empty()) costs.stages.resize(request.lanes);
  return costs;
}

// More than every micro-batch cannot be held; the lag of zb-h1 is tried in any case.
int LiveLimitOf(const Request& request) {
  return std::min(request.live_limit.value_or(request.lanes), std::max(request.lanes, request.micro_batches));
}

absl::Status CheckChunks(const ScheduleKind& kind, const Request& request) {
  const auto refuse = [&](std::string_view problem) {
    return InvalidField("chunks", problem, absl::StrCat(request.chunks));
  };
  if (request.chunks < kind.min_chunks || request.chunks > kind.max_chunks) {
    const std::string range =
        kind.min_chunks == kind.max_chunks ? absl::StrCat(kind.min_chunks) : absl::StrCat("at least ", kind.min_chunks);
    if (kind.max_chunks == kAnyChunks && request.chunks > kAnyChunks) {
      return refuse(absl::StrCat("must be at most ", kAnyChunks));
    }
    return refuse(absl::StrCat("must be ", range, " for kind ", std::string(kind.name)));
  }
  if (int64_t{request.lanes} * request.chunks <= kMaxStages) return absl::OkStatus();
  return refuse(absl::StrCat("must be at most ", kMaxStages / request.lanes, " with ", request.lanes, " lanes"));
}

absl::Status CheckLag(const Request& request) {
  if (request.kind != "lag") {
    if (!request.lag) return absl::OkStatus();
    return InvalidField("lag", "must be unset unless kind is lag", absl::StrCat(*request.lag));
  }
  if (!request.lag) return InvalidField("lag", "must be set for kind lag", "unset");
  if (*request.lag >= 0 && *request.lag <= kMaxMicroBatches) return absl::OkStatus();
  return InvalidField("lag", absl::StrCat("must be 0 to ", kMaxMicroBatches), absl::StrCat(*request.lag));
}

// Lists of one's own are for so many lanes and micro-batches.
absl::Status CheckImported(const Request& request) {
  if (request.imported == nullptr) return absl::OkStatus();
  const Schedule& actions = request.imported->actions;
  if (request.lanes != static_cast<int>(actions.lanes.size())) {
    return InvalidField("lanes", absl::StrCat("must be ", actions.lanes.size(), ", as in the imported schedule"),
                        absl::StrCat(request.lanes));
  }
  if (request.micro_batches <= actions.micro_batches) return absl::OkStatus();
  return InvalidField("micro_batches",
                      absl::StrCat("must be at most ", actions.micro_batches, ", which the imported schedule has"),
                      absl::StrCat(request.micro_batches));
}

absl::Status CheckAuto(const Request& request) {
  if (request.kind != "auto") {
    if (!request.live_limit) return absl::OkStatus();
    return InvalidField("live_limit", "must be unset unless kind is auto", absl::StrCat(*request.live_limit));
  }
  if (request.live_limit && *request.live_limit < 1) {
    return InvalidField("live_limit", "must be at least 1", absl::StrCat(*request.live_limit));
  }
  const int64_t lags = std::max(0, LiveLimitOf(request) - request.lanes + 1);
  // A greedy run looks at every lane before each action.
  const int64_t per_micro_batch = request.lanes * (lags + 7 + int64_t{request.lanes} / 4);
  if (per_micro_batch * request.micro_batches > kMaxAutoWork) {
    return InvalidField("micro_batches",
                        absl::StrCat("must be at most ", kMaxAutoWork / per_micro_batch, " for kind auto with ",
                                     request.lanes, " lanes and that live_limit"),
                        absl::StrCat(request.micro_batches));
  }
  return CheckCosts(CostsOf(request), request.lanes);
}

std::vector<ScheduleKind> MakeKinds() {
  return {
      {.name = "gpipe",
       .summary = "fill-drain: every forward, then every backward",
       .generate = [](const Request& r) -> Result { return FillDrain(r.lanes, r.micro_batches); }},
      {.name = "1f1b",
       .summary = "one forward, one backward: as fast, with fewer live activations",
       .generate = [](const Request& r) -> Result { return OneForwardOneBackward(r.lanes, r.micro_batches); }},
      {.name = "interleaved-1f1b",
       .summary = "1f1b over several chunks: less bubble for more messages",
       .max_chunks = kAnyChunks,
       .usual_chunks = 2,
       .generate = [](const Request& r) -> Result {
         return InterleavedOneForwardOneBackward(r.lanes, r.micro_batches, r.chunks);
       }},
      {.name = "looped-bfs",
       .summary = "gpipe over several chunks: less bubble, every activation is held",
       .max_chunks = kAnyChunks,
       .usual_chunks = 2,
       .generate = [](const Request& r) -> Result { return LoopedBreadthFirst(r.lanes, r.micro_batches, r.chunks); }},
      {.name = "zb-h1",
       .summary = "split backward: weight gradients fill the drain, memory as 1f1b",
       .splits = true,
       .generate = [](const Request& r) -> Result { return ZeroBubbleH1(r.lanes, r.micro_batches); }},
      {.name = "zb-h2",
       .summary = "split backward: twice that memory, for unequal stages and slow links",
       .splits = true,
       .generate = [](const Request& r) -> Result { return ZeroBubbleH2(r.lanes, r.micro_batches); }},
      {.name = "lag",
       .summary = "split backward: weight gradients stay behind by a given lag, zb-h1 to zb-h2 and beyond",
       .splits = true,
       .generate = [](const Request& r) -> Result { return LaggingWeightGradients(r.lanes, r.micro_batches, *r.lag); }},
      {.name = "interleaved-zb",
       .summary = "zb-h1 over several chunks: least bubble at the memory of 1f1b",
       .splits = true,
       .max_chunks = kAnyChunks,
       .usual_chunks = 2,
       .generate = [](const Request& r) -> Result {
         return InterleavedZeroBubble(r.lanes, r.micro_batches, r.chunks);
       }},
      {.name = "zbv",
       .summary = "split backward, two chunks in a V: first and last stage share a lane, flat memory",
       .splits = true,
       .placement = Placement::kV,
       .min_chunks = 2,
       .max_chunks = 2,
       .usual_chunks = 2,
       .generate = [](const Request& r) -> Result { return ZeroBubbleV(r.lanes, r.micro_batches); }},
      {.name = "dualpipe-v",
       .summary = "two chunks in a V: the forward of one beside the backward of the other",
       .splits = true,
       .placement = Placement::kV,
       .min_chunks = 2,
       .max_chunks = 2,
       .usual_chunks = 2,
       .min_micro_batches_per_lane = 2,
       .generate = [](const Request& r) -> Result { return DualPipeV(r.lanes, r.micro_batches); }},
      {.name = "auto",
       .summary = "the best found for given costs within a given memory",
       .splits = true,
       .generate = [](const Request& r) -> Result {
         return CostAware(r.lanes, r.micro_batches, LiveLimitOf(r), CostsOf(r));
       }},
      {.name = "forward-only",
       .summary = "inference",
       .trains = false,
       .max_chunks = kAnyChunks,
       .generate = [](const Request& r) -> Result { return ForwardOnly(r.lanes, r.micro_batches, r.chunks); }},
  };
}

ScheduleKind MakeImportedKind(const ImportedSchedule& imported) {
  bool splits = false;
  for (const auto& list : imported.actions.lanes) {
    splits = splits || std::any_of(list.begin(), list.end(),
                                   [](const Action& action) { return action.kind == ActionKind::kInputGradient; });
  }
  return {
      .name = kImportedKind,
      .summary = "lists from elsewhere",
      .splits = splits,
      .placement = imported.placement,
      .min_chunks = imported.chunks,
      .max_chunks = imported.chunks,
      .usual_chunks = imported.chunks,
      .generate = [](const Request& r) -> Result { return FirstMicroBatches(r.imported->actions, r.micro_batches); }};
}

}  // namespace

const std::vector<ScheduleKind>& ScheduleKinds() {
  static const auto* kinds = new std::vector<ScheduleKind>(MakeKinds());
  return *kinds;
}

absl::StatusOr<ScheduleKind> FindScheduleKind(std::string_view name) {
  for (const ScheduleKind& kind : ScheduleKinds()) {
    if (kind.name == name) return kind;
  }
  const std::string known =
      absl::StrJoin(ScheduleKinds(), ", ", [](std::string* out, const ScheduleKind& kind) { out->append(kind.name); });
  return InvalidField("kind", absl::StrCat("must be one of ", known), name);
}

absl::StatusOr<ScheduleKind> KindOf(const ScheduleRequest& request) {
  if (request.imported != nullptr) return MakeImportedKind(*request.imported);
  return FindScheduleKind(request.kind);
}

int MinMicroBatches(const ScheduleKind& kind, int lanes) {
  return std::max(1, kind.min_micro_batches_per_lane * lanes);
}

absl::Status CheckPlacement(const ScheduleRequest& request) {
  PENSTOCK_ASSIGN_OR_RETURN(const ScheduleKind kind, KindOf(request));
  PENSTOCK_RETURN_IF_ERROR(CheckSizes(request.lanes, 1, 1));
  return CheckChunks(kind, request);
}

absl::Status CheckRequest(const ScheduleRequest& request) {
  PENSTOCK_ASSIGN_OR_RETURN(const ScheduleKind kind, KindOf(request));
  PENSTOCK_RETURN_IF_ERROR(CheckPlacement(request));
  PENSTOCK_RETURN_IF_ERROR(CheckSizes(request.lanes, request.lanes * request.chunks, request.micro_batches));
  PENSTOCK_RETURN_IF_ERROR(CheckLag(request));
  PENSTOCK_RETURN_IF_ERROR(CheckAuto(request));
  PENSTOCK_RETURN_IF_ERROR(CheckImported(request));
  if (const int least = MinMicroBatches(kind, request.lanes); request.micro_batches < least) {
    return InvalidField(
        "micro_batches",
        absl::StrCat("must be at least ", least, " for kind ", request.kind, " with ", request.lanes, " lanes"),
        absl::StrCat(request.micro_batches));
  }
  return absl::OkStatus();
}

absl::StatusOr<Schedule> Generate(const ScheduleRequest& request) {
  PENSTOCK_RETURN_IF_ERROR(CheckRequest(request));
  PENSTOCK_ASSIGN_OR_RETURN(const ScheduleKind kind, KindOf(request));
  return kind.generate(request);
}

}  // namespace penstock
