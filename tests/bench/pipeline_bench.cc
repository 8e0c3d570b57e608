// The pipeline on two cores against the same model unpipelined, side by side in one run.
//
//   pipeline_bench speed    [--workload gpt|mlp|resnet|unet|amoebanet] [--rounds 7] [--m 4,8,16,32]
//   pipeline_bench memory   [--workload ...] [--m 8]
//   pipeline_bench ablation [--workload unet] [--rounds 7] [--m 8]
//   pipeline_bench overhead
//   pipeline_bench undo     [--workload gpt] [--rounds 7] [--m 8]
//
// speed: in each round every variant runs once, in an order that rotates: one core and two intra-op threads with the
// full batch, then the pipeline at each m. Ratios are taken round by round. `predicted` is the simulator's makespan
// from costs profiled at that micro-batch size with the other core busy; `ideal` is n m / (m + n - 1) times one core.
// ablation: four stages on two cores, everything recomputed, and one mechanism at a time switched off.
// undo: whole training steps on two cores, with the copies that undo a failed step and without.

#include <ATen/ops/add.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/randn.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/freed_memory.h"
#include "engine/exec/device_pool.h"
#include "engine/observe/metrics.h"
#include "tests/bench/options.h"
#include "tests/bench/plain_model.h"
#include "tests/bench/rounds.h"
#include "tests/bench/skips_through_stages.h"
#include "tests/bench/workloads.h"
#include "tests/support/recompute_late.h"

namespace penstock::bench {
namespace {

struct Options {
  std::string mode = "speed";
  std::string workload;
  int rounds = 7;
  std::vector<int> micro_batches = {4, 8, 16, 32};
};

Options Parse(int argc, char** argv) {
  Options options;
  CLI::App app("The pipeline on two cores against the same model unpipelined");
  app.add_option("mode", options.mode)->check(CLI::IsMember({"speed", "memory", "ablation", "overhead", "undo"}));
  app.add_option("--workload", options.workload, "gpt, but of an ablation unet")->check(CLI::IsMember(WorkloadNames()));
  app.add_option("--rounds", options.rounds)->check(CLI::PositiveNumber);
  app.add_option("--m", options.micro_batches, "Micro-batches")->delimiter(',')->check(CLI::PositiveNumber);
  ParseOptions(app, argc, argv);
  if (options.workload.empty()) options.workload = options.mode == "ablation" ? "unet" : "gpt";
  return options;
}

void Speed(const Options& options) {
  const std::vector<Device> cores = OneCoreDevices(2);
  DevicePool pool(cores, DevicePool::Mode::kThreads);
  const Workload workload = MakeWorkload(options.workload, 2, 1, CheckpointMode::kNever);
  PlainModel plain(workload);
  std::vector<std::unique_ptr<Pipeline>> pipelines;
  std::vector<Variant> variants;
  variants.push_back({
      "one core, full batch",
      [&] { return plain.Step(workload, 1, cores[0].cores); },
  });
  variants.push_back({"two intra-op threads, full batch", [&] {
                        return plain.Step(workload, 1, {cores[0].cores[0], cores[1].cores[0]});
                      }});
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
                        pipeline->plan().makespan_seconds, 2.0 * m / (m + 1)});
  }
  RunRounds(variants, options.rounds);
  std::printf("%s: %d rounds, every variant once per round, rotating order; a step is clear, forward, loss, backward\n",
              options.workload.c_str(), options.rounds);
  std::printf("%-34s %10s %21s %9s %21s %11s %8s\n", "", "median ms", "(least .. most)", "x 1 core", "(least .. most)",
              "% predicted", "% ideal");
  for (const Variant& variant : variants) {
    const Spread ms = Sorted(variant.seconds);
    const Spread ratio = Ratio(variants[0].seconds, variant.seconds);
    std::printf("%-34s %10.1f (%8.1f .. %8.1f) %9.2f (%8.2f .. %8.2f)", variant.name.c_str(), ms.median * 1e3,
                ms.least * 1e3, ms.most * 1e3, ratio.median, ratio.least, ratio.most);
    if (variant.predicted > 0) {
      std::printf(" %10.1f%% %7.1f%%", 100 * variant.predicted / ms.median, 100 * ratio.median / variant.ideal);
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

// Bytes of tensors that are alive, and the most there were: LibTorch's own reports, from every thread that has begun
// to.
//
// Threads:   any.
class LiveBytes : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t change, size_t, size_t, c10::Device) override {
    const int64_t now = live_.fetch_add(change) + change;
    int64_t most = most_.load();
    while (now > most && !most_.compare_exchange_weak(most, now)) {
    }
  }
  void reportOutOfMemory(int64_t, size_t, size_t, c10::Device) override {}
  bool memoryProfilingEnabled() const override { return true; }

  int64_t live() const { return live_; }
  // The most since the last call, above what lives now.
  int64_t GrowthSinceReset() const { return most_ - base_; }
  void Reset() { base_ = most_ = live_.load(); }

 private:
  std::atomic<int64_t> live_ = 0;
  std::atomic<int64_t> most_ = 0;
  int64_t base_ = 0;
};

