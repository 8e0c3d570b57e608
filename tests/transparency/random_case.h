#pragma once

// Random ways to train a random model: cut, devices, schedule, checkpoint mode, optimizer, mini-batches, steps, and
// what goes wrong on the way.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/exec/device_pool.h"
#include "engine/exec/pipeline_spec.h"
#include "engine/tensor/value.h"
#include "tests/transparency/random_model.h"

namespace penstock::testing {

// An attempt before the real one, which must leave no trace.
enum class Attempt {
  kNone,
  kFault,   // an action throws
  kCancel,  // the call is cancelled while an action runs
};

// One mini-batch: rows, and into how many micro-batches they are asked to be split.
struct RandomContribution {
  int64_t rows = 1;
  int micro_batches = 1;
  bool halves = false;    // a Forward, then a Backward with gradients of the client
  bool twice = false;     // of halves: the Backward is run twice, first with its graph retained
  bool poisoned = false;  // an input has an element that is not finite
  Attempt attempt = Attempt::kNone;
  double broken_at = 0;  // the share of the attempt's actions that begin before
};

// One step: a TrainStep, or contributions and then an OptimizerStep.
struct RandomStep {
  bool whole = true;
  bool total_given = false;     // the contributions are told how much the whole step counts
  bool backwards_last = false;  // the Backwards of halves come after all other contributions
  bool discarded = false;       // the contributions are dropped, there is no OptimizerStep
  std::optional<double> learning_rate;
  std::optional<double> clip_norm;
  std::vector<RandomContribution> contributions;
};

// Where the stages of a model stand, and in which order they work.
struct RandomLayout {
  std::vector<int> balance;
  std::vector<std::string> devices;
  ScheduleSpec schedule;
};

// The state goes on in another pipeline.
struct RandomMove {
  int before_step = 0;
  RandomLayout layout;
};

struct RandomCase {
  uint64_t seed = 0;
  PipelineSpec spec;  // but for the layout
  RandomLayout layout;
  std::optional<RandomMove> move;
  std::string inputs;                 // letters of value_layers.h
  std::vector<int64_t> input_shape;   // of one row
  std::vector<int64_t> output_shape;  // of one row of the first output
  DevicePool::Mode mode = DevicePool::Mode::kSerial;
  std::vector<RandomStep> steps;
  RandomContribution inference;
};

// The devices that cases name.
std::vector<Device> RandomCaseDevices();

RandomCase MakeRandomCase(uint64_t seed);

// What a pipeline of this layout is made from.
PipelineSpec SpecOf(const RandomCase& one, const RandomLayout& layout);

// Everything that is needed to see what a case is; to run it again its seed, and the edits of random_shrink.h, are
// enough.
std::string Describe(const RandomCase& one);

// The values of a mini-batch, and its target. `number` tells mini-batches apart.
struct RandomBatch {
  std::vector<Value> inputs;
  at::Tensor target;
};
RandomBatch MakeRandomBatch(const RandomCase& one, int number, const RandomContribution& contribution);

}  // namespace penstock::testing
