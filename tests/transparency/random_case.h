#pragma once

// Random ways to train a random model: cut, devices, schedule, checkpoint mode, optimizer, mini-batches, steps.

#include <cstdint>
#include <string>
#include <vector>

#include "engine/exec/device_pool.h"
#include "engine/exec/pipeline_spec.h"
#include "engine/tensor/value.h"
#include "tests/transparency/random_model.h"

namespace penstock::testing {

// One mini-batch: rows, and into how many micro-batches they are asked to be split.
struct RandomContribution {
  int64_t rows = 1;
  int micro_batches = 1;
};

// One step: a TrainStep, or contributions and then an OptimizerStep.
struct RandomStep {
  bool whole = true;
  bool total_given = false;  // the contributions are told how much the whole step counts
  std::vector<RandomContribution> contributions;
};

struct RandomCase {
  uint64_t seed = 0;
  PipelineSpec spec;
  std::string inputs;  // letters of value_layers.h
  int64_t input_width = 0;
  int64_t output_width = 0;
  DevicePool::Mode mode = DevicePool::Mode::kSerial;
  std::vector<RandomStep> steps;
  RandomContribution inference;
};

// The devices that cases name.
std::vector<Device> RandomCaseDevices();

RandomCase MakeRandomCase(uint64_t seed);

// Everything that is needed to see what a case is; to run it again its seed is enough.
std::string Describe(const RandomCase& one);

// The values of a mini-batch, and its target. `number` tells mini-batches apart.
struct RandomBatch {
  std::vector<Value> inputs;
  at::Tensor target;
};
RandomBatch MakeRandomBatch(const RandomCase& one, int number, int64_t rows);

}  // namespace penstock::testing
