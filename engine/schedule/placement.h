#pragma once

// Where stages stand: which lane holds which of them, known before any list exists.

#include <vector>

namespace penstock {

// How the stages of a pipeline are dealt to its lanes, `lanes` at a time: a chunk is one round.
enum class Placement {
  kLooped,  // every round from lane 0 to the last: stage s is on lane s % lanes
  kV,  // to and fro, so that neighbours across a turn share a lane: with two chunks, lane r holds r and 2*lanes-1-r
};

// The lane of a stage. With one chunk both placements put stage s on lane s.
constexpr int LaneOfStage(Placement placement, int lanes, int stage) {
  const int in_round = stage % lanes;
  return placement == Placement::kV && stage / lanes % 2 == 1 ? lanes - 1 - in_round : in_round;
}

// The stage that lane `lane` holds as its chunk number `chunk`: the inverse of LaneOfStage.
constexpr int StageOfChunk(Placement placement, int lanes, int lane, int chunk) {
  return chunk * lanes + (placement == Placement::kV && chunk % 2 == 1 ? lanes - 1 - lane : lane);
}

// The lane of every stage, in model order: lanes * chunks entries.
std::vector<int> LanesOfStages(Placement placement, int lanes, int chunks);

}  // namespace penstock
