// Schedules as measured against schedules as simulated.
//
//   schedule_bench delay    [--lanes 2,4,8] [--m 8,16,32] [--ms 5] [--rounds 7] [--kinds all]
//   schedule_bench real     [--workload gpt|mlp|resnet|unet|amoebanet] [--m 8,16] [--rounds 7] [--kinds all]
//   schedule_bench real     --program FILE.pt2 [--rows 16] [--m 8,16] ...
//   schedule_bench plans    [--workload gpt|...|delay] [--rounds 5]
//   schedule_bench overhead [--lanes 8] [--m 32] [--rounds 51] [--kinds all]
//
// delay: every stage is a layer that sleeps --ms for a forward, an input and a weight gradient each;
// `predicted` is the simulator's makespan from those times alone, so all that the engine costs counts as loss. Beside
// it `bare`: threads that do nothing but sleep and wait for each other, by the same lists: what the machine gives at
// most. Where other work is about, run it as `chrt --fifo 10 schedule_bench delay`.
// real: two cores, a workload or an exported program; `predicted` is the simulator's from the costs of each stage,
// measured with the other core busy, anew in every round just before the step is measured.
// plans: what the planner lists when everything is open, each of them measured; is its first choice the best? `delay`:
// four devices that sleep, layers of unequal times, and a memory limit.
// overhead: the same as delay with no delays: what the engine costs per action.
//
// In each round every variant runs once, in an order that rotates; medians, and the least and the most.

#include <ATen/ops/randn.h>
#include <sys/resource.h>

#include <atomic>
#include <cstring>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/notification.h"
#include "engine/base/clock.h"
#include "engine/observe/metrics.h"
#include "engine/schedule/build.h"
#include "engine/schedule/dependencies.h"
#include "engine/schedule/simulate.h"
#include "tests/bench/options.h"
#include "tests/bench/plain_model.h"
#include "tests/bench/rounds.h"

namespace penstock::bench {
namespace {

struct Options {
  std::string mode = "delay";
  std::string workload = "gpt";
  std::string program;  // instead of a workload: a file
  int rows = 16;        // of a mini-batch of the program
  std::vector<int> lanes = {2, 4, 8};
  std::vector<int> micro_batches = {8, 16, 32};
  std::vector<std::string> kinds;  // empty: all
  double ms = 5;
  int rounds = 7;
};

Options Parse(int argc, char** argv) {
  Options options;
  CLI::App app("Schedules as measured against schedules as simulated");
  app.add_option("mode", options.mode)->check(CLI::IsMember({"delay", "real", "plans", "overhead"}));
  app.add_option("--workload", options.workload, "Of real and plans");
  app.add_option("--program", options.program, "Of real: an exported program instead of a workload");
  app.add_option("--rows", options.rows, "Of a mini-batch of the program")->check(CLI::PositiveNumber);
  CLI::Option* lanes = app.add_option("--lanes", options.lanes, "Devices; overhead: 8")->delimiter(',');
  CLI::Option* m =
      app.add_option("--m", options.micro_batches, "Micro-batches; real: 8,16; overhead: 32")->delimiter(',');
  app.add_option("--kinds", options.kinds, "Of schedule; unset: all")->delimiter(',');
  CLI::Option* ms = app.add_option("--ms", options.ms, "Of a forward and each gradient; overhead: 0");
  CLI::Option* rounds = app.add_option("--rounds", options.rounds, "overhead: 51")->check(CLI::PositiveNumber);
  for (CLI::Option* numbers : {lanes, m}) numbers->check(CLI::PositiveNumber);
  ParseOptions(app, argc, argv);
  const bool overhead = options.mode == "overhead";
  if (options.mode == "real" && m->empty()) options.micro_batches = {8, 16};
  if (overhead && lanes->empty()) options.lanes = {8};
  if (overhead && m->empty()) options.micro_batches = {32};
  if (overhead && ms->empty()) options.ms = 0;
  if (overhead && rounds->empty()) options.rounds = 51;
  if (!options.program.empty()) options.workload = options.program;
  return options;
}

// A schedule and its parameters, but for the micro-batches.
struct Choice {
  std::string kind;
  int chunks = 1;
  std::optional<int> lag = {};
  bool trains = true;

