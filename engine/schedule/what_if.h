#pragma once

// Answers "what if?" for people: a kind, sizes and costs in units give makespan, bubble and memory. The command line's
// `schedule simulate` and `schedule show` are this and nothing else.

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/schedule/schedule.h"
#include "engine/schedule/simulate.h"

namespace penstock {

// The question. Field names in errors are those of the command line's options, with '_'.
//
// Units:     costs in units of time, at least 0, decimal, of a whole device and one micro-batch: a chunk costs its
//            share. Each is rounded to the nearest of 12,000 ticks per unit, after scaling. The defaults are equal
//            stages and a backward of twice the forward.
struct WhatIfOptions {
  std::string kind;
  int devices = 1;
  int micro_batches = 1;
  std::optional<int> chunks = std::nullopt;  // stages per device; unset: as many as the kind usually has
  std::optional<int> lag = std::nullopt;     // of kind lag: micro-batches that weight gradients may stay behind
  std::optional<int> limit =
      std::nullopt;  // of kind auto: micro-batches that a device may hold; unset: as many as devices
  double forward = 1;
  double input = 1;                                     // input half of the backward
  double weight = 1;                                    // weight half
  std::optional<double> recompute_cost = std::nullopt;  // unset: as `forward`
  double hop = 0;                                       // from one device to the next
  std::string recompute = "never";                      // a mode of recompute_pass.h
  std::optional<int> heavy_device = std::nullopt;       // all costs of all its stages are scaled by heavy_scale
  std::optional<double> heavy_scale = std::nullopt;     // unset: 1.5; refused without heavy_device
  double last_scale = 1;                                // scales all costs of the last stage, on top of heavy_scale
};

// What was found, in units. Exact wherever the value has a double: halves and twelfths of whole costs do.
struct WhatIfResult {
  double makespan = 0;
  double ideal_time = 0;
  double window = 0;
  double overhead = 0;                   // (makespan - ideal_time) / ideal_time
  double bubble = 0;                     // 1 - ideal_time / makespan
  double peak_activations = 0;           // largest of all devices, in u
  double peak_stashed = 0;               // stashed inputs with recomputation, in u
  std::vector<double> peaks_per_device;  // full activations, in u
  Schedule schedule;                     // the compute actions that were simulated
  Simulation simulation;
};

// Fails:     INVALID_ARGUMENT / FIELD_INVALID that names the option and its value.
absl::StatusOr<WhatIfResult> WhatIf(const WhatIfOptions& options);

// The same for lists that were made elsewhere, at the costs of `options`: its kind and sizes are not read. They may
// hold any actions that Simulate takes.
absl::StatusOr<WhatIfResult> WhatIf(Schedule schedule, const WhatIfOptions& costs);

}  // namespace penstock
