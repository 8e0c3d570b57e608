#pragma once

// What the planner found, immutable: which layers stand on which stage and device, what they cost, what is predicted.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/ids.h"
#include "engine/device/link.h"
#include "engine/plan/skip_layout.h"
#include "engine/schedule/imported.h"

namespace penstock {

// When activations are dropped after the forward and computed again before the backward.
enum class CheckpointMode { kAlways, kExceptLast, kNever, kSkipAdjacent };

// How layers are cut into stages. An explicit balance wins; else, if any layer names its device, the devices decide
// (then `stages` must be 0); else so many stages by measured cost (0: `chunks` per device). Stages are counted over all
// lanes.
struct CutSpec {
  enum class Cost {
    kTime,  // forward, backward and recomputation
    kSize,  // stashed activations and `parameter_scale` times the parameters
  };
  enum class Method {
    kExact,           // least possible bottleneck
    kBlockPartition,  // as torchgpipe's balance does it
  };
  std::vector<int> balance = {};  // one entry per stage: lanes times chunks of them
  std::vector<int> ranks = {};    // with a balance: the process of each stage, from 0 on, ascending; empty: all on 0
  // Instead of a balance: names of the layers at which the stages after the first begin; of a program's layers also
  // modules.
  std::vector<std::string> starts = {};
  int stages = 0;
  Cost cost = Cost::kTime;
  Method method = Method::kExact;
  double parameter_scale = 2;  // bytes per parameter byte: gradients and optimizer state count too
};

struct ScheduleSpec {
  std::string kind = "1f1b";
  int micro_batches = 1;
  CheckpointMode checkpoint = CheckpointMode::kExceptLast;
  int chunks = 1;                      // stages per lane
  std::optional<int> lag = {};         // of kind "lag"
  std::optional<int> live_limit = {};  // of kind "auto": micro-batches that a lane may hold
  std::shared_ptr<const ImportedSchedule> imported =
      {};  // instead of a generator; kind, micro_batches and chunks are its own
};

struct StagePlan {
  int first_layer = 0;
  std::vector<std::string> layers;
  std::string device;
  int lane = 0;                       // stage worker: its chunks are the stages with its number
  Rank rank = {};                     // process
  double forward_seconds = 0;         // per micro-batch, as profiled
  double backward_seconds = 0;        // of a fused backward
  double input_gradient_seconds = 0;  // of its two halves, where the schedule splits it
  double weight_gradient_seconds = 0;
  double recompute_seconds = 0;
  double predicted_bubble = 0;  // of this stage
  int64_t parameter_bytes = 0;
  int64_t optimizer_bytes = 0;
  int64_t undo_bytes = 0;             // of the copies that Plan::undo needs
  int64_t input_bytes = 0;            // of one micro-batch, from the stage before and skips; 0 on the first stage
  int64_t stash_bytes = 0;            // saved by the forward of one micro-batch
  int64_t peak_activation_bytes = 0;  // predicted from the schedule
};

// One layer as it was measured, alone on a device; a stage's own figures are measured where it stands.
struct LayerPlan {
  std::string name;
  int stage = 0;
  double forward_seconds = 0;  // per micro-batch
  double backward_seconds = 0;
  double input_gradient_seconds = 0;  // the halves of a backward; 0 if they were not measured
  double weight_gradient_seconds = 0;
  int64_t stash_bytes = 0;  // kept by the forward of one micro-batch for its backward
  int64_t parameter_bytes = 0;
  int64_t output_bytes = 0;  // to the next layer, of one micro-batch
  double cost = 0;           // what the cut weighed: microseconds or bytes, as CutSpec::cost says
};

// What goes from a stage to another one of another rank in one micro-batch; as much comes back, as gradients.
struct StageTransfer {
  int from = 0;
  int to = 0;
  int64_t bytes = 0;
  double latency_seconds = 0;   // of the link; 0: not known
  double transfer_seconds = 0;  // that the bytes take on it, one way

  bool operator==(const StageTransfer&) const = default;
};

struct Plan {
  std::vector<StagePlan> stages;
  std::vector<LayerPlan> layers;
  std::vector<SkipRoute> skips;               // that cross a cut, sorted by (to, from)
  std::vector<Link> links = {};               // that the stages use
  std::vector<StageTransfer> transfers = {};  // over them, by (from, to); empty where no link is known
  std::vector<std::string> why;               // one sentence each: how the cut came to be, what crosses it
  ScheduleSpec schedule;
  int64_t micro_batch_rows = 0;  // that the costs are for; 0: unknown
  bool undo = false;             // stages copy what a step will change, so that one that fails can be undone
  double hop_seconds = 0;        // until a micro-batch is at the next stage; 0: does not count
  double makespan_seconds = 0;   // of one training step
  double predicted_bubble = 0;
  double ideal_bubble = 0;  // equal stages, backward = 2 x forward, no optimizer
};

}  // namespace penstock
