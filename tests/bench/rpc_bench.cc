// The same training steps through the daemon and in this process, in turn, and how fast a daemon starts.
//
//   rpc_bench PENSTOCKD [--workload gpt|mlp] [--rounds 9] [--m 8]
//
// Each round runs one TrainStep in-process and one over gRPC (the client waits for each), in alternating order. The
// ratio is taken round by round.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "engine/base/clock.h"
#include "engine/base/thread.h"
#include "engine/exec/device_pool.h"
#include "engine/exec/pipeline.h"
#include "tests/bench/options.h"
#include "tests/bench/workloads.h"
#include "tests/support/daemon_process.h"
#include "tests/support/wire_messages.h"

namespace penstock::bench {
namespace {

[[noreturn]] void Die(const std::string& message) {
  std::fprintf(stderr, "rpc_bench: %s\n", message.c_str());
  std::exit(1);
}

template <typename T>
T Must(absl::StatusOr<T> value) {
  if (!value.ok()) Die(std::string(value.status().message()));
  return *std::move(value);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void Print(const char* name, const std::vector<double>& values, double scale, const char* unit) {
  std::printf("%-28s %9.3f %s (%.3f .. %.3f)\n", name, Median(values) * scale, unit,
              *std::min_element(values.begin(), values.end()) * scale,
              *std::max_element(values.begin(), values.end()) * scale);
}

void Run(const std::string& binary, const std::string& name, int rounds, int m) {
  std::vector<double> starts;
  for (int i = 0; i < 3; ++i) starts.push_back(Must(testing::DaemonProcess::Start(binary))->start_seconds());
  auto daemon = Must(testing::DaemonProcess::Start(binary));
  PipelineClient& client = daemon->client();

  Workload workload = MakeWorkload(name, 2, m, CheckpointMode::kNever);
  const std::vector<int> cores = UsableCores();
  if (cores.size() < 2) Die("needs two cores");
  DevicePool pool({{"cpu:0", {cores[0]}, 0}, {"cpu:1", {cores[1]}, 0}}, DevicePool::Mode::kThreads);
  Pipeline::Options options;
  options.devices = &pool;
  auto pipeline = Must(Pipeline::Create(workload.spec, options));
  // The same cut on both sides.
  for (const StagePlan& stage : pipeline->plan().stages) {
    workload.spec.cut.balance.push_back(static_cast<int>(stage.layers.size()));
  }
  v1::CreatePipelineRequest create;
  create.set_pipeline_id("bench");
  *create.mutable_spec() = testing::ToMessage(workload.spec);
  for (int layers : workload.spec.cut.balance) create.mutable_spec()->mutable_cut()->add_balance(layers);
  const std::string remote = Must(client.CreatePipeline(create)).name();

  const auto in_process = [&] {
    ContributionRequest request;
    request.inputs = workload.inputs;
    request.target = workload.target;
    Must(pipeline->TrainStep(request, {}));
  };
  const auto over_grpc = [&] {
    v1::TrainStepRequest request;
    request.set_pipeline(remote);
    *request.add_inputs() = testing::ToMessage(workload.inputs[0].name, workload.inputs[0].tensor);
    *request.mutable_target() = testing::ToMessage("target", workload.target);
    request.mutable_reply()->mutable_wait_for()->set_seconds(60);
    if (!Must(client.TrainStep(request)).outcome().handle().outcome().applied()) Die("a step was not applied");
  };
  const auto timed = [](const auto& step) {
    const int64_t begin = RealClock()->NowNanos();
    step();
    return static_cast<double>(RealClock()->NowNanos() - begin) * 1e-9;
  };
  std::vector<double> here;
  std::vector<double> there;
  std::vector<double> ratios;
  for (int round = -2; round < rounds; ++round) {
    double seconds_here = 0;
    if (round % 2 == 0) seconds_here = timed(in_process);
    const double seconds_there = timed(over_grpc);
    if (round % 2 != 0) seconds_here = timed(in_process);
    if (round < 0) continue;
    here.push_back(seconds_here);
    there.push_back(seconds_there);
    ratios.push_back(seconds_there / seconds_here);
  }
  std::printf("%s, m = %d, %d rounds: one TrainStep in-process, one over gRPC, in alternating order\n", name.c_str(), m,
              rounds);
  Print("in-process", here, 1e3, "ms");
  Print("over gRPC", there, 1e3, "ms");
  Print("over gRPC / in-process", ratios, 1, "  ");
  Print("daemon start until ready", starts, 1, "s ");
}

}  // namespace
}  // namespace penstock::bench

int main(int argc, char** argv) {
  std::string daemon;
  std::string workload = "gpt";
  int rounds = 9;
  int m = 8;
  CLI::App app("The same training steps through the daemon and in this process");
  app.add_option("penstockd", daemon, "The daemon's binary")->required()->check(CLI::ExistingFile);
  app.add_option("--workload", workload)->check(CLI::IsMember({"gpt", "mlp"}));
  app.add_option("--rounds", rounds)->check(CLI::PositiveNumber);
  app.add_option("--m", m, "Micro-batches")->check(CLI::PositiveNumber);
  penstock::bench::ParseOptions(app, argc, argv);
  penstock::bench::Run(daemon, workload, rounds, m);
  return 0;
}
