// dualpipe-v: DualPipe cut in half. Two chunks in V placement; in the middle, the forward of one chunk stands beside
// the backward of the other, so that a device that can run both at once may.
//
// Sources: DeepSeek-AI, "DeepSeek-V3 technical report", 2024 (DualPipe); Sea AI Lab's cut-in-half form, as in
// deepseek-ai/DualPipe (dualpipev.py). The numbers are its steps.

#include "engine/schedule/generators.h"
#include "engine/schedule/lane_writer.h"

namespace penstock {

Schedule DualPipeV(int lanes, int micro_batches) {
  constexpr int kDown = 0, kUp = 1;  // the chunk on the way to the turn, and that on the way back
  Schedule schedule = EmptySchedule("dualpipe-v", lanes, 2, micro_batches);
  for (int lane = 0; lane < lanes; ++lane) {
    LaneWriter list(&schedule, Placement::kV, lane);
    const int after = lanes - 1 - lane;
    for (int i = 0; i < 2 * after; ++i) list.Forward(kDown);  // 1
    for (int i = 0; i <= lane; ++i) {                         // 2
      list.Forward(kDown);
      list.Forward(kUp);
    }
    for (int i = 0; i < after; ++i) {  // 3
      list.InputGradient(kUp);
      list.OldestWeightGradient();
      list.Forward(kUp);
    }
    for (int i = 0; i < micro_batches - 2 * lanes + lane + 1; ++i) {  // 4
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
    const int whole = lane + 1;  // 6: so many of the backwards below are whole, the others leave their weights
    for (int i = 0; i < 2 * (lane + 1); ++i) {
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
    for (int i = 0; i <= lane; ++i) list.OldestWeightGradient();  // 8
  }
  return schedule;
}

}  // namespace penstock
