// dualpipe-v: DualPipe cut in half. Two chunks in V placement; in the middle, the forward of one chunk stands beside the
// backward of the other, so that a device that can run both at once may.
//
// Sources: DeepSeek-AI, "DeepSeek-V3 technical report", 2024 (DualPipe); Sea AI Lab's cut-in-half form, as in
// deepseek-ai/DualPipe (dualpipev.py). The numbers are its steps.

#include "engine/schedule/generators.h"
#include "engine/schedule/rank_writer.h"

namespace penstock {

Schedule DualPipeV(int ranks, int microbatches) {
  constexpr int kDown = 0, kUp = 1;  // the chunk on the way to the turn, and that on the way back
  Schedule schedule = EmptySchedule("dualpipe-v", ranks, 2, microbatches);
  for (int rank = 0; rank < ranks; ++rank) {
    RankWriter list(&schedule, Placement::kV, rank);
    const int after = ranks - 1 - rank;
    for (int i = 0; i < 2 * after; ++i) list.Forward(kDown);  // 1
    for (int i = 0; i <= rank; ++i) {                         // 2
      list.Forward(kDown);
      list.Forward(kUp);
    }
    for (int i = 0; i < after; ++i) {  // 3
      list.InputGradient(kUp);
      list.OldestWeightGradient();
      list.Forward(kUp);
    }
    for (int i = 0; i < microbatches - 2 * ranks + rank + 1; ++i) {  // 4
      list.Forward(kDown);
      list.Backward(kUp);
      list.Forward(kUp);
      list.Backward(kDown);
    }
    for (int i = 0; i < after; ++i) {  // 5
      list.Backward(kUp);
      list.Forward(kUp);
      list.Backward(kDown);
    }
    const int whole = rank + 1;  // 6: so many of the backwards below are whole, the others leave their weights
    for (int i = 0; i < 2 * (rank + 1); ++i) {
      const int chunk = i % 2 == 0 ? kUp : kDown;
      if (i < whole) {
        list.Backward(chunk);
      } else {
        list.InputGradient(chunk);
      }
    }
    for (int i = 0; i < after; ++i) {  // 7
      list.OldestWeightGradient();
      list.InputGradient(kDown);
    }
    for (int i = 0; i <= rank; ++i) list.OldestWeightGradient();  // 8
  }
  return schedule;
}

}  // namespace penstock
