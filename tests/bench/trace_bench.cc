// What a trace record costs: the ring alone, and as part of a state's transition. The budget is 50 ns.
//
//   trace_bench [RECORDS]

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "engine/base/clock.h"
#include "engine/observe/state_clock.h"
#include "engine/observe/trace_ring.h"

namespace penstock {
namespace {

constexpr int kRounds = 9;

// Nanoseconds of one call: the median of some rounds, and the best and worst.
void Measure(const char* name, int64_t records, const std::function<void(int64_t)>& record) {
  std::vector<double> nanos;
  for (int round = 0; round <= kRounds; ++round) {
    const int64_t begin = RealClock()->NowNanos();
    for (int64_t i = 0; i < records; ++i) record(i);
    const int64_t end = RealClock()->NowNanos();
    if (round > 0) nanos.push_back(static_cast<double>(end - begin) / static_cast<double>(records));
  }
  std::sort(nanos.begin(), nanos.end());
  std::printf("%-42s %6.1f ns  (%.1f to %.1f)\n", name, nanos[kRounds / 2], nanos.front(), nanos.back());
}

TraceRecord RecordOf(int64_t i) {
  return {.begin_nanos = i,
          .end_nanos = i + 1,
          .kind = TraceKind::kForward,
          .stage = 1,
          .micro_batch = static_cast<int32_t>(i & 7),
          .step = i >> 3,
          .run = i >> 3};
}

void Run(int64_t records) {
  std::printf("%lld records a round, %d rounds: median (best to worst)\n", static_cast<long long>(records), kRounds);
  TraceRing ring;
  Measure("a record, a ring of 65,536", records, [&](int64_t i) { ring.Record(RecordOf(i)); });
  TraceRing small(1024);
  Measure("a record, a ring of 1,024", records, [&](int64_t i) { small.Record(RecordOf(i)); });
  Measure("a record and the two readings of the clock", records, [&](int64_t i) {
    TraceRecord record = RecordOf(i);
    record.begin_nanos = RealClock()->NowNanos();
    record.end_nanos = RealClock()->NowNanos();
    ring.Record(record);
  });
  const auto enter = [](StateClock& clock, int64_t i) {
    clock.Enter(i % 2 == 0 ? StageState::kForward : StageState::kHost, (int64_t{1} << 62) + i);
  };
  StateClock plain(RealClock());
  Measure("a transition without a ring", records, [&](int64_t i) { enter(plain, i); });
  TraceRing states;
  StateClock traced(RealClock(), &states);
  Measure("a transition with one", records, [&](int64_t i) { enter(traced, i); });
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) {
  const int64_t records = argc > 1 ? std::atoll(argv[1]) : 1'000'000;
  penstock::Run(std::max<int64_t>(records, 1));
  return 0;
}