  std::string Name() const {
    return absl::StrCat(kind, chunks > 1 ? absl::StrCat(" v", chunks) : "", lag ? absl::StrCat(" K", *lag) : "");
  }
};

std::vector<Choice> Choices(const Options& options, int lanes, int m) {
  std::vector<Choice> all = {{"gpipe"},
                             {"1f1b"},
                             {"interleaved-1f1b", 2},
                             {"interleaved-1f1b", 4},
                             {"looped-bfs", 2},
                             {"looped-bfs", 4},
                             {"zb-h1"},
                             {"zb-h2"},
                             {"lag", 1, (3 * lanes) / 2},
                             {"interleaved-zb", 2},
                             {"interleaved-zb", 4},
                             {"zbv", 2},
                             {"dualpipe-v", 2},
                             {"auto"},
                             {"forward-only", 1, {}, false},
                             {"forward-only", 2, {}, false}};
  std::vector<Choice> wanted;
  for (const Choice& choice : all) {
    if (choice.kind == "dualpipe-v" && m < 2 * lanes) continue;
    const auto& kinds = options.kinds;
    if (!kinds.empty() && std::find(kinds.begin(), kinds.end(), choice.kind) == kinds.end()) continue;
    wanted.push_back(choice);
  }
  return wanted;
}

// The pipeline's schedule; a pipeline that only infers trains by the kind that places its stages as `forward-only`
// does.
ScheduleSpec SpecOf(const Choice& choice, int m) {
  ScheduleSpec spec;
  spec.kind = choice.trains ? choice.kind : choice.chunks > 1 ? "looped-bfs" : "gpipe";
  spec.micro_batches = m;
  spec.checkpoint = CheckpointMode::kNever;
  spec.chunks = choice.chunks;
  spec.lag = choice.lag;
  return spec;
}

// A contribution, or an inference.
double Run(Pipeline& pipeline, const Workload& workload, const Choice& choice) {
  if (choice.trains) {
    pipeline.DiscardGradients();
    return Must(pipeline.ForwardBackward(Request(workload))).seconds;
  }
  ForwardRequest request;
  request.inputs = workload.inputs;
  absl::Notification finished;
  absl::Status status;
  const int64_t begin = RealClock()->NowNanos();
  pipeline.InferAsync(std::move(request), [&](absl::StatusOr<ForwardOutcome> outcome) {
    status = outcome.status();
    finished.Notify();
  });
  finished.WaitForNotification();
  if (!status.ok()) Die(std::string(status.message()));
  return static_cast<double>(RealClock()->NowNanos() - begin) * 1e-9;
}

// A step of a pipeline made for it, as a training job would see it: after one that warms up, the median of as many as
// fit a fifth of a second. Pipelines that wait for their turn would find their weights out of the caches. `predicted`:
// seconds, from what its stages cost just now, measured so often.
double RunFresh(const PipelineSpec& spec, DevicePool& pool, const Workload& workload, const Choice& choice, int repeats,
                double* predicted) {
  Pipeline::Options pipeline_options = On(pool, workload.rows / spec.schedule.micro_batches);
  pipeline_options.profile.repeats = repeats;
  const auto pipeline = Must(Pipeline::Create(spec, pipeline_options));
  *predicted = pipeline->plan().makespan_seconds;
  Run(*pipeline, workload, choice);
  std::vector<double> seconds;
  for (double all = 0; all < 0.2; all += seconds.back()) seconds.push_back(Run(*pipeline, workload, choice));
  return Sorted(seconds).median;
}

// --- Devices that sleep ---

Workload Delays(const Options& options, const Choice& choice, int lanes, int m) {
  Workload workload;
  PipelineSpec& spec = workload.spec;
  const int stages = lanes * choice.chunks;
  for (int s = 0; s < stages; ++s) {
    LayerSpec layer{"delay", absl::StrCat("delay", s), {}};
    layer.options = {
        {"forward_ms", options.ms}, {"input_ms", options.ms}, {"weight_ms", options.ms}, {"features", int64_t{1}}};
    spec.model.layers.push_back(layer);
  }
  spec.cut.balance.assign(stages, 1);
  spec.schedule = SpecOf(choice, m);
  spec.optimizer.name = "sgd";
  spec.loss.name = "mean_squared_error";
  workload.rows = m;
  workload.inputs = {{"input", at::randn({m, 1})}};
  workload.target = at::randn({m, 1});
  return workload;
}

struct Prediction {
  Schedule lists;
  Simulation simulation;
};

Prediction Predict(const Choice& choice, int lanes, int m, double seconds) {
  const auto ticks = static_cast<Ticks>(seconds * 1e9);
  ScheduleCosts costs;
  costs.stages.assign(static_cast<size_t>(lanes) * choice.chunks, {ticks, ticks, ticks, ticks});
  // Nobody asks for the gradient of the first stage's inputs: all of its backward is the weight half.
  costs.stages.front().input_gradient = 0;
  costs.stages.front().weight_gradient = 2 * ticks;
  const ScheduleSpec spec = SpecOf(choice, m);
  Schedule lists =
      Must(BuildSchedule({.kind = spec.kind,
                          .purpose = choice.trains ? SchedulePurpose::kContribution : SchedulePurpose::kForwardOnly,
                          .lanes = lanes,
                          .chunks = choice.chunks,
                          .lag = choice.lag,
                          .costs = costs,
                          .micro_batches = m}));
  Simulation simulation = Must(Simulate(lists, costs));
  return {std::move(lists), std::move(simulation)};
}

// The lists as threads perform them that only sleep: one per lane, on the lane's core. Returns the seconds it took.
double RunBare(const Prediction& predicted, const std::vector<Device>& devices) {
  const Dependencies dependencies(predicted.lists, /*with_communication=*/false);
  const auto& lanes = predicted.simulation.lanes;
  std::vector<std::vector<std::atomic<bool>>> done;
  for (const auto& lane : lanes) done.emplace_back(lane.size());
  absl::flat_hash_map<Action, std::atomic<bool>*> done_of;
  for (size_t lane = 0; lane < lanes.size(); ++lane) {
    for (size_t i = 0; i < lanes[lane].size(); ++i) done_of[lanes[lane][i].action] = &done[lane][i];
  }
  const int64_t begin = RealClock()->NowNanos();
  {
    std::vector<std::unique_ptr<Thread>> threads;
    for (size_t lane = 0; lane < lanes.size(); ++lane) {
      threads.push_back(std::make_unique<Thread>(
          absl::StrCat("ps-bare-", lane),
          [&, lane] {
            std::vector<Action> needed;
            for (const TimedAction& timed : lanes[lane]) {
              dependencies.Of(timed.action, &needed);
              for (const Action& action : needed) {
                if (const auto found = done_of.find(action); found != done_of.end()) found->second->wait(false);
              }
              if (timed.end > timed.start) SleepUntilNanos(RealClock()->NowNanos() + timed.end - timed.start);
              std::atomic<bool>& mine = *done_of.at(timed.action);
              mine = true;
              mine.notify_all();
            }
          },
          devices[lane].cores));
    }
  }  // joins
  return static_cast<double>(RealClock()->NowNanos() - begin) * 1e-9;
}

// How late a thread wakes from a sleep of that length, as the layer sleeps: with the least timer slack.
void PrintSleep(double ms) {
  DevicePool pool(OneCoreDevices(2), DevicePool::Mode::kThreads);
  Options options;
  options.ms = ms;
  const Choice choice{"1f1b"};
  const Workload workload = Delays(options, choice, 1, 1);
  auto pipeline = Must(Pipeline::Create(workload.spec, On(pool, 1)));
  std::vector<double> late;
  for (int i = 0; i < 101; ++i) late.push_back(Run(*pipeline, workload, choice) * 1e6 - 3e3 * ms);
  const Spread spread = Sorted(late);
  std::printf(
      "three sleeps of %.1f ms one after the other, and the engine around them, take %.0f us more than asked "
      "(%.0f .. %.0f), 101 times\n",
      ms, spread.median, spread.least, spread.most);
}

// Seconds that actions took, on all lanes.
double WorkSeconds(PipelineMetrics& metrics, int lanes) {
  double seconds = 0;
  for (int lane = 0; lane < lanes; ++lane) {
    for (Phase phase :
         {Phase::kForward, Phase::kBackward, Phase::kBackwardInput, Phase::kBackwardWeight, Phase::kInfer}) {
      seconds += static_cast<double>(metrics.lane(lane).phases[phase].Snapshot().sum_nanos) * 1e-9;
    }
  }
  return seconds;
}

// So that a benchmark sees the lanes' counts.
std::function<std::shared_ptr<PipelineMetrics>(const Plan&)> CountIn(std::shared_ptr<PipelineMetrics>& metrics,
                                                                     int lanes) {
  return [&metrics, lanes](const Plan&) {
    std::vector<LaneDescription> descriptions(lanes);
    for (int lane = 0; lane < lanes; ++lane) descriptions[lane].lane = lane;
    return metrics = std::make_shared<PipelineMetrics>(RealClock(), "bench", descriptions, ScheduleDescription());
  };
}

void Delay(const Options& options) {
  const AwakeCores awake;
  PrintSleep(options.ms);
  std::printf("devices that sleep %.1f ms per forward, input and weight gradient; %d rounds, rotating order\n",
              options.ms, options.rounds);
  std::printf(
      "| P | m | schedule | predicted ms | measured ms (least .. most) | of the predicted speed | of the bare threads' "
      "(least "
      ".. most) | bubble | an action takes longer by, us |\n");
  std::printf("|---|---|---|---|---|---|---|---|---|\n");
  double worst = 1;
  for (int lanes : options.lanes) {
    DevicePool pool(OneCoreDevices(lanes), DevicePool::Mode::kThreads);
    for (int m : options.micro_batches) {
      const std::vector<Choice> choices = Choices(options, lanes, m);
      std::vector<Workload> workloads;
      std::vector<std::unique_ptr<Pipeline>> pipelines;
      std::vector<Variant> variants;
      std::vector<double> bubbles;
      std::vector<double> works;  // seconds of all actions of a run
      std::vector<int64_t> actions;
      std::vector<std::shared_ptr<PipelineMetrics>> metrics(choices.size());
      for (const Choice& choice : choices) workloads.push_back(Delays(options, choice, lanes, m));
      std::vector<Prediction> predictions;
      for (const Choice& choice : choices) predictions.push_back(Predict(choice, lanes, m, options.ms * 1e-3));
      for (size_t i = 0; i < choices.size(); ++i) {
        const Simulation& predicted = predictions[i].simulation;
        Pipeline::Options pipeline_options = On(pool, 1);
        pipeline_options.profile.repeats = 1;
        pipeline_options.metrics = CountIn(metrics[i], lanes);
        pipelines.push_back(Must(Pipeline::Create(workloads[i].spec, pipeline_options)));
        bubbles.push_back(predicted.Bubble());
        actions.push_back(0);
        works.push_back(0);
        for (size_t lane = 0; lane < predicted.lanes.size(); ++lane) {
          works.back() += static_cast<double>(predicted.times[lane].busy) * 1e-9;
          for (const TimedAction& timed : predicted.lanes[lane])
            actions.back() += IsCommunication(timed.action.kind) ? 0 : 1;
        }
        variants.push_back({choices[i].Name(), [&, i] { return Run(*pipelines[i], workloads[i], choices[i]); },
                            static_cast<double>(predicted.makespan) * 1e-9});
        variants.push_back({"bare", [&, i] { return RunBare(predictions[i], pool.devices()); }});
      }
      RunRounds(variants, options.rounds);
      for (size_t i = 0; i < choices.size(); ++i) {
        const Variant& variant = variants[2 * i];
        const Spread ms = Sorted(variant.seconds);
        const Spread bare = Ratio(variants[2 * i + 1].seconds, variant.seconds);
        const double share = variant.predicted / ms.median;
        worst = std::min(worst, share);
        const double longer = WorkSeconds(*metrics[i], lanes) / (options.rounds + 1) - works[i];
        std::printf(
            "| %d | %d | %s | %.1f | %.1f (%.1f .. %.1f) | %.1f %% | %.1f %% (%.1f .. %.1f) | %.1f %% | %.0f |\n",
            lanes, m, variant.name.c_str(), variant.predicted * 1e3, ms.median * 1e3, ms.least * 1e3, ms.most * 1e3,
            100 * share, 100 * bare.median, 100 * bare.least, 100 * bare.most, 100 * bubbles[i],
            longer * 1e6 / static_cast<double>(actions[i]));
      }
      std::fflush(stdout);
    }
  }
  std::printf("least: %.1f %% of the predicted speed\n", 100 * worst);
}

// --- Real layers ---

void Real(const Options& options) {
  constexpr int kRanks = 2;
  const std::vector<Device> cores = OneCoreDevices(kRanks);
  DevicePool pool(cores, DevicePool::Mode::kThreads);
  const Workload workload = options.program.empty()
                                ? MakeWorkload(options.workload, kRanks, 1, CheckpointMode::kNever)
                                : ProgramWorkload(options.program, options.rows, kRanks, 1, CheckpointMode::kNever);
  PlainModel plain(workload);
  std::vector<Variant> variants;
  variants.push_back({"one core, full batch", [&] { return plain.Step(workload, 1, cores[0].cores); }});
  variants.push_back({"two intra-op threads, full batch", [&] {
                        return plain.Step(workload, 1, {cores[0].cores[0], cores[1].cores[0]});
                      }});
  for (int m : options.micro_batches) {
    if (workload.rows % m != 0) Die("m must divide the batch");
    for (const Choice& choice : Choices(options, kRanks, m)) {
      if (!choice.trains) continue;
      PipelineSpec spec = workload.spec;
      spec.schedule = SpecOf(choice, m);
      spec.cut.stages = kRanks * choice.chunks;
      if (const auto fits = Pipeline::MakePlan(spec, On(pool, workload.rows / m)); !fits.ok()) {
        std::printf("(%s, m = %d: %s)\n", choice.Name().c_str(), m, std::string(fits.status().message()).c_str());
        continue;
      }
      const size_t mine = variants.size();
      variants.push_back({absl::StrCat(choice.Name(), ", m = ", m), [&, spec, choice, mine] {
                            return RunFresh(spec, pool, workload, choice, 5, &variants[mine].predicted);
                          }});
    }
  }
  RunRounds(variants, options.rounds);
  std::printf(
      "%s, two cores; %d rounds, every variant once per round, rotating order; a step is clear, forward, loss, "
      "backward\n",
      options.workload.c_str(), options.rounds);
  std::printf(
      "| | ms (least .. most) | times one core | times two threads (least .. most) | predicted ms | of the predicted "
      "speed (least .. most) |\n");
  std::printf("|---|---|---|---|---|---|\n");
  for (const Variant& variant : variants) {
    const Spread ms = Sorted(variant.seconds);
    const Spread one = Ratio(variants[0].seconds, variant.seconds);
    const Spread two = Ratio(variants[1].seconds, variant.seconds);
    std::printf("| %s | %.0f (%.0f .. %.0f) | %.2f | %.3f (%.3f .. %.3f) | ", variant.name.c_str(), ms.median * 1e3,
                ms.least * 1e3, ms.most * 1e3, one.median, two.median, two.least, two.most);
    if (variant.predicted == 0) {
      std::printf("| |\n");
      continue;
    }
    const Spread share = Ratio(variant.predictions, variant.seconds);
    std::printf("%.0f | %.1f %% (%.1f .. %.1f) |\n", Sorted(variant.predictions).median * 1e3, 100 * share.median,
                100 * share.least, 100 * share.most);
  }
}

// --- The planner's choice ---

// Twelve layers that sleep 1 to 4 ms for a forward; rows of 64 KiB.
Workload UnequalDelays() {
  Workload workload;
  constexpr int64_t kFeatures = 16'384;
  workload.rows = 16;
  for (const double ms : {1.0, 2.0, 4.0, 1.0, 1.0, 3.0, 2.0, 1.0, 1.0, 1.0, 2.0, 1.0}) {
    workload.spec.model.layers.push_back(
        {"delay", "", {{"forward_ms", ms}, {"input_ms", ms}, {"weight_ms", ms}, {"features", kFeatures}}});
  }
  workload.spec.optimizer.name = "sgd";
  workload.spec.loss.name = "mean_squared_error";
  workload.inputs = {{"input", at::randn({workload.rows, kFeatures})}};
  workload.target = at::randn({workload.rows, kFeatures});
  return workload;
}

void Plans(const Options& options) {
  const bool delay = options.workload == "delay";
  Workload workload = delay ? UnequalDelays() : MakeWorkload(options.workload, 0, 1, CheckpointMode::kNever);
  std::vector<Device> devices = OneCoreDevices(delay ? 4 : 2);
  if (delay) {
    for (Device& device : devices) device.memory_limit_bytes = 6 << 20;
  }
  DevicePool pool(devices, DevicePool::Mode::kThreads);
  const auto awake = delay ? std::make_unique<AwakeCores>() : nullptr;
  PipelineSpec open = workload.spec;
  open.cut = {};
  open.limits.open = {.kind = true, .chunks = true, .micro_batches = true, .checkpoint = true};
  open.limits.mini_batch_rows = workload.rows;
  Pipeline::Options pipeline_options = On(pool, workload.rows);
  const int64_t begin = RealClock()->NowNanos();
  const PlanSearch search = Must(Pipeline::SearchPlans(open, pipeline_options));
  if (search.candidates.empty()) Die(std::string(search.WhyNone().message()));
  std::printf(
      "%s: profiled and searched in %.2f s; %d schedules considered, %d skipped by their bound, %zu listed, %zu "
      "refused\n",
      options.workload.c_str(), static_cast<double>(RealClock()->NowNanos() - begin) * 1e-9, search.considered,
      search.skipped, search.candidates.size(), search.refused.size());
  if (!search.refused.empty()) {
    std::printf("refused, for one, %s: %s\n", DescribeSchedule(search.refused.front().schedule).c_str(),
                std::string(search.refused.front().why.message()).c_str());
  }
  std::fflush(stdout);
  std::vector<Variant> variants;
  for (const PlanCandidate& candidate : search.candidates) {
    PipelineSpec spec = workload.spec;
    spec.schedule = candidate.schedule;
    spec.cut = {};
    spec.cut.balance = candidate.cut.balance;
    const size_t mine = variants.size();
    variants.push_back({DescribeSchedule(candidate.schedule), [&, spec, mine] {
                          return RunFresh(spec, pool, workload, Choice(), 1, &variants[mine].predicted);
                        }});
  }
  RunRounds(variants, options.rounds, /*warm_up=*/false);
  size_t best = 0;
  for (size_t i = 1; i < variants.size(); ++i) {
    if (Sorted(variants[i].seconds).median < Sorted(variants[best].seconds).median) best = i;
  }
  std::printf(
      "%d rounds, rotating order\n| | predicted as listed, ms | from stages now, ms | rehearsed, ms | measured ms "
      "(least .. "
      "most) | times the first |\n|---|---|---|---|---|---|\n",
      options.rounds);
  for (size_t i = 0; i < variants.size(); ++i) {
    const Spread ms = Sorted(variants[i].seconds);
    const std::optional<double> rehearsed = search.candidates[i].rehearsed_seconds;
    std::printf("| %zu %s%s | %.1f | %.1f | %s | %.1f (%.1f .. %.1f) | %.3f |\n", i + 1, variants[i].name.c_str(),
                i == best ? ", the best" : "", search.candidates[i].makespan_seconds * 1e3,
                Sorted(variants[i].predictions).median * 1e3,
                rehearsed ? absl::StrFormat("%.1f", *rehearsed * 1e3).c_str() : "", ms.median * 1e3, ms.least * 1e3,
                ms.most * 1e3, Ratio(variants[i].seconds, variants[0].seconds).median);
  }
  const Spread ratio = Ratio(variants[0].seconds, variants[best].seconds);
  std::printf("the first takes %.3f (%.3f .. %.3f) times as long as the best\n", ratio.median, ratio.least, ratio.most);
}

// --- The engine alone ---

double ProcessSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void Overhead(const Options& options) {
  std::printf(
      "a model of no work, us per compute action; %d rounds. engine: the whole run on one thread, less its actions. "
      "All: "
      "actions and autograd too, on one thread per device: processor time\n",
      options.rounds);
  std::printf("| P | m | schedule | engine | all |\n|---|---|---|---|---|\n");
  for (int lanes : options.lanes) {
    DevicePool serial(OneCoreDevices(lanes), DevicePool::Mode::kSerial);
    DevicePool threads(OneCoreDevices(lanes), DevicePool::Mode::kThreads);
    for (int m : options.micro_batches) {
      for (const Choice& choice : Choices(options, lanes, m)) {
        if (!choice.trains) continue;
        const Workload workload = Delays(options, choice, lanes, m);
        int64_t actions = 0;
        for (const auto& list : Predict(choice, lanes, m, 1).simulation.lanes) {
          for (const TimedAction& timed : list) actions += IsCommunication(timed.action.kind) ? 0 : 1;
        }
        const auto per_action = [actions](double seconds) { return seconds * 1e6 / static_cast<double>(actions); };
        std::vector<double> engine;
        std::vector<double> all;
        for (DevicePool* pool : {&serial, &threads}) {
          std::shared_ptr<PipelineMetrics> metrics;
          Pipeline::Options pipeline_options = On(*pool, 1);
          pipeline_options.metrics = CountIn(metrics, lanes);
          auto pipeline = Must(Pipeline::Create(workload.spec, pipeline_options));
          for (int round = -5; round < options.rounds; ++round) {
            const double work = WorkSeconds(*metrics, lanes);
            const double processor = ProcessSeconds();
            const double seconds = Run(*pipeline, workload, choice);
            if (round < 0) continue;
            if (pool == &serial) engine.push_back(per_action(seconds - (WorkSeconds(*metrics, lanes) - work)));
            if (pool == &threads) all.push_back(per_action(ProcessSeconds() - processor));
          }
        }
        const Spread of_engine = Sorted(engine);
        const Spread of_all = Sorted(all);
        std::printf("| %d | %d | %s | %.2f (%.2f .. %.2f) | %.1f (%.1f .. %.1f) |\n", lanes, m, choice.Name().c_str(),
                    of_engine.median, of_engine.least, of_engine.most, of_all.median, of_all.least, of_all.most);
      }
    }
  }
}

}  // namespace
}  // namespace penstock::bench

int main(int argc, char** argv) {
  using namespace penstock::bench;
  BeLikeTheDaemon();
  const Options options = Parse(argc, argv);
  if (options.mode == "delay") {
    Delay(options);
  } else if (options.mode == "real") {
    Real(options);
  } else if (options.mode == "plans") {
    Plans(options);
  } else {
    Overhead(options);
  }
  return 0;
}