std::shared_ptr<LiveBytes> Live() {
  static const auto live = std::make_shared<LiveBytes>();
  return live;
}

// Every thread that runs an action tells Live() what it allocates, from its first action on.
void ReportLive(const Action&) {
  thread_local const bool reports = [] {
    c10::ThreadLocalDebugInfo::_push(c10::DebugInfoKind::PROFILER_STATE, Live());
    return true;
  }();
  (void)reports;
}

// What an action holds while it runs and gives back by its end, the most of each stage, summed: results that operators
// make on their way, and a weight gradient until it is added to the one that is there. Any execution of one micro-batch
// has it.
int64_t TransientBytes(const Options& options, int m) {
  DevicePool one_at_a_time(OneCoreDevices(2), DevicePool::Mode::kSerial);
  const Workload workload = MakeWorkload(options.workload, 2, m, CheckpointMode::kNever);
  Pipeline::Options pipeline_options = On(one_at_a_time, workload.rows / m);
  std::optional<Action> running;
  int64_t before = 0;
  std::vector<int64_t> most(2, 0);
  const auto end_action = [&] {
    // A backward frees as it goes: what counts is how far it rises above its begin. A forward keeps: above its end.
    const int64_t growth = Live()->GrowthSinceReset();
    const int64_t kept = running->kind == ActionKind::kForward ? Live()->live() - before : 0;
    // The first micro-batch makes the gradients that the others are added to.
    if (running->micro_batch > 0) most.at(running->stage) = std::max(most.at(running->stage), growth - kept);
  };
  pipeline_options.before_action = [&](const Action& action) {
    ReportLive(action);
    if (running.has_value()) end_action();
    running = action;
    before = Live()->live();
    Live()->Reset();
  };
  auto pipeline = Must(Pipeline::Create(workload.spec, pipeline_options));
  Must(pipeline->ForwardBackward(Request(workload)));
  return most[0] + most[1];
}

