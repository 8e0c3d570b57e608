#pragma once

// The options that describe a pipeline.

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/cli11.h"
#include "client/cli/optimizer_options.h"
#include "client/cli/session.h"
#include "penstock/v1/pipeline.pb.h"

namespace penstock {

// What the command line said; anything unset is left to the specification file, then to the daemon.
struct PipelineSpecOptions {
  std::string file;  // PipelineSpec as protobuf text or JSON
  std::string model;
  std::string model_program;
  std::string program_cuts;
  std::string program_digest;
  std::vector<std::string> model_options;  // KEY=VALUE
  std::optional<int> stages;
  std::vector<int> balance;
  std::vector<std::string> starts;
  std::vector<int> ranks;
  std::vector<std::string> devices;
  std::vector<std::string> device_of;  // LAYER=DEVICE
  std::string cut_cost;
  std::string cut_method;
  std::optional<double> parameter_scale;
  std::vector<std::string> ties;  // PARAMETER,PARAMETER
  std::optional<bool> deferred_batch_norm;
  std::optional<bool> tuple_as_one_argument;
  std::string dtype;
  std::string autocast;
  std::string schedule;
  std::optional<int> micro_batches;
  std::string checkpoint;
  std::optional<int> chunks;
  std::optional<int> lag;
  std::optional<int> live_limit;
  std::string schedule_file;
  std::optional<int64_t> mini_batch_rows;
  std::string optimizer;
  OptimizerOptions of_optimizer;
  std::string loss;
  std::vector<std::string> loss_options;  // KEY=VALUE
  std::string loss_output;
  std::vector<double> class_weights;
  std::optional<uint64_t> seed;
  std::string bubble_filling;
  std::optional<double> inference_share;
  std::optional<double> inference_max_wait;
  std::optional<bool> dynamic_batching;
  std::optional<int64_t> batch_rows;
  std::optional<int64_t> batch_micro_batch_rows;
  std::optional<double> batch_delay;
  std::optional<double> planning_seconds;
};

void AddPipelineSpecOptions(CLI::App* command, PipelineSpecOptions* options);
// Those that an update may change.
void AddReplanOptions(CLI::App* command, PipelineSpecOptions* options);

// The file's specification with the options over it. A usage error names the option. `needs_model`: one must be named.
absl::StatusOr<v1::PipelineSpec> BuildPipelineSpec(const PipelineSpecOptions& options, Session& session,
                                                   bool needs_model = true);

}  // namespace penstock
