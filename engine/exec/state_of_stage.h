#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/observe/lane_report.h"
#include "engine/tensor/named_tensors.h"

namespace penstock {

// What is saved of a stage, named as checkpoints name it.
struct StateOfStage {
  int stage = 0;
  NamedTensors saved = {};      // parameters and buffers
  NamedTensors optimizer = {};  // "optimizer/..."
};
using StatesOfStages = std::vector<StateOfStage>;

// What is constant of a rank's stages, for the leader to know without asking.
struct FactsOfRank {
  StatesOfStages shapes;                               // tensors without elements
  std::map<int, std::vector<std::string>> parameters;  // by stage: names of those that learn, or are frozen
  int64_t parameter_count = 0;
  LaneReports lanes = {};  // of what they hold
};

// The same names with tensors that have no elements.
NamedTensors ShapesOf(const NamedTensors& tensors);

// All that is saved of a model: first of each stage what it has, in the order of the stages, then its optimizer's.
NamedTensors InModelOrder(StatesOfStages states);

}  // namespace penstock