// How much the process grows within a step, by checkpoint mode and schedule: resident memory, and live tensors.
void Memory(const Options& options) {
  const std::shared_ptr<LiveBytes> live = Live();
  const auto report = ReportLive;
  DevicePool pool(OneCoreDevices(2), DevicePool::Mode::kThreads);
  const int m = options.micro_batches.front() == 4 ? 8 : options.micro_batches.front();
  std::printf("%s, m = %d: growth within a step (peak - before), MiB, median of 5\n", options.workload.c_str(), m);
  std::printf("  an action of each stage rises by %.1f MiB in all above what it keeps\n",
              static_cast<double>(TransientBytes(options, m)) / (1 << 20));
  std::printf("  %-6s %-12s %9s %9s %9s %9s\n", "", "", "resident", "tensors", "planned", "gradients");
  for (const char* kind : {"gpipe", "1f1b"}) {
    for (CheckpointMode mode : {CheckpointMode::kNever, CheckpointMode::kExceptLast, CheckpointMode::kAlways}) {
      Workload workload = MakeWorkload(options.workload, 2, m, mode);
      workload.spec.schedule.kind = kind;
      Pipeline::Options pipeline_options = On(pool, workload.rows / m);
      pipeline_options.before_action = report;
      auto pipeline = Must(Pipeline::Create(workload.spec, pipeline_options));
      std::vector<double> growth;
      std::vector<double> tensors;
      for (int i = 0; i < 6; ++i) {
        pipeline->DiscardGradients();
        ReturnFreedMemory();
        const int64_t before = StatusKib("VmRSS:");
        std::ofstream("/proc/self/clear_refs") << "5";
        live->Reset();
        Must(pipeline->ForwardBackward(Request(workload)));
        if (i > 0) tensors.push_back(static_cast<double>(live->GrowthSinceReset()) / (1 << 20));
        if (i > 0) growth.push_back(static_cast<double>(StatusKib("VmHWM:") - before) / 1024);
      }
      int64_t planned = 0;
      int64_t gradients = 0;  // they live until the step, and count among the tensors
      for (const StagePlan& stage : pipeline->plan().stages) {
        planned += stage.peak_activation_bytes;
        gradients += stage.parameter_bytes;
      }
      const char* name = mode == CheckpointMode::kNever    ? "never"
                         : mode == CheckpointMode::kAlways ? "always"
                                                           : "except_last";
      std::printf("  %-6s %-12s %9.1f %9.1f %9.1f %9.1f\n", kind, name, Sorted(growth).median, Sorted(tensors).median,
                  static_cast<double>(planned) / (1 << 20), static_cast<double>(gradients) / (1 << 20));
    }
  }
}

// What each mechanism is worth.
void Ablate(const Options& options) {
  const std::vector<Device> cores = OneCoreDevices(2);
  DevicePool pool(cores, DevicePool::Mode::kThreads);
  DevicePool one_at_a_time(cores, DevicePool::Mode::kSerial);
  const int m = options.micro_batches.front() == 4 ? 8 : options.micro_batches.front();
  const Workload workload = MakeWorkload(options.workload, 4, m, CheckpointMode::kAlways);
  struct Mechanisms {
    std::string name;
    DevicePool* pool;
    PipelineEdits edits;
  };
  const auto late = [](Schedule& lists) { lists = testing::RecomputeLate(std::move(lists)); };
  const auto through_stages = [](Plan& plan) { plan.skips = ThroughStages(plan.skips); };
  std::vector<std::unique_ptr<Pipeline>> pipelines;
  std::vector<Variant> variants;
  for (const Mechanisms& mechanisms :
       std::vector<Mechanisms>{{"all of them", &pool, {}},
                               {"recomputation waits for its gradient", &pool, {.plan = {}, .lists = late}},
                               {"skips handed from stage to stage", &pool, {.plan = through_stages, .lists = {}}},
                               {"one stage at a time, no overlap", &one_at_a_time, {}}}) {
    Pipeline::Options pipeline_options = On(*mechanisms.pool, workload.rows / m);
    pipeline_options.edits = mechanisms.edits;
    pipelines.push_back(Must(Pipeline::Create(workload.spec, pipeline_options)));
    Pipeline* pipeline = pipelines.back().get();
    variants.push_back({mechanisms.name, [&, pipeline] {
                          pipeline->DiscardGradients();
                          return Must(pipeline->ForwardBackward(Request(workload))).seconds;
                        }});
  }
  RunRounds(variants, options.rounds);
  int64_t crossing = 0;
  for (const SkipRoute& route : pipelines.front()->plan().skips) crossing += static_cast<int64_t>(route.names.size());
  std::printf(
      "%s, 4 stages on two cores, always recomputed, m = %d, %lld skips cross a cut; %d rounds, rotating order\n",
      options.workload.c_str(), m, static_cast<long long>(crossing), options.rounds);
  std::printf("%-40s %10s %21s %9s %21s\n", "", "median ms", "(least .. most)", "x all", "(least .. most)");
  for (const Variant& variant : variants) {
    const Spread ms = Sorted(variant.seconds);
    const Spread ratio = Ratio(variants[0].seconds, variant.seconds);
    std::printf("%-40s %10.1f (%8.1f .. %8.1f) %9.3f (%8.3f .. %8.3f)\n", variant.name.c_str(), ms.median * 1e3,
                ms.least * 1e3, ms.most * 1e3, ratio.median, ratio.least, ratio.most);
  }
}

