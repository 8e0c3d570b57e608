#pragma once

// The schedule of a live pipeline, planned and measured: `penstock schedule show --pipeline`.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "client/cli/command_table.h"

namespace penstock {

struct PipelineScheduleOptions {
  std::string pipeline;  // empty: not asked for
  bool measured = false;
  int64_t step = 0;
  int micro_batches = 0;
};

// Adds --pipeline, --measured and --step to the command; they exclude the options that describe a schedule offline.
void AddPipelineScheduleOptions(CLI::App* show, PipelineScheduleOptions* options);

// Draws it as `form`: gantt, svg, csv, text or deviations.
absl::Status ShowPipelineSchedule(const PipelineScheduleOptions& options, const std::string& form, int columns,
                                  Session& session);

}  // namespace penstock
