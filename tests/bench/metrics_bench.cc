// What a scrape costs: two pipelines of eight lanes and the methods of the daemon, as the budget of 6,000 series
// allows. The budget is 10 ms.
//
//   metrics_bench [ROUNDS]

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "engine/base/clock.h"
#include "engine/observe/metrics_registry.h"
#include "server/metrics/metrics_page.h"

namespace penstock {
namespace {

void Run(int rounds) {
  MetricsRegistry registry(RealClock());
  std::vector<LaneDescription> lanes(8);
  for (int i = 0; i < 8; ++i) {
    lanes[i] = {.lane = i, .device = "cpu:" + std::to_string(i)};
    lanes[i].links = {{.to = (i + 1) % 8, .kind = LinkKind::kActivation},
                      {.to = (i + 7) % 8, .kind = LinkKind::kGradient}};
  }
  registry.AddPipeline("first", lanes);
  registry.AddPipeline("second", lanes);
  for (int i = 0; i < 50; ++i) registry.server().AddMethod("unary", "service", "Method" + std::to_string(i));
  std::vector<double> times;
  std::string page;
  for (int round = 0; round <= rounds; ++round) {
    const int64_t begin = RealClock()->NowNanos();
    page = MetricsPage(registry);
    if (round > 0) times.push_back(static_cast<double>(RealClock()->NowNanos() - begin) * 1e-6);
  }
  std::sort(times.begin(), times.end());
  std::printf("a scrape of %td lines, %zu KiB, %d rounds: %.2f ms (%.2f to %.2f)\n",
              std::count(page.begin(), page.end(), '\n'), page.size() >> 10, rounds, times[times.size() / 2],
              times.front(), times.back());
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 101;
  penstock::Run(std::max(rounds, 1));
  return 0;
}
