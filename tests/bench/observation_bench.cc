// What observing costs a training step.
//
//   observation_bench [--workload delay4|gpt|mlp] [--rounds 9] [--seconds 3] [--m 8]
//
// Two pipelines that differ in their trace rings only run in turns, each for `seconds`, in an order that rotates from
// round to round; both are made anew for each round, in an order that alternates too, so that no place in memory
// favours one of them.
//   off      no rings, nobody asks
//   on       rings; /metrics each second, as Prometheus does; a page's JSON each second, as a browser does
//   storm    the same, and ten more scrapes each second
//   slow     the same as on, and 8 readers that take one byte of the largest page each 100 ms
//   flood    the same as on, and 500 half-open connections at the port of the status pages
// The clients run in this process, on the same cores, so what they take counts against us. /metrics has the size of two
// pipelines of eight lanes, whatever runs. `delayP` is P devices that sleep, 5 ms per forward, 10 ms per backward; the
// others are those of workloads.h on two cores.
//
// Printed: the time of a step, and by round its ratio to `off`: median, least, most. Cells and states can't be switched
// off, so what they take is the number of their records in a step times what one takes here. And how long pages took to
// come.

#include <ATen/ops/randn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/observe/metrics_registry.h"
#include "server/http/http_server.h"
#include "server/http/status_pages.h"
#include "server/metrics/metrics_page.h"
#include "tests/bench/options.h"
#include "tests/bench/page_clients.h"
#include "tests/bench/rounds.h"

namespace penstock::bench {
namespace {

struct Options {
  std::string workload = "delay4";
  int rounds = 9;
  int m = 8;
  double seconds = 3;
};

Options Parse(int argc, char** argv) {
  Options options;
  CLI::App app("What observing costs a training step");
  app.add_option("--workload", options.workload, "delayP: P devices that sleep; gpt: two cores");
  app.add_option("--rounds", options.rounds)->check(CLI::PositiveNumber);
  app.add_option("--m", options.m, "Micro-batches")->check(CLI::PositiveNumber);
  app.add_option("--seconds", options.seconds, "Of training in each mode and round")->check(CLI::PositiveNumber);
  ParseOptions(app, argc, argv);
  return options;
}

struct Load {
  PipelineSpec spec;
  ContributionRequest batch;
  int64_t micro_batch_rows = 1;
  std::vector<Device> devices;
};

Load LoadOf(const Options& options) {
  Load load;
  int lanes = 2;
  if (options.workload.rfind("delay", 0) == 0) {
    constexpr int64_t kFeatures = 4;
    lanes = std::atoi(options.workload.c_str() + 5);
    if (lanes < 1) Die("--workload: delayP needs a number of devices");
    for (int i = 0; i < lanes; ++i) {
      load.spec.model.layers.push_back(
          {"delay", "", {{"features", kFeatures}, {"forward_ms", 5.0}, {"input_ms", 5.0}, {"weight_ms", 5.0}}});
    }
    load.spec.cut.balance.assign(lanes, 1);
    load.spec.optimizer.name = "sgd";
    load.spec.loss.name = "mean_squared_error";
    load.batch.inputs = NamedTensors{{"input", at::randn({options.m, kFeatures})}};
    load.batch.target = at::randn({options.m, kFeatures});
  } else {
    const Workload workload = MakeWorkload(options.workload, lanes, options.m, CheckpointMode::kNever);
    load.spec = workload.spec;
    load.batch = Request(workload);
    load.micro_batch_rows = std::max<int64_t>(workload.rows / options.m, 1);
  }
  load.spec.schedule.kind = "1f1b";
  load.spec.schedule.micro_batches = options.m;
  load.spec.schedule.checkpoint = CheckpointMode::kNever;
  std::vector<std::string> names;
  for (int i = 0; i < lanes; ++i) names.push_back(absl::StrCat("cpu:", i));
  load.devices = Must(ParseDevices(names, {}, UsableCores()));
  return load;
}

std::vector<LaneDescription> Lanes(size_t count) {
  std::vector<LaneDescription> lanes(count);
  for (size_t i = 0; i < count; ++i) {
    lanes[i] = {.lane = static_cast<int>(i), .device = absl::StrCat("cpu:", i)};
    lanes[i].links = {{.to = static_cast<int>((i + 1) % count), .kind = LinkKind::kActivation},
                      {.to = static_cast<int>((i + count - 1) % count), .kind = LinkKind::kGradient}};
  }
  return lanes;
}

// A pipeline of the load that counts in a registry.
struct Trained {
  std::shared_ptr<PipelineMetrics> metrics;
  std::unique_ptr<Pipeline> pipeline;

