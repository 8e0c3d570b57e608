// Bubble filling: a steady load of inference beside training.
//
//   fill_bench [--workload delay4|delay8|gpt] [--rounds 7] [--steps 6] [--m 16] [--kind 1f1b] [--in-flight 0]
//              [--rows 2] [--inference-ms 2] [--every-ms 0] [--filling on|off] [--share 0.02] [--max-wait 0]
//
// In each round, in an order that rotates: training alone; inference alone; training with the inference beside it. The
// load is closed: `in-flight` calls of one micro-batch are always open (0: four per lane). `delayP` is P devices that
// sleep, 5 ms per forward, 10 ms per backward and `inference-ms` per inference, so that P may be more than there are
// cores; `gpt` is that of workloads.h on two cores, with `rows` rows per inference. With --every-ms the load is open
// and light: a call begins every so many ms, half as many more or less by chance, however long the earlier ones take.
//
// Printed, as medians over the rounds with their least and most:
//   slower      time of a step with inference beside it, less that of training alone in the same round, as a share of
//               it
//   filled      inference work inside the steps, in device time, as a share of the bubble of training alone
//   useful      the part of it that answered calls needed: what was begun and had to give way is left out
//   p50, p99    of the inference calls, from call to answer, beside training and alone
//   both        the time of the two loads one after the other, over the time that they took together
//   bound       with --every-ms: two p50 alone and, on each lane, the longest action of training, which a call may
//               meet. The latencies of all rounds together stand beside it.

#include <ATen/ops/randn.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/thread.h"
#include "engine/exec/device_pool.h"
#include "engine/observe/bubble.h"
#include "engine/observe/metrics.h"
#include "engine/plan/planner.h"
#include "tests/bench/options.h"
#include "tests/bench/rounds.h"
#include "tests/bench/workloads.h"