// What the copies that undo a failed step cost.
void Undo(const Options& options) {
  DevicePool pool(OneCoreDevices(2), DevicePool::Mode::kThreads);
  const int m = options.micro_batches.front() == 4 ? 8 : options.micro_batches.front();
  for (const char* optimizer : {"sgd", "adamw"}) {
    Workload workload = MakeWorkload(options.workload, 2, m, CheckpointMode::kExceptLast);
    workload.spec.optimizer.name = optimizer;
    workload.spec.optimizer.clip_norm = 1e-3;  // so that gradients are scaled
    std::vector<std::unique_ptr<Pipeline>> pipelines;
    std::vector<Variant> variants;
    for (const bool undo : {false, true}) {
      Pipeline::Options pipeline_options = On(pool, workload.rows / m);
      if (!undo) pipeline_options.edits.plan = [](Plan& plan) { plan.undo = false; };
      pipelines.push_back(Must(Pipeline::Create(workload.spec, pipeline_options)));
      Pipeline* pipeline = pipelines.back().get();
      variants.push_back({undo ? "with undo" : "without",
                          [&, pipeline] { return Must(pipeline->TrainStep(Request(workload), {})).seconds; }});
    }
    RunRounds(variants, options.rounds);
    int64_t bytes = 0;
    for (const StagePlan& stage : pipelines.back()->plan().stages) bytes += stage.undo_bytes;
    std::printf("%s, %s, m = %d, %.1f MiB of copies; %d rounds, rotating order\n", options.workload.c_str(), optimizer,
                m, static_cast<double>(bytes) / (1 << 20), options.rounds);
    for (const Variant& variant : variants) {
      const Spread ms = Sorted(variant.seconds);
      const Spread ratio = Ratio(variant.seconds, variants[0].seconds);
      std::printf("%-12s %10.1f ms (%8.1f .. %8.1f) %9.3f (%8.3f .. %8.3f)\n", variant.name.c_str(), ms.median * 1e3,
                  ms.least * 1e3, ms.most * 1e3, ratio.median, ratio.least, ratio.most);
    }
  }
}

// A model of next to no work: two linears, or the same with a tuple and a skip that cross the cut.
std::vector<LayerSpec> IdleLayers(bool rich) {
  const LayerSpec linear{"linear", "", {{"in", int64_t{1}}, {"out", int64_t{1}}}};
  if (!rich) return {linear, linear};
  const OptionMap name = {{"name", std::string("skip")}};
  return {linear, {"stash", "", name}, {"twice", "", {}}, {"sum", "", {}}, {"pop_add", "", name}, linear};
}

// One tensor as a tuple of two, and two as their sum.
class TwiceLayer : public Layer {
 public:
  Batch Forward(const Batch& inputs, const LayerContext&) override {
    return Batch::Tuple({inputs[0], Value(at::mul(inputs.TensorAt(0), 2))});
  }
  std::vector<TensorSignature> InputSignature() const override { return {}; }
  std::vector<TensorSignature> OutputSignature() const override { return {kScalars, kScalars}; }
  static const inline TensorSignature kScalars = {"output", DataType::kFp32, {-1, 1}};
};

