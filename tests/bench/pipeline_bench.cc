// The pipeline on two cores against the same model unpipelined, side by side in one run.
//
//   pipeline_bench speed  [--workload gpt|mlp] [--rounds 7] [--m 4,8,16,32]
//   pipeline_bench memory [--workload gpt|mlp] [--m 8]
//   pipeline_bench overhead
//
// speed: in each round every variant runs once, in an order that rotates: one core and two intra-op threads with the full
// batch, then the pipeline at each m. Ratios are taken round by round. `predicted` is the simulator's makespan from costs
// profiled at that micro-batch size with the other core busy.

#include <ATen/ops/randn.h>
#include <malloc.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "engine/base/thread.h"
#include "engine/exec/device_pool.h"
#include "engine/observe/metrics.h"
#include "tests/bench/plain_model.h"
#include "tests/bench/workloads.h"

namespace penstock::bench {
namespace {

struct Options {
  std::string mode = "speed";
  std::string workload = "gpt";
  int rounds = 7;
  std::vector<int> micro_batches = {4, 8, 16, 32};
};

[[noreturn]] void Die(const std::string& message) {
  std::fprintf(stderr, "pipeline_bench: %s\n", message.c_str());
  std::exit(2);
}

Options Parse(int argc, char** argv) {
  Options options;
  if (argc > 1 && argv[1][0] != '-') options.mode = argv[1];
  for (int i = argc > 1 && argv[1][0] != '-' ? 2 : 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--workload") {
      options.workload = argv[i + 1];
    } else if (flag == "--rounds") {
      options.rounds = std::atoi(argv[i + 1]);
    } else if (flag == "--m") {
      options.micro_batches.clear();
      for (char* part = std::strtok(argv[i + 1], ","); part != nullptr; part = std::strtok(nullptr, ",")) {
        options.micro_batches.push_back(std::atoi(part));
      }
    } else {
      Die("unknown option " + flag);
    }
  }
  if (options.workload != "gpt" && options.workload != "mlp") Die("--workload must be gpt or mlp");
  if (options.rounds < 1) Die("--rounds must be positive");
  return options;
}

struct Spread {
  double least, median, most;
};

Spread Sorted(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values.front(), values[values.size() / 2], values.back()};
}

template <typename T>
T Must(absl::StatusOr<T> value) {
  if (!value.ok()) Die(std::string(value.status().message()));
  return *std::move(value);
}

std::vector<Device> Cores() {
  const std::vector<int> usable = UsableCores();
  if (usable.size() < 2) Die("needs two cores");
  return {{"cpu:0", {usable[0]}, 0}, {"cpu:1", {usable[1]}, 0}};
}

Pipeline::Options On(DevicePool& pool, int64_t rows) {
  Pipeline::Options options;
  options.devices = &pool;
  options.profile.rows = rows;
  options.profile.repeats = 9;
  return options;
}

ContributionRequest Request(const Workload& workload) {
  ContributionRequest request;
  request.inputs = workload.inputs;
  request.target = workload.target;
  return request;
}

// One variant of the comparison.
struct Variant {
  std::string name;
  std::function<double()> step;
  double predicted = 0;  // seconds; 0: no prediction
  std::vector<double> seconds;
};

void Speed(const Options& options) {
  const std::vector<Device> cores = Cores();
  DevicePool pool(cores, DevicePool::Mode::kThreads);
  const Workload workload = MakeWorkload(options.workload, 2, 1, CheckpointMode::kNever);
  PlainModel plain(workload);
  std::vector<std::unique_ptr<Pipeline>> pipelines;
  std::vector<Variant> variants;
  variants.push_back({"one core, full batch", [&] { return plain.Step(workload, 1, cores[0].cores); }, 0, {}});
  variants.push_back({"two intra-op threads, full batch",
                      [&] {
                        return plain.Step(workload, 1, {cores[0].cores[0], cores[1].cores[0]});
                      },
                      0,
                      {}});
  for (int m : options.micro_batches) {
    if (workload.rows % m != 0) Die("m must divide the batch");
    PipelineSpec spec = workload.spec;
    spec.schedule.micro_batches = m;
    pipelines.push_back(Must(Pipeline::Create(spec, On(pool, workload.rows / m))));
    Pipeline* pipeline = pipelines.back().get();
    variants.push_back({"pipeline, m = " + std::to_string(m),
                        [&, pipeline] {
                          pipeline->DiscardGradients();
                          return Must(pipeline->ForwardBackward(Request(workload))).seconds;
                        },
                        pipeline->plan().makespan_seconds,
                        {}});
  }
  for (int round = -1; round < options.rounds; ++round) {  // round -1 warms up
    for (size_t i = 0; i < variants.size(); ++i) {
      Variant& variant = variants[(i + static_cast<size_t>(round + 1)) % variants.size()];
      const double seconds = variant.step();
      if (round >= 0) variant.seconds.push_back(seconds);
    }
  }
  std::printf("%s: %d rounds, every variant once per round, rotating order; a step is clear, forward, loss, backward\n",
              options.workload.c_str(), options.rounds);
  std::printf("%-34s %10s %21s %9s %21s %11s\n", "", "median ms", "(least .. most)", "x 1 core", "(least .. most)",
              "% predicted");
  for (const Variant& variant : variants) {
    const Spread ms = Sorted(variant.seconds);
    std::vector<double> ratios;
    for (size_t r = 0; r < variant.seconds.size(); ++r) ratios.push_back(variants[0].seconds[r] / variant.seconds[r]);
    const Spread ratio = Sorted(ratios);
    std::printf("%-34s %10.1f (%8.1f .. %8.1f) %9.2f (%8.2f .. %8.2f)", variant.name.c_str(), ms.median * 1e3,
                ms.least * 1e3, ms.most * 1e3, ratio.median, ratio.least, ratio.most);
    if (variant.predicted > 0) {
      std::printf(" %10.1f%%", 100 * variant.predicted / ms.median);
    }
    std::printf("\n");
  }
}