namespace penstock::bench {
namespace {

struct Options {
  std::string workload = "delay4";
  std::string kind = "1f1b";
  int rounds = 7;
  int steps = 6;
  int m = 16;
  int rows = 2;
  int in_flight = 0;
  double inference_ms = 2;
  double every_ms = 0;
  BubbleFillingSpec filling;
};

Options Parse(int argc, char** argv) {
  Options options;
  CLI::App app("Bubble filling: a steady load of inference beside training");
  app.add_option("--workload", options.workload, "delayP: P devices that sleep; gpt: two cores");
  app.add_option("--kind", options.kind, "Of schedule");
  app.add_option("--rounds", options.rounds)->check(CLI::PositiveNumber);
  app.add_option("--steps", options.steps, "Of training in a round")->check(CLI::PositiveNumber);
  app.add_option("--m", options.m, "Micro-batches")->check(CLI::PositiveNumber);
  app.add_option("--rows", options.rows, "Of an inference on gpt")->check(CLI::PositiveNumber);
  app.add_option("--in-flight", options.in_flight, "Open calls; 0: four per lane")->check(CLI::NonNegativeNumber);
  app.add_option("--inference-ms", options.inference_ms, "Of an inference on a device that sleeps")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--every-ms", options.every_ms, "Between the begins of two calls; 0: a closed load")
      ->check(CLI::NonNegativeNumber);
  std::string filling = "on";
  app.add_option("--filling", filling)->check(CLI::IsMember({"on", "off"}));
  app.add_option("--share", options.filling.inference_share, "inference_share")->check(CLI::Range(0.0, 1.0));
  app.add_option("--max-wait", options.filling.max_wait_seconds, "max_wait_seconds; 0: by itself")
      ->check(CLI::NonNegativeNumber);
  ParseOptions(app, argc, argv);
  options.filling.enabled = filling == "on";
  return options;
}

// What is trained, and what is asked.
struct Load {
  PipelineSpec spec;
  ContributionRequest batch;
  NamedValues question;
  int64_t micro_batch_rows = 1;
  std::vector<Device> devices;
};

Load DelayLoad(const Options& options, int lanes) {
  constexpr int64_t kFeatures = 4;
  Load load;
  for (int i = 0; i < lanes; ++i) {
    load.spec.model.layers.push_back({"delay",
                                      "",
                                      {{"features", kFeatures},
                                       {"forward_ms", 5.0},
                                       {"input_ms", 5.0},
                                       {"weight_ms", 5.0},
                                       {"inference_ms", options.inference_ms}}});
  }
  load.spec.cut.balance.assign(lanes, 1);
  load.spec.optimizer.name = "sgd";
  load.spec.loss.name = "mean_squared_error";
  load.batch.inputs = NamedTensors{{"input", at::randn({options.m, kFeatures})}};
  load.batch.target = at::randn({options.m, kFeatures});
  load.question = NamedTensors{{"input", at::randn({1, kFeatures})}};
  std::vector<std::string> names;
  for (int i = 0; i < lanes; ++i) names.push_back(absl::StrCat("cpu:", i));
  load.devices = Must(ParseDevices(names, {}, UsableCores()));
  return load;
}

Load WorkloadLoad(const Options& options) {
  Workload workload = MakeWorkload(options.workload, 2, options.m, CheckpointMode::kNever);
  Load load;
  load.spec = workload.spec;
  load.batch.inputs = workload.inputs;
  load.batch.target = workload.target;
  load.question = NamedTensors{{workload.inputs[0].name, workload.inputs[0].tensor.narrow(
                                                             0, 0, std::min<int64_t>(options.rows, workload.rows))}};
  load.micro_batch_rows = workload.rows / options.m;
  load.devices = Must(ParseDevices({"cpu:0", "cpu:1"}, {}, UsableCores()));
  return load;
}

// Keeps calls open.
//
// Threads:   Begin() and End() from one thread; results come on the lanes' threads, new calls go from one of its own.
class Asker {
 public:
  // `every_ms` as the option.
  Asker(Pipeline* pipeline, NamedValues question, int in_flight, double every_ms)
      : pipeline_(pipeline), question_(std::move(question)), in_flight_(in_flight), every_ms_(every_ms) {}

  void Begin() {
    {
      absl::MutexLock lock(&mu_);
      stop_ = false;
      seconds_.clear();
    }
    thread_ = std::make_unique<Thread>("asker", [this] { Loop(); });
  }
  // Returns the latencies of the calls that were answered until now; those still open are waited for.
  std::vector<double> End() {
    std::vector<double> seconds;
    {
      absl::MutexLock lock(&mu_);
      stop_ = true;
      seconds = seconds_;
    }
    thread_.reset();
    return seconds;
  }
  int64_t answered() const {
    absl::MutexLock lock(&mu_);
    return static_cast<int64_t>(seconds_.size());
  }
  void AwaitAnswers(int64_t count) {
    const auto enough = [&]()
                            ABSL_SHARED_LOCKS_REQUIRED(mu_) { return static_cast<int64_t>(seconds_.size()) >= count; };
    absl::MutexLock lock(&mu_, absl::Condition(&enough));
  }

 private:
  void Loop() {
    const auto room = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return stop_ || every_ms_ > 0 || open_ < in_flight_; };
    const auto none = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return open_ == 0; };
    while (true) {
      {
        absl::MutexLock lock(&mu_, absl::Condition(&room));
        if (every_ms_ > 0) {
          mu_.AwaitWithTimeout(absl::Condition(&stop_), absl::Milliseconds(every_ms_ * jitter_(random_)));
        }
        if (stop_) break;
        ++open_;
      }
      const int64_t begin = RealClock()->NowNanos();
      ForwardRequest request;
      request.inputs = question_;
      request.micro_batches = 1;
      pipeline_->InferAsync(std::move(request), [this, begin](const absl::StatusOr<ForwardOutcome>& outcome) {
        if (!outcome.ok()) Die(std::string(outcome.status().message()));
        const double seconds = static_cast<double>(RealClock()->NowNanos() - begin) * 1e-9;
        absl::MutexLock lock(&mu_);
        seconds_.push_back(seconds);
        --open_;
      });
    }
    absl::MutexLock lock(&mu_, absl::Condition(&none));
  }

