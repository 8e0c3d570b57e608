#pragma once

// Where stages stand: which rank holds which of them, known before any list exists.

#include <vector>

namespace penstock {

// How the stages of a pipeline are dealt to its ranks, `ranks` at a time: a chunk is one round.
enum class Placement {
  kLooped,  // every round from rank 0 to the last: stage s is on rank s % ranks
  kV,  // to and fro, so that neighbours across a turn share a rank: with two chunks, rank r holds r and 2*ranks-1-r
};

// The rank of a stage. With one chunk both placements put stage s on rank s.
constexpr int RankOfStage(Placement placement, int ranks, int stage) {
  const int in_round = stage % ranks;
  return placement == Placement::kV && stage / ranks % 2 == 1 ? ranks - 1 - in_round : in_round;
}

// The stage that rank `rank` holds as its chunk number `chunk`: the inverse of RankOfStage.
constexpr int StageOfChunk(Placement placement, int ranks, int rank, int chunk) {
  return chunk * ranks + (placement == Placement::kV && chunk % 2 == 1 ? ranks - 1 - rank : rank);
}

// The rank of every stage, in model order: ranks * chunks entries.
std::vector<int> RanksOfStages(Placement placement, int ranks, int chunks);

}  // namespace penstock
