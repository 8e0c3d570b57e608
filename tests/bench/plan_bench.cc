// How long a plan takes: measuring the layers of a GPT, then searching.
//
//   plan_bench [--blocks 96] [--width 64] [--devices 8] [--rows 32] [--rounds 5]
//
// Prints the time to measure, the median and spread of the searches, and the candidates.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "engine/base/clock.h"
#include "engine/base/thread.h"
#include "engine/model/layer_registry.h"
#include "engine/plan/planner.h"
#include "tests/bench/options.h"

namespace penstock::bench {
namespace {

[[noreturn]] void Die(const std::string& message) {
  std::fprintf(stderr, "plan_bench: %s\n", message.c_str());
  std::exit(1);
}

template <typename T>
T Must(absl::StatusOr<T> value) {
  if (!value.ok()) Die(std::string(value.status().message()));
  return *std::move(value);
}

double SecondsSince(int64_t begin) { return static_cast<double>(RealClock()->NowNanos() - begin) * 1e-9; }

void Run(int64_t blocks, int64_t width, int devices, int64_t rows, int rounds) {
  const OptionMap options = {{"blocks", blocks}, {"width", width}, {"heads", int64_t{2}}, {"sequence", int64_t{32}}};
  PlanRequest request;
  request.layers = Must(ExpandModel({"gpt", options, {}}));
  const std::vector<int> cores = UsableCores();
  for (int d = 0; d < devices; ++d) {
    request.devices.push_back({"cpu:" + std::to_string(d), {cores[d % cores.size()]}, 0});
  }
  request.limits.open = {true, true, true, true};
  request.limits.mini_batch_rows = rows;
  int64_t begin = RealClock()->NowNanos();
  const SizeProfile profile = Must(ProfileSizes(request, {}, RealClock()));
  std::printf("%zu layers on %d devices, measured in %.3f s\n", request.layers.size(), devices, SecondsSince(begin));
  std::vector<double> seconds;
  PlanSearch search;
  for (int round = 0; round < rounds; ++round) {
    begin = RealClock()->NowNanos();
    search = Must(PlanBySearch(request, profile));
    seconds.push_back(SecondsSince(begin));
  }
  std::sort(seconds.begin(), seconds.end());
  std::printf("%d schedules, %d of them skipped: %.3f s (%.3f .. %.3f)%s\n", search.considered, search.skipped,
              seconds[seconds.size() / 2], seconds.front(), seconds.back(), search.complete ? "" : ", incomplete");
  for (const PlanCandidate& one : search.candidates) {
    std::printf("%10.3f ms  %s\n", one.makespan_seconds * 1e3, DescribeSchedule(one.schedule).c_str());
  }
}

}  // namespace
}  // namespace penstock::bench

int main(int argc, char** argv) {
  int blocks = 96, width = 64, devices = 8, rows = 32, rounds = 5;
  CLI::App app("How long planning a GPT takes after its layers are measured");
  app.add_option("--blocks", blocks)->check(CLI::PositiveNumber);
  app.add_option("--width", width)->check(CLI::PositiveNumber);
  app.add_option("--devices", devices)->check(CLI::PositiveNumber);
  app.add_option("--rows", rows, "Of a mini-batch")->check(CLI::PositiveNumber);
  app.add_option("--rounds", rounds)->check(CLI::PositiveNumber);
  penstock::bench::ParseOptions(app, argc, argv);
  penstock::bench::Run(blocks, width, devices, rows, rounds);
  return 0;
}