int64_t StatusKib(const char* key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(key, 0) == 0) return std::atoll(line.c_str() + std::strlen(key) + 1);
  }
  return 0;
}

// How much the process grows within a step, by checkpoint mode and schedule.
void Memory(const Options& options) {
  DevicePool pool(Cores(), DevicePool::Mode::kThreads);
  const int m = options.micro_batches.front() == 4 ? 8 : options.micro_batches.front();
  std::printf("%s, m = %d: growth of resident memory within a step (peak - before), MiB, median of 5\n",
              options.workload.c_str(), m);
  for (const char* kind : {"gpipe", "1f1b"}) {
    for (CheckpointMode mode : {CheckpointMode::kNever, CheckpointMode::kExceptLast, CheckpointMode::kAlways}) {
      Workload workload = MakeWorkload(options.workload, 2, m, mode);
      workload.spec.schedule.kind = kind;
      auto pipeline = Must(Pipeline::Create(workload.spec, On(pool, workload.rows / m)));
      std::vector<double> growth;
      for (int i = 0; i < 6; ++i) {
        pipeline->DiscardGradients();
        malloc_trim(0);
        const int64_t before = StatusKib("VmRSS:");
        std::ofstream("/proc/self/clear_refs") << "5";
        Must(pipeline->ForwardBackward(Request(workload)));
        if (i > 0) growth.push_back(static_cast<double>(StatusKib("VmHWM:") - before) / 1024);
      }
      int64_t planned = 0;
      for (const StagePlan& stage : pipeline->plan().stages) planned += stage.peak_activation_bytes;
      const char* name = mode == CheckpointMode::kNever    ? "never"
                         : mode == CheckpointMode::kAlways ? "always"
                                                           : "except_last";
      std::printf("  %-6s %-12s %8.0f   (planned activations %.0f)\n", kind, name, Sorted(growth).median,
                  static_cast<double>(planned) / (1 << 20));
    }
  }
}

// What the engine costs beside the actions themselves: interpreting, queues, bookkeeping, clocks.
void Overhead(const Options& options) {
  std::printf("engine time per action (everything but the actions), a model of no work, m = 32, %d rounds\n",
              options.rounds);
  for (DevicePool::Mode mode : {DevicePool::Mode::kSerial, DevicePool::Mode::kThreads}) {
    DevicePool pool(Cores(), mode);
    PipelineSpec spec;
    for (int i = 0; i < 2; ++i) spec.model.layers.push_back({"linear", "", {{"in", int64_t{1}}, {"out", int64_t{1}}}});
    spec.cut.balance = {1, 1};
    spec.schedule = {"1f1b", 32, CheckpointMode::kNever};
    spec.optimizer.name = "sgd";
    spec.loss.name = "mean_squared_error";
    std::shared_ptr<PipelineMetrics> metrics;
    Pipeline::Options pipeline_options = On(pool, 1);
    pipeline_options.metrics = [&](const Plan&) {
      std::vector<LaneDescription> lanes(2);
      lanes[1].stage = 1;
      return metrics = std::make_shared<PipelineMetrics>(RealClock(), "bench", lanes, ScheduleDescription());
    };
    auto pipeline = Must(Pipeline::Create(spec, pipeline_options));
    ContributionRequest request;
    request.inputs = {{pipeline->signature().inputs[0].name, at::randn({32, 1})}};
    request.target = at::randn({32, 1});
    constexpr int kActions = 2 * 2 * 32;
    std::vector<double> micros;
    const auto work = [&] {
      double seconds = 0;
      for (int lane = 0; lane < 2; ++lane) {
        for (Phase phase : {Phase::kForward, Phase::kBackward}) {
          seconds += static_cast<double>(metrics->lane(lane).phases[phase].Snapshot().sum_nanos) * 1e-9;
        }
      }
      return seconds;
    };
    const auto host = [&] {
      double seconds = 0;
      for (int lane = 0; lane < 2; ++lane) {
        seconds += static_cast<double>(metrics->lane(lane).state.Snapshot()[StageState::kHost]) * 1e-9;
      }
      return seconds;
    };
    for (int round = -20; round < options.rounds; ++round) {
      const double before = mode == DevicePool::Mode::kSerial ? work() : host();
      const double seconds = Must(pipeline->ForwardBackward(request)).seconds;
      pipeline->DiscardGradients();
      const double spent = (mode == DevicePool::Mode::kSerial ? work() : host()) - before;
      // One thread: all that is not an action. Two threads: the lanes' time between "ready" and "begun".
      const double engine = mode == DevicePool::Mode::kSerial ? seconds - spent : spent;
      if (round >= 0) micros.push_back(engine * 1e6 / kActions);
    }
    const Spread spread = Sorted(micros);
    std::printf(
        "  %-42s %6.2f us (%.2f .. %.2f)\n",
        mode == DevicePool::Mode::kSerial ? "one thread, whole run less its actions" : "two threads, state `host`",
        spread.median, spread.least, spread.most);
  }
}

}  // namespace
}  // namespace penstock::bench

int main(int argc, char** argv) {
  using namespace penstock::bench;
  // As the daemon does: large activations come from the heap, not from a mapping of their own for each step.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  const Options options = Parse(argc, argv);
  if (options.mode == "speed") {
    Speed(options);
  } else if (options.mode == "memory") {
    Memory(options);
  } else if (options.mode == "overhead") {
    Overhead(options);
  } else {
    Die("modes are speed, memory, overhead");
  }
  return 0;
}