  Trained(const Load& load, DevicePool& pool, MetricsRegistry* registry) {
    Pipeline::Options options = On(pool, load.micro_batch_rows);
    options.metrics = [&](const Plan&) {
      return metrics = registry->AddPipeline("trained", Lanes(load.devices.size()));
    };
    pipeline = Must(Pipeline::Create(load.spec, options));
  }

  double Step(const Load& load) const {
    const int64_t begin = RealClock()->NowNanos();
    Must(pipeline->TrainStep(load.batch, {.learning_rate = 1e-4, .clip_norm = {}}));
    return static_cast<double>(RealClock()->NowNanos() - begin) * 1e-9;
  }

  // The mean of the steps that begin within so many seconds.
  double Steps(const Load& load, double seconds) const {
    double sum = 0;
    int steps = 0;
    for (; sum < seconds; ++steps) sum += Step(load);
    return sum / steps;
  }
};

// The listeners of a daemon, with the pages of its size.
struct Listeners {
  MetricsRegistry registry{RealClock()};
  std::unique_ptr<HttpServer> metrics, admin;

  explicit Listeners(size_t lanes) {
    registry.AddPipeline("idle", Lanes(8));
    if (lanes < 8) registry.AddPipeline("idle too", Lanes(8 - lanes));
    for (int i = 0; i < 50; ++i) registry.server().AddMethod("unary", "service", absl::StrCat("Method", i));
    StatusSources sources;
    sources.registry = &registry;
    sources.facts = [] {
      DaemonFacts facts;
      facts.state = "ready";
      return facts;
    };
    sources.handles = [] { return std::vector<HandleRow>{}; };
    sources.checkpoints = [] { return std::vector<CheckpointRow>{}; };
    sources.probes.metrics_content_type = std::string(kMetricsContentType);
    sources.probes.metrics = [this] { return MetricsPage(registry); };
    sources.probes.healthy = sources.probes.ready = [] { return std::vector<HealthCondition>{}; };
    metrics = Must(HttpServer::Create("127.0.0.1:0", "metrics", [pages = sources.probes](const HttpRequest& request) {
      return Respond(pages, request);
    }));
    admin = Must(HttpServer::Create("127.0.0.1:0", "admin",
                                    [sources](const HttpRequest& request) { return RespondStatus(sources, request); }));
  }
};

constexpr const char* kModes[] = {"off", "on", "storm", "slow", "flood"};
constexpr int kModeCount = 5;

// What a mode's turns showed.
struct Shown {
  std::vector<double> step_seconds;    // by round
  std::vector<double> scrape_seconds;  // of all rounds
  std::vector<double> page_seconds;
  int64_t failed = 0;
  size_t scrape_bytes = 0;
};

// One turn of a mode other than `off`.
void Watch(const std::string& mode, Listeners& listeners, const std::function<double()>& steps, Shown* shown) {
  PageReader scraper(listeners.metrics->port(), "/metrics", 1);
  PageReader page(listeners.admin->port(), "/pipeline?name=trained&format=json", 1);
  std::unique_ptr<Repeater> other;
  if (mode == "storm") other = std::make_unique<PageReader>(listeners.metrics->port(), "/metrics", 0.1);
  if (mode == "slow") other = std::make_unique<SlowReaders>(listeners.admin->port(), "/metrics", 8);
  if (mode == "flood") other = std::make_unique<HalfOpenFlood>(listeners.admin->port(), 500);
  shown->step_seconds.push_back(steps());
  for (const double seconds : scraper.seconds()) shown->scrape_seconds.push_back(seconds);
  for (const double seconds : page.seconds()) shown->page_seconds.push_back(seconds);
  shown->failed += scraper.failed() + page.failed();
  shown->scrape_bytes = scraper.bytes();
}

// Seconds of one call, of many.
double Each(const std::function<void(int64_t)>& call) {
  constexpr int64_t kCalls = 200'000;
  const int64_t begin = RealClock()->NowNanos();
  for (int64_t i = 0; i < kCalls; ++i) call(i);
  return static_cast<double>(RealClock()->NowNanos() - begin) * 1e-9 / kCalls;
}

// What states, actions and messages of a step take: their number on the busiest lane times what one of each takes.
void PrintCells(const Load& load, const Trained& trained, double step_seconds) {
  const auto written = [&](int lane, bool states) {
    const LaneTrace& trace = trained.metrics->lane(lane).trace;
    return static_cast<int64_t>((states ? trace.states : trace.actions).written());
  };
  constexpr int kSteps = 3;
  std::map<int, std::pair<int64_t, int64_t>> before;
  const int lanes = trained.metrics->lane_count();
  for (int lane = 0; lane < lanes; ++lane) before[lane] = {written(lane, true), written(lane, false)};
  for (int i = 0; i < kSteps; ++i) trained.Step(load);
  LaneMetrics cells(RealClock(), {.lane = 0});
  const double transition = Each([&](int64_t i) {
    cells.state.Enter(i % 2 == 0 ? StageState::kForward : StageState::kHost, RealClock()->NowNanos());
  });
  const double action = Each([&](int64_t i) {
    cells.ObservePhase(Phase::kForward, i);
    cells.trace.actions.Record({.begin_nanos = i, .end_nanos = i, .kind = TraceKind::kForward});
  });
  double most = 0;
  std::pair<int64_t, int64_t> of_most;
  for (int lane = 0; lane < lanes; ++lane) {
    const int64_t states = (written(lane, true) - before[lane].first) / kSteps;
    const int64_t actions = (written(lane, false) - before[lane].second) / kSteps;
    const double seconds = static_cast<double>(states) * transition + static_cast<double>(actions) * action;
    if (seconds <= most) continue;
    most = seconds;
    of_most = {states, actions};
  }
  std::printf(
      "  states and cells, always on: %lld changes of state of %.0f ns, %lld records of %.0f ns: %.4f %% of a step\n",
      static_cast<long long>(of_most.first), transition * 1e9, static_cast<long long>(of_most.second), action * 1e9,
      most / step_seconds * 100);
}

void PrintPages(const char* name, const std::vector<double>& seconds) {
  if (seconds.empty()) return;
  const Spread spread = Sorted(seconds);
  std::printf(", %s %.1f ms (%.1f .. %.1f) of %zu", name, spread.median * 1e3, spread.least * 1e3, spread.most * 1e3,
              seconds.size());
}

void Run(const Options& options) {
  const Load load = LoadOf(options);
  DevicePool pool(load.devices, DevicePool::Mode::kThreads);
  Listeners listeners(load.devices.size());
  MetricsRegistry without_rings(RealClock(), /*trace_events=*/0);
  std::vector<Shown> shown(kModeCount);
  for (int round = 0; round < options.rounds; ++round) {
    std::unique_ptr<Trained> with, without;
    for (int i = 0; i < 2; ++i) {
      const bool ring = (round + i) % 2 == 0;
      (ring ? with : without) = std::make_unique<Trained>(load, pool, ring ? &listeners.registry : &without_rings);
    }
    for (const auto* one : {&with, &without}) (*one)->Step(load);  // warms up
    for (int i = 0; i < kModeCount; ++i) {
      const int mode = (i + round) % kModeCount;
      const Trained& trained = mode == 0 ? *without : *with;
      const auto steps = [&] { return trained.Steps(load, options.seconds); };
      if (mode == 0) {
        shown[0].step_seconds.push_back(steps());
      } else {
        Watch(kModes[mode], listeners, steps, &shown[mode]);
      }
    }
    if (round + 1 == options.rounds) {
      std::printf(
          "%s, %zu lanes, 1f1b, m = %d: %d rounds of %.1f s per mode, every mode once per round, rotating order\n",
          options.workload.c_str(), load.devices.size(), options.m, options.rounds, options.seconds);
      PrintCells(load, *with, Sorted(shown[0].step_seconds).median);
    }
    for (const auto* one : {&with, &without}) {
      (one == &with ? listeners.registry : without_rings).RemovePipeline(*(*one)->metrics);
    }
  }
  for (int mode = 0; mode < kModeCount; ++mode) {
    const Spread step = Sorted(shown[mode].step_seconds);
    const Spread ratio = Ratio(shown[mode].step_seconds, shown[0].step_seconds);
    std::printf("  %-6s step %8.2f ms (%.2f .. %.2f), against off %+.2f %% (%+.2f .. %+.2f)", kModes[mode],
                step.median * 1e3, step.least * 1e3, step.most * 1e3, (ratio.median - 1) * 100, (ratio.least - 1) * 100,
                (ratio.most - 1) * 100);
    PrintPages("scrape", shown[mode].scrape_seconds);
    PrintPages("page", shown[mode].page_seconds);
    if (mode > 0) std::printf(", %lld failed", static_cast<long long>(shown[mode].failed));
    std::printf("\n");
  }
  std::printf("  a scrape has %zu KiB\n", shown[1].scrape_bytes >> 10);
}

}  // namespace
}  // namespace penstock::bench

int main(int argc, char** argv) {
  using namespace penstock::bench;
  BeLikeTheDaemon();
  Run(Parse(argc, argv));
  return 0;
}