  Pipeline* const pipeline_;
  const NamedValues question_;
  const int in_flight_;
  const double every_ms_;
  std::mt19937 random_{1};
  std::uniform_real_distribution<double> jitter_{0.5, 1.5};
  mutable absl::Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  int open_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<double> seconds_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<Thread> thread_;
};

double At(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<size_t>(share * static_cast<double>(values.size())))];
}

void Print(const char* name, const std::vector<double>& values, double scale, const char* unit) {
  std::printf("  %-34s %9.2f %-2s (%.2f .. %.2f)\n", name, At(values, 0.5) * scale, unit, At(values, 0) * scale,
              At(values, 1) * scale);
}

// One kind of round, measured.
struct Measured {
  double seconds = 0;  // of all steps, or of all calls
  ClassTimes times;
  int64_t actions = 0;  // of inference, on all lanes
  int64_t answered = 0;
  std::vector<double> latencies;
};

void Fill(const Options& options) {
  const bool delays = options.workload.rfind("delay", 0) == 0;
  Load load = delays ? DelayLoad(options, std::atoi(options.workload.c_str() + 5)) : WorkloadLoad(options);
  load.spec.schedule.kind = options.kind;
  load.spec.schedule.micro_batches = options.m;
  load.spec.schedule.checkpoint = CheckpointMode::kNever;
  load.spec.bubble_filling = options.filling;
  DevicePool pool(load.devices, DevicePool::Mode::kThreads);
  std::shared_ptr<PipelineMetrics> metrics;
  Pipeline::Options pipeline_options;
  pipeline_options.devices = &pool;
  pipeline_options.profile.rows = load.micro_batch_rows;
  pipeline_options.profile.repeats = 9;
  pipeline_options.metrics = [&](const Plan&) {
    std::vector<LaneDescription> lanes(load.devices.size());
    for (size_t i = 0; i < lanes.size(); ++i) lanes[i].lane = static_cast<int>(i);
    return metrics = std::make_shared<PipelineMetrics>(RealClock(), "bench", lanes, ScheduleDescription());
  };
  auto pipeline = Must(Pipeline::Create(load.spec, pipeline_options));
  const auto lanes = static_cast<int>(load.devices.size());
  Asker asker(pipeline.get(), load.question, options.in_flight > 0 ? options.in_flight : 4 * lanes, options.every_ms);

  const auto actions = [&] {
    int64_t count = 0;
    for (int lane = 0; lane < lanes; ++lane) count += metrics->lane(lane).phases[Phase::kInfer].Snapshot().count();
    return count;
  };
  const auto train = [&](Measured& measured) {
    const int64_t actions_before = actions();
    const auto before = metrics->LaneTimes(RealClock()->NowNanos());
    const int64_t begin = RealClock()->NowNanos();
    for (int step = 0; step < options.steps; ++step)
      Must(pipeline->TrainStep(load.batch, {.learning_rate = 1e-4, .clip_norm = {}}));
    const int64_t end = RealClock()->NowNanos();
    measured.seconds = static_cast<double>(end - begin) * 1e-9;
    measured.times = TimesBetween(before, metrics->LaneTimes(end));
    measured.actions = actions() - actions_before;
  };
  const auto alone = [&] {
    Measured measured;
    train(measured);
    return measured;
  };
  const auto together = [&] {
    Measured measured;
    asker.Begin();
    asker.AwaitAnswers(1);
    const int64_t before = asker.answered();
    train(measured);
    measured.answered = asker.answered() - before;
    measured.latencies = asker.End();
    return measured;
  };
  const auto inference = [&](int64_t calls) {
    Measured measured;
    const int64_t begin = RealClock()->NowNanos();
    asker.Begin();
    asker.AwaitAnswers(std::max<int64_t>(calls, 1));
    measured.seconds = static_cast<double>(RealClock()->NowNanos() - begin) * 1e-9;
    measured.latencies = asker.End();
    return measured;
  };

  std::vector<double> slower, filled, useful, p50, p99, p50_alone, p99_alone, both, per_step;
  std::vector<double> all_beside, all_alone;
  int64_t calls = 8 * lanes;
  for (int round = -1; round < options.rounds; ++round) {  // round -1 warms up
    Measured training, beside, asked;
    for (int i = 0; i < 3; ++i) {
      switch ((i + round + 1) % 3) {
        case 0:
          training = alone();
          break;
        case 1:
          beside = together();
          break;
        default:
          asked = inference(calls);
      }
    }
    if (beside.answered > 0) calls = beside.answered;
    if (round < 0) continue;
    const auto bubble = static_cast<double>(training.times.InStep() - training.times.work);
    const auto needed = static_cast<double>(beside.answered * lanes);
    slower.push_back(beside.seconds / training.seconds - 1);
    filled.push_back(static_cast<double>(beside.times.filled) / bubble);
    useful.push_back(filled.back() * std::min(1.0, needed / static_cast<double>(std::max<int64_t>(beside.actions, 1))));
    p50.push_back(At(beside.latencies, 0.5));
    p99.push_back(At(beside.latencies, 0.99));
    all_beside.insert(all_beside.end(), beside.latencies.begin(), beside.latencies.end());
    all_alone.insert(all_alone.end(), asked.latencies.begin(), asked.latencies.end());
    p50_alone.push_back(At(asked.latencies, 0.5));
    p99_alone.push_back(At(asked.latencies, 0.99));
    const double per_call = asked.seconds / static_cast<double>(std::max<size_t>(asked.latencies.size(), 1));
    both.push_back((training.seconds + per_call * static_cast<double>(beside.answered)) / beside.seconds);
    per_step.push_back(training.seconds / options.steps);
  }
  std::printf("%s, %d lanes, %s, m = %d: %d rounds of %d steps, every variant once per round, rotating order\n",
              options.workload.c_str(), lanes, options.kind.c_str(), options.m, options.rounds, options.steps);
  Print("step, training alone", per_step, 1e3, "ms");
  Print("slower", slower, 100, "%");
  Print("filled, of the bubble", filled, 100, "%");
  Print("useful, of the bubble", useful, 100, "%");
  Print("inference p50 beside training", p50, 1e3, "ms");
  Print("inference p99 beside training", p99, 1e3, "ms");
  Print("inference p50 alone", p50_alone, 1e3, "ms");
  Print("inference p99 alone", p99_alone, 1e3, "ms");
  Print("one after the other / together", both, 1, "x");
  if (options.every_ms <= 0) return;
  int64_t longest = 0;  // of training, on each lane
  for (const StageCosts& costs : CostsOf(pipeline->plan()).stages) {
    longest += std::max({costs.forward, costs.backward.value_or(0), costs.optimizer});
  }
  const double bound = 2 * At(all_alone, 0.5) + static_cast<double>(longest) * 1e-9;
  std::printf(
      "  %zu calls beside training: p50 %.2f, p99 %.2f, longest %.2f ms; bound %.2f ms; alone p50 %.2f, p99 %.2f ms\n",
      all_beside.size(), At(all_beside, 0.5) * 1e3, At(all_beside, 0.99) * 1e3, At(all_beside, 1) * 1e3, bound * 1e3,
      At(all_alone, 0.5) * 1e3, At(all_alone, 0.99) * 1e3);
}

}  // namespace
}  // namespace penstock::bench

int main(int argc, char** argv) {
  using namespace penstock::bench;
  BeLikeTheDaemon();
  Fill(Parse(argc, argv));
  return 0;
}
