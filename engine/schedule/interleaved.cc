// interleaved-1f1b and interleaved-zb: one forward and one backward in turn over several chunks, in groups of
// micro-batches that visit every chunk before the next group starts.
//
// Sources: Narayanan et al., "Efficient large-scale language model training on GPU clusters", 2021; the groups of any
// size are those of PyTorch's torch.distributed.pipelining (ScheduleInterleaved1F1B), balanced here, so that every
// number of micro-batches works. With split backwards: Qi et al., "Zero bubble pipeline parallelism", 2023, and
// PyTorch's ScheduleInterleavedZeroBubble.

#include <algorithm>
#include <vector>

#include "engine/schedule/generators.h"
#include "engine/schedule/lane_writer.h"

namespace penstock {
namespace {

// Sizes of the runs of micro-batches, larger first: as many as fill the lanes, differing by at most one.
std::vector<int> GroupSizes(int lanes, int micro_batches) {
  const int groups = std::max(1, micro_batches / lanes);
  std::vector<int> sizes(groups, micro_batches / groups);
  for (int group = 0; group < micro_batches % groups; ++group) ++sizes[group];
  return sizes;
}

// The chunk of each turn; forwards climb within a group, backwards descend.
std::vector<int> ChunkOfEachTurn(const std::vector<int>& groups, int chunks, bool ascending) {
  std::vector<int> order;
  for (const int size : groups) {
    for (int i = 0; i < chunks; ++i) order.insert(order.end(), size, ascending ? i : chunks - 1 - i);
  }
  return order;
}

Schedule Interleave(std::string_view kind, int lanes, int micro_batches, int chunks, bool zero_bubble) {
  const std::vector<int> groups = GroupSizes(lanes, micro_batches);
  const std::vector<int> forward_turns = ChunkOfEachTurn(groups, chunks, true);
  const std::vector<int> backward_turns = ChunkOfEachTurn(groups, chunks, false);
  const int turns = static_cast<int>(forward_turns.size());
  Schedule schedule = EmptySchedule(kind, lanes, chunks, micro_batches);
  for (int lane = 0; lane < lanes; ++lane) {
    LaneWriter list(&schedule, Placement::kLooped, lane);
    // The gradient of the first turn comes back after one more forward per later lane, and as many backwards; split
    // backwards are short enough to need half of that.
    const int per_lane = zero_bubble ? 1 : 2;
    const int lead = std::min((chunks - 1) * groups.front() + per_lane * (lanes - 1 - lane), turns);
    int forward = 0, weight = 0;
    while (forward < lead) list.Forward(forward_turns[forward++]);
    for (int turn = 0; turn < turns; ++turn) {
      if (forward < turns) list.Forward(forward_turns[forward++]);
      if (!zero_bubble) {
        list.Backward(backward_turns[turn]);
        continue;
      }
      list.InputGradient(backward_turns[turn]);
      if (turn >= lane) list.WeightGradient(backward_turns[weight++]);
    }
    while (zero_bubble && weight < turns) list.WeightGradient(backward_turns[weight++]);
  }
  return schedule;
}

}  // namespace

Schedule InterleavedOneForwardOneBackward(int lanes, int micro_batches, int chunks) {
  return Interleave("interleaved-1f1b", lanes, micro_batches, chunks, false);
}

Schedule InterleavedZeroBubble(int lanes, int micro_batches, int chunks) {
  return Interleave("interleaved-zb", lanes, micro_batches, chunks, true);
}

}  // namespace penstock
