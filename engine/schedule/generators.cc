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

// What "auto" may cost: micro-batches that are simulated, over all ranks and candidates. Some seconds.
constexpr int64_t kMaxAutoWork = 1 << 23;

ScheduleCosts CostsOf(const Request& request) {
  ScheduleCosts costs = request.costs;
  if (costs.stages.empty()) costs.stages.resize(request.ranks);
  return costs;
}

// More than every micro-batch cannot be held; the lag of zb-h1 is tried in any case.
int LiveLimitOf(const Request& request) {
  return std::min(request.live_limit.value_or(request.ranks), std::max(request.ranks, request.microbatches));
}

absl::Status CheckChunks(const ScheduleKind& kind, const Request& request) {
  const auto refuse = [&](std::string_view problem) {
    return InvalidField("chunks", problem, absl::StrCat(request.chunks));
  };
  if (request.chunks < kind.least_chunks || request.chunks > kind.most_chunks) {
    const std::string range = kind.least_chunks == kind.most_chunks ? absl::StrCat(kind.least_chunks)
                                                                    : absl::StrCat("at least ", kind.least_chunks);
    if (kind.most_chunks == kAnyChunks && request.chunks > kAnyChunks) {
      return refuse(absl::StrCat("must be at most ", kAnyChunks));
    }
    return refuse(absl::StrCat("must be ", range, " for kind ", std::string(kind.name)));
  }
  if (int64_t{request.ranks} * request.chunks <= kMaxStages) return absl::OkStatus();
  return refuse(absl::StrCat("must be at most ", kMaxStages / request.ranks, " with ", request.ranks, " ranks"));
}

absl::Status CheckLag(const Request& request) {
  if (request.kind != "lag") {
    if (!request.lag) return absl::OkStatus();
    return InvalidField("lag", "must be unset unless kind is lag", absl::StrCat(*request.lag));
  }
  if (!request.lag) return InvalidField("lag", "must be set for kind lag", "unset");
  if (*request.lag >= 0 && *request.lag <= kMaxMicrobatches) return absl::OkStatus();
  return InvalidField("lag", absl::StrCat("must be 0 to ", kMaxMicrobatches), absl::StrCat(*request.lag));
}

// Lists of one's own are for so many ranks and micro-batches.
absl::Status CheckImported(const Request& request) {
  if (request.imported == nullptr) return absl::OkStatus();
  const Schedule& actions = request.imported->actions;
  if (request.ranks != static_cast<int>(actions.ranks.size())) {
    return InvalidField("ranks", absl::StrCat("must be ", actions.ranks.size(), ", as in the imported schedule"),
                        absl::StrCat(request.ranks));
  }
  if (request.microbatches <= actions.microbatches) return absl::OkStatus();
  return InvalidField("micro_batches",
                      absl::StrCat("must be at most ", actions.microbatches, ", which the imported schedule has"),
                      absl::StrCat(request.microbatches));
}

absl::Status CheckAuto(const Request& request) {
  if (request.kind != "auto") {
    if (!request.live_limit) return absl::OkStatus();
    return InvalidField("live_limit", "must be unset unless kind is auto", absl::StrCat(*request.live_limit));
  }
  if (request.live_limit && *request.live_limit < 1) {
    return InvalidField("live_limit", "must be at least 1", absl::StrCat(*request.live_limit));
  }
  const int64_t lags = std::max(0, LiveLimitOf(request) - request.ranks + 1);
  // A greedy run looks at every rank before each action.
  const int64_t per_microbatch = request.ranks * (lags + 7 + int64_t{request.ranks} / 4);
  if (per_microbatch * request.microbatches > kMaxAutoWork) {
    return InvalidField("micro_batches",
                        absl::StrCat("must be at most ", kMaxAutoWork / per_microbatch, " for kind auto with ",
                                     request.ranks, " ranks and that live_limit"),
                        absl::StrCat(request.microbatches));
  }
  return CheckCosts(CostsOf(request), request.ranks);
}

