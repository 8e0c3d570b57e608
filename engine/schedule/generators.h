#pragma once

// The kinds of schedule: the only list of names and generators. A generator is a pure function from sizes to compute
// actions (F, B, or I and W); passes add the rest.

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/schedule/imported.h"
#include "engine/schedule/placement.h"
#include "engine/schedule/schedule.h"
#include "engine/schedule/simulate.h"

namespace penstock {

// What to generate.
//
// Units:     `lanes` are stage workers, each with `chunks` stages: stages = lanes * chunks.
struct ScheduleRequest {
  std::string kind = {};
  int lanes = 1;
  int micro_batches = 1;
  int chunks = 1;
  std::optional<int> lag = {};         // of kind "lag": how far the weight gradients may stay behind, in micro-batches
  std::optional<int> live_limit = {};  // of kind "auto": micro-batches that a lane may hold; unset: as many as lanes
  ScheduleCosts costs = {};            // of kind "auto": one entry per stage; empty: equal costs
  std::shared_ptr<const ImportedSchedule> imported = {};  // instead of a kind, whose name is not looked at then
};

// The most chunks that a kind which takes any number may be asked for: stages have their own limit.
inline constexpr int kAnyChunks = kMaxStages;

// One kind of schedule.
struct ScheduleKind {
  std::string_view name;
  std::string_view summary;                  // one line for people
  bool trains = true;                        // false: forward actions only
  bool splits = false;                       // I and W instead of B, at least in part
  Placement placement = Placement::kLooped;  // of its stages, in every run of a pipeline of this kind
  int min_chunks = 1;
  int max_chunks = 1;
  int usual_chunks = 1;                // where a request leaves `chunks` unset
  int min_micro_batches_per_lane = 0;  // 2: at least 2P of them

  // From a request that CheckRequest takes, but for too few micro-batches.
  absl::StatusOr<Schedule> (*generate)(const ScheduleRequest& request) = nullptr;
};

// Every kind, in the order in which help texts list them.
const std::vector<ScheduleKind>& ScheduleKinds();

// The kind of that name. INVALID_ARGUMENT / FIELD_INVALID of field `kind`, with the known names, if there is none.
absl::StatusOr<ScheduleKind> FindScheduleKind(std::string_view name);

// What generates the lists of a request: FindScheduleKind of its kind, or, with lists of its own, a kind that returns
// them. Such a kind takes the lanes and chunks of the lists and at most their micro-batches, of which the first are
// kept.
absl::StatusOr<ScheduleKind> KindOf(const ScheduleRequest& request);

// The fewest micro-batches that a kind takes: 1, or what its rule needs.
int MinMicroBatches(const ScheduleKind& kind, int lanes);

// Whether stages can stand as that kind places them: what every run of a pipeline needs, with a backward or without.
// INVALID_ARGUMENT / FIELD_INVALID of field `kind`, `lanes` or `chunks`.
absl::Status CheckPlacement(const ScheduleRequest& request);

// Whether the kind takes all of the request. INVALID_ARGUMENT / FIELD_INVALID of field `kind`, `lanes`, `chunks`,
// `micro_batches`, `lag` or `live_limit`; of `costs` or one of its fields, as CheckCosts, where the kind reads them.
absl::Status CheckRequest(const ScheduleRequest& request);

// The compute actions of a schedule; fails as CheckRequest.
absl::StatusOr<Schedule> Generate(const ScheduleRequest& request);

// The generators themselves, with their sources in their own files. Sizes must be within the limits of schedule.h.

// "gpipe", and the same over several chunks, "looped-bfs".
Schedule FillDrain(int lanes, int micro_batches);
Schedule LoopedBreadthFirst(int lanes, int micro_batches, int chunks);

// "1f1b": same makespan as fill-drain at equal costs; lane r keeps min(m, P-r) activations instead of m.
Schedule OneForwardOneBackward(int lanes, int micro_batches);

// "interleaved-1f1b" and "interleaved-zb": any number of micro-batches.
Schedule InterleavedOneForwardOneBackward(int lanes, int micro_batches, int chunks);
Schedule InterleavedZeroBubble(int lanes, int micro_batches, int chunks);

// "lag", with lag at least 0; "zb-h1" is a lag of P-1, "zb-h2" one of 2P-2. Peak min(m, lag+1) on every lane.
Schedule LaggingWeightGradients(int lanes, int micro_batches, int lag);
Schedule ZeroBubbleH1(int lanes, int micro_batches);
Schedule ZeroBubbleH2(int lanes, int micro_batches);

// "zbv" and "dualpipe-v": two chunks, V placement. With fewer than 2P micro-batches the second is correct, but no
// longer what its name says.
Schedule ZeroBubbleV(int lanes, int micro_batches);
Schedule DualPipeV(int lanes, int micro_batches);

// "auto": best makespan of all candidates within `live_limit`, at least 1, activations per lane; then least window,
// then least memory. `costs` one per lane, valid by CheckCosts. Fails only where Simulate does.
absl::StatusOr<Schedule> CostAware(int lanes, int micro_batches, int live_limit, const ScheduleCosts& costs);

// "forward-only": inference, and the forward half of a graph that is kept.
Schedule ForwardOnly(int lanes, int micro_batches, int chunks = 1, Placement placement = Placement::kLooped);

// Parts of a step that a client calls one by one. They are no kinds of their own: every kind has the same ones.

// The backward half of a graph that an earlier run kept: B of every micro-batch, ascending, of the last chunk first.
Schedule BackwardOnly(int lanes, int micro_batches, int chunks = 1, Placement placement = Placement::kLooped);

// Empty lists, for the optimizer pass to fill.
Schedule NoMicroBatches(int lanes, int chunks = 1);

}  // namespace penstock