class SumLayer : public Layer {
 public:
  Batch Forward(const Batch& inputs, const LayerContext&) override {
    return {at::add(inputs.TensorAt(0), inputs.TensorAt(1))};
  }
  std::vector<TensorSignature> InputSignature() const override { return {TwiceLayer::kScalars, TwiceLayer::kScalars}; }
  std::vector<TensorSignature> OutputSignature() const override { return {TwiceLayer::kScalars}; }
};

template <typename Kind>
absl::StatusOr<std::unique_ptr<Layer>> Make(const LayerRequest&) {
  return std::make_unique<Kind>();
}

void OverheadOf(const Options& options, bool rich, DevicePool::Mode mode) {
  DevicePool pool(OneCoreDevices(2), mode);
  PipelineSpec spec;
  spec.model.layers = IdleLayers(rich);
  const int half = static_cast<int>(spec.model.layers.size()) / 2;
  spec.cut.balance = {half, half};
  spec.schedule = {"1f1b", 32, CheckpointMode::kNever};
  spec.optimizer.name = "sgd";
  spec.loss.name = "mean_squared_error";
  std::shared_ptr<PipelineMetrics> metrics;
  Pipeline::Options pipeline_options = On(pool, 1);
  pipeline_options.metrics = [&](const Plan&) {
    std::vector<LaneDescription> lanes(2);
    lanes[1].lane = 1;
    return metrics = std::make_shared<PipelineMetrics>(RealClock(), "bench", lanes, ScheduleDescription());
  };
  auto pipeline = Must(Pipeline::Create(spec, pipeline_options));
  ContributionRequest request;
  request.inputs = NamedTensors{{pipeline->signature().inputs[0].name, at::randn({32, 1})}};
  request.target = at::randn({32, 1});
  constexpr int kActions = 2 * 2 * 32;
  std::vector<double> engine_micros, clock_micros;
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
    if (round < 0) continue;
    engine_micros.push_back(engine * 1e6 / kActions);
    clock_micros.push_back(seconds * 1e6 / kActions);
  }
  const auto print = [&](const char* what, const Spread& spread) {
    std::printf("  %-12s %-42s %6.2f us (%.2f .. %.2f)\n", rich ? "tuple, skip:" : "one tensor:", what, spread.median,
                spread.least, spread.most);
  };
  const bool serial = mode == DevicePool::Mode::kSerial;
  print(serial ? "one thread, whole run less its actions" : "two threads, state `host`", Sorted(engine_micros));
  print(serial ? "one thread, whole run" : "two threads, whole run", Sorted(clock_micros));
}

// What the engine costs beside the actions themselves: interpreting, queues, bookkeeping, clocks.
void Overhead(const Options& options) {
  std::printf("engine time per action (everything but the actions), a model of no work, m = 32, %d rounds\n",
              options.rounds);
  for (const bool rich : {false, true}) {
    OverheadOf(options, rich, DevicePool::Mode::kSerial);
    OverheadOf(options, rich, DevicePool::Mode::kThreads);
  }
}

}  // namespace
}  // namespace penstock::bench

int main(int argc, char** argv) {
  using namespace penstock::bench;
  BeLikeTheDaemon();
  const Options options = Parse(argc, argv);
  for (const auto& [kind, factory] : {std::pair("twice", &Make<TwiceLayer>), std::pair("sum", &Make<SumLayer>)}) {
    if (!penstock::RegisterLayerKind(kind, factory).ok()) Die("a layer kind is there already");
  }
  if (options.mode == "speed") {
    Speed(options);
  } else if (options.mode == "memory") {
    Memory(options);
  } else if (options.mode == "undo") {
    Undo(options);
  } else if (options.mode == "ablation") {
    Ablate(options);
  } else {
    Overhead(options);
  }
  return 0;
}