std::vector<ScheduleKind> MakeKinds() {
  return {
      {.name = "gpipe",
       .summary = "fill-drain: every forward, then every backward",
       .generate = [](const Request& r) -> Result { return FillDrain(r.ranks, r.microbatches); }},
      {.name = "1f1b",
       .summary = "one forward, one backward: as fast, with fewer live activations",
       .generate = [](const Request& r) -> Result { return OneForwardOneBackward(r.ranks, r.microbatches); }},
      {.name = "interleaved-1f1b",
       .summary = "1f1b over several chunks: less bubble for more messages",
       .most_chunks = kAnyChunks,
       .usual_chunks = 2,
       .generate = [](const Request& r) -> Result {
         return InterleavedOneForwardOneBackward(r.ranks, r.microbatches, r.chunks);
       }},
      {.name = "looped-bfs",
       .summary = "gpipe over several chunks: less bubble, every activation is held",
       .most_chunks = kAnyChunks,
       .usual_chunks = 2,
       .generate = [](const Request& r) -> Result { return LoopedBreadthFirst(r.ranks, r.microbatches, r.chunks); }},
      {.name = "zb-h1",
       .summary = "split backward: weight gradients fill the drain, memory as 1f1b",
       .splits = true,
       .generate = [](const Request& r) -> Result { return ZeroBubbleH1(r.ranks, r.microbatches); }},
      {.name = "zb-h2",
       .summary = "split backward: twice that memory, for unequal stages and slow links",
       .splits = true,
       .generate = [](const Request& r) -> Result { return ZeroBubbleH2(r.ranks, r.microbatches); }},
      {.name = "lag",
       .summary = "split backward: weight gradients stay behind by a given lag, zb-h1 to zb-h2 and beyond",
       .splits = true,
       .generate = [](const Request& r) -> Result { return LaggingWeightGradients(r.ranks, r.microbatches, *r.lag); }},
      {.name = "interleaved-zb",
       .summary = "zb-h1 over several chunks: least bubble at the memory of 1f1b",
       .splits = true,
       .most_chunks = kAnyChunks,
       .usual_chunks = 2,
       .generate = [](const Request& r) -> Result { return InterleavedZeroBubble(r.ranks, r.microbatches, r.chunks); }},
      {.name = "zbv",
       .summary = "split backward, two chunks in a V: first and last stage share a rank, flat memory",
       .splits = true,
       .placement = Placement::kV,
       .least_chunks = 2,
       .most_chunks = 2,
       .usual_chunks = 2,
       .generate = [](const Request& r) -> Result { return ZeroBubbleV(r.ranks, r.microbatches); }},
      {.name = "dualpipe-v",
       .summary = "two chunks in a V: the forward of one beside the backward of the other",
       .splits = true,
       .placement = Placement::kV,
       .least_chunks = 2,
       .most_chunks = 2,
       .usual_chunks = 2,
       .least_microbatches_per_rank = 2,
       .generate = [](const Request& r) -> Result { return DualPipeV(r.ranks, r.microbatches); }},
      {.name = "auto",
       .summary = "the best found for given costs within a given memory",
       .splits = true,
       .generate = [](const Request& r) -> Result {
         return CostAware(r.ranks, r.microbatches, LiveLimitOf(r), CostsOf(r));
       }},
      {.name = "forward-only",
       .summary = "inference",
       .trains = false,
       .most_chunks = kAnyChunks,
       .generate = [](const Request& r) -> Result { return ForwardOnly(r.ranks, r.microbatches, r.chunks); }},
  };
}

ScheduleKind MakeImportedKind(const ImportedSchedule& imported) {
  bool splits = false;
  for (const auto& list : imported.actions.ranks) {
    splits = splits || std::any_of(list.begin(), list.end(),
                                   [](const Action& action) { return action.kind == ActionKind::kInputGradient; });
  }
  return {
      .name = kImportedKind,
      .summary = "lists from elsewhere",
      .splits = splits,
      .placement = imported.placement,
      .least_chunks = imported.chunks,
      .most_chunks = imported.chunks,
      .usual_chunks = imported.chunks,
      .generate = [](const Request& r) -> Result { return FirstMicrobatches(r.imported->actions, r.microbatches); }};
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

int LeastMicrobatches(const ScheduleKind& kind, int ranks) {
  return std::max(1, kind.least_microbatches_per_rank * ranks);
}

absl::Status CheckPlacement(const ScheduleRequest& request) {
  PENSTOCK_ASSIGN_OR_RETURN(const ScheduleKind kind, KindOf(request));
  PENSTOCK_RETURN_IF_ERROR(CheckSizes(request.ranks, 1, 1));
  return CheckChunks(kind, request);
}

absl::Status CheckRequest(const ScheduleRequest& request) {
  PENSTOCK_ASSIGN_OR_RETURN(const ScheduleKind kind, KindOf(request));
  PENSTOCK_RETURN_IF_ERROR(CheckPlacement(request));
  PENSTOCK_RETURN_IF_ERROR(CheckSizes(request.ranks, request.ranks * request.chunks, request.microbatches));
  PENSTOCK_RETURN_IF_ERROR(CheckLag(request));
  PENSTOCK_RETURN_IF_ERROR(CheckAuto(request));
  PENSTOCK_RETURN_IF_ERROR(CheckImported(request));
  if (const int least = LeastMicrobatches(kind, request.ranks); request.microbatches < least) {
    return InvalidField(
        "micro_batches",
        absl::StrCat("must be at least ", least, " for kind ", request.kind, " with ", request.ranks, " ranks"),
        absl::StrCat(request.microbatches));
  }
  return absl::OkStatus();
}

absl::StatusOr<Schedule> Generate(const ScheduleRequest& request) {
  PENSTOCK_RETURN_IF_ERROR(CheckRequest(request));
  PENSTOCK_ASSIGN_OR_RETURN(const ScheduleKind kind, KindOf(request));
  return kind.generate(request);
}

}  // namespace penstock
