#pragma once

// A schedule as data: one action list per lane. It prints as a grid and as CSV, and both read back.

#include <compare>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/schedule/action.h"

namespace penstock {

// Values that one stage stashes and a later one pops: they travel straight from the first to the second, past the
// stages between them, and their gradients travel back.
struct SkipEdge {
  int from = 0;
  int to = 0;  // above `from`

  auto operator<=>(const SkipEdge&) const = default;  // NOLINT(modernize-use-nullptr): not ours
};

// What each lane does, in order.
//
// Model:     A lane is one stage worker on one device. lanes[k] is exactly what that worker interprets, first to last.
//            Times are not part of it: an action starts when the one before it on its lane has ended and its
//            inputs are there. Every stage lives on one lane.
// Lifecycle: generators (generators.h) emit compute actions; passes add recomputation, sends and receives, and the
//            optimizer; Verify (verify.h) proves the result. build.h does all of it.
struct Schedule {
  std::string kind;       // the generator's name, or what a parser was told
  int stages = 0;         // stages 0 ... stages-1, in model order
  int micro_batches = 0;  // micro-batches of this run; 0 if it holds only optimizer steps
  std::vector<std::vector<Action>> lanes = {};

  bool operator==(const Schedule&) const = default;
};

// Upper limits of everything that builds, reads or checks schedules: what a client asks for costs bounded memory.
inline constexpr int kMaxLanes = 1024;
inline constexpr int kMaxStages = 4096;
inline constexpr int kMaxMicroBatches = 65536;
inline constexpr int kMaxCells = 1 << 20;  // stages times micro-batches

// INVALID_ARGUMENT / FIELD_INVALID, naming `lanes`, `stages` or `micro_batches`, unless the sizes are positive and
// within the limits.
absl::Status CheckSizes(int lanes, int stages, int micro_batches);

// The lane of each stage; -1 for a stage without an action.
std::vector<int> LaneOfEachStage(const Schedule& schedule);

// A heading and a grid: one column per lane, one row per position, "." where a list has ended.
//   schedule gpipe: 2 stages, 1 micro-batch
//   pos  lane 0  lane 1
//     0  0F0     1F0
//     1  0B0     1B0
std::string ToText(const Schedule& schedule);

// The inverse of ToText. A "." cell anywhere is a deliberate idle slot and is skipped.
// Fails:     both parsers, with FIELD_INVALID that shows the place; SPEC_INVALID for an action out of the heading's
//            range.
absl::StatusOr<Schedule> ParseText(std::string_view text);

// One row per lane, one action per cell, no heading.
std::string ToCsv(const Schedule& schedule);

// The inverse of ToCsv. Empty cells are deliberate idle slots and are skipped; the numbers of stages and micro-batches
// follow from the actions. CSV does not hold the kind, so the caller names it. torch_csv.h reads what PyTorch writes.
absl::StatusOr<Schedule> ParseCsv(std::string_view text, std::string_view kind = "imported");

}  // namespace penstock
