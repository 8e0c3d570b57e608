// Pipelines whose stages stand on one GPU, or one after another on several, against the plain loop of the same layers on one.
//
//   gpu_bench [--blocks 24] [--width 1024] [--heads 16] [--sequence 512] [--vocab 24576] [--autocast bf16]
//             [--rows 16] [--m 8] [--stages 1,2,4] [--gpus 1] [--checkpoint] [--rounds 5]
//   gpu_bench --idle [--rounds 101]
//
// One GPU does one thing at a time: a pipeline of several stages there can't be faster than the plain loop, and what it
// takes more is what the engine costs. The plain loop never waits for the device but at a step's end. With --idle the
// model is two linear layers of width 1, so that the launching thread is all there is to measure.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/notification.h"
#include "engine/autograd/autocast.h"
#include "engine/base/clock.h"
#include "engine/device/accelerators.h"
#include "engine/device/copy_tensors.h"
#include "engine/device/torch_status.h"
#include "engine/exec/device_pool.h"
#include "engine/model/run_layer.h"
#include "engine/optim/gradient_norm.h"
#include "engine/optim/optimizer.h"
#include "tests/bench/options.h"
#include "tests/bench/rounds.h"

namespace penstock::bench {
namespace {

struct Options {
  bool idle = false;
  int64_t blocks = 24, width = 1024, heads = 16, sequence = 512, vocab = 24576;
  std::string autocast;
  int64_t rows = 16;
  int micro_batches = 8;
  std::vector<int> stages = {1, 2, 4};
  int gpus = 1;
  bool checkpoint = false;
  int rounds = 5;
};

Options Parse(int argc, char** argv) {
  Options options;
  CLI::App app("Pipelines on GPUs against the plain loop on one");
  app.add_flag("--idle", options.idle, "A model of next to no work");
  app.add_option("--blocks", options.blocks)->check(CLI::PositiveNumber);
  app.add_option("--width", options.width)->check(CLI::PositiveNumber);
  app.add_option("--heads", options.heads)->check(CLI::PositiveNumber);
  app.add_option("--sequence", options.sequence)->check(CLI::PositiveNumber);
  app.add_option("--vocab", options.vocab)->check(CLI::PositiveNumber);
  app.add_option("--autocast", options.autocast)->check(CLI::IsMember({"bf16", "fp16"}));
  app.add_option("--rows", options.rows)->check(CLI::PositiveNumber);
  app.add_option("--m", options.micro_batches)->check(CLI::PositiveNumber);
  app.add_option("--stages", options.stages)->delimiter(',')->check(CLI::PositiveNumber);
  app.add_option("--gpus", options.gpus, "As many as there are stages, at most")->check(CLI::PositiveNumber);
  app.add_flag("--checkpoint", options.checkpoint, "Recompute all but the last micro-batch");
  app.add_option("--rounds", options.rounds)->check(CLI::PositiveNumber);
  ParseOptions(app, argc, argv);
  return options;
}

Workload WorkloadOf(const Options& options) {
  Workload workload;
  PipelineSpec& spec = workload.spec;
  workload.rows = options.rows;
  spec.schedule = {"1f1b", options.micro_batches,
                   options.checkpoint ? CheckpointMode::kExceptLast : CheckpointMode::kNever};
  spec.optimizer = {.name = "adamw", .options = {{"learning_rate", 1e-4}}, .clip_norm = 1};
  spec.seed = 1234;
  if (options.idle) {
    const LayerSpec linear{"linear", "", {{"in", int64_t{1}}, {"out", int64_t{1}}}};
    spec.model.layers = {linear, linear, linear, linear};
    spec.loss.name = "mean_squared_error";
    workload.inputs = {{"input", at::randn({workload.rows, 1})}};
    workload.target = at::randn({workload.rows, 1});
    return workload;
  }
  spec.model.name = "gpt";
  spec.model.options = {{"blocks", options.blocks},
                        {"width", options.width},
                        {"heads", options.heads},
                        {"sequence", options.sequence},
                        {"vocab", options.vocab}};
  spec.model.autocast = options.autocast;
  spec.loss.name = "cross_entropy";
  workload.inputs = {{"tokens", at::randint(0, options.vocab, {options.rows, options.sequence}, at::kLong)}};
  workload.target = at::randint(0, options.vocab, {options.rows, options.sequence}, at::kLong);
  return workload;
}

// The plain loop's.
Device Gpu() {
  Device device{.name = "cuda:0", .cores = UsableCores()};
  device.kind = DeviceKind::kCuda;
  return device;
}

// With cores of their own, as the daemon has them: threads that share cores sleep where these spin.
std::vector<Device> Gpus(int count) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.push_back(absl::StrCat("cuda:", i));
  std::vector<Device> gpus = Must(ParseDevices(names, {}, UsableCores()));
  for (Device& gpu : gpus) gpu.memory_limit_bytes = 0;  // what the plain loop left to the allocator is no bound
  return gpus;
}

// The sum over GPUs.
int64_t Allocated(const std::vector<Device>& gpus) {
  int64_t sum = 0;
  for (const Device& gpu : gpus) sum += StreamsOf(gpu).Memory().allocated_bytes;
  return sum;
}
int64_t Peak(const std::vector<Device>& gpus) {
  int64_t sum = 0;
  for (const Device& gpu : gpus) sum += StreamsOf(gpu).Memory().peak_allocated_bytes;
  return sum;
}
void ResetPeaks(const std::vector<Device>& gpus) {
  for (const Device& gpu : gpus) StreamsOf(gpu).ResetPeak();
}

void Check(const absl::Status& status) {
  if (!status.ok()) Die(std::string(status.message()));
}

// The unpipelined rival.
class PlainLoop {
 public:
  explicit PlainLoop(const Workload& workload)
      : workload_(workload),
        streams_(StreamsOf(Gpu())),
        layers_(Must(BuildLayers(Must(ExpandModel(workload.spec.model)), workload.spec.seed))) {
    RuleTensors own;
    for (const NamedLayer& layer : layers_) {
      for (const NamedTensor& parameter : layer.layer->parameters()) {
        at::Tensor(parameter.tensor).set_data(ToDevice(parameter.tensor.detach(), Gpu()));
        own.parameters.push_back({layer.TensorName(parameter.name), parameter.tensor});
        count_ += parameter.tensor.numel();
      }
    }
    parameters_ = own.parameters;
    optimizer_ = Must(MakeOptimizer(workload.spec.optimizer, std::move(own)));
  }

  int64_t parameters() const { return count_; }

  double Step() {
    const int64_t begin = RealClock()->NowNanos();
    Check(RunTorch([&] { streams_.RunOn(StreamKind::kCompute, [&] { TrainOnce(); }); }));
    return static_cast<double>(RealClock()->NowNanos() - begin) * 1e-9;
  }

  double Infer() {
    const int64_t begin = RealClock()->NowNanos();
    Check(RunTorch([&] {
      const at::NoGradGuard no_graph;
      streams_.RunOn(StreamKind::kCompute, [&] { ToHost(Forward(0, 1, false).TensorAt(0)); });
    }));
    return static_cast<double>(RealClock()->NowNanos() - begin) * 1e-9;
  }

 private:
  at::Tensor Here(const at::Tensor& tensor, int64_t first, int64_t rows) const {
    const at::Tensor piece = tensor.narrow(0, first, rows);
    return streams_.NewHostTensor(piece).copy_(piece).to(streams_.device(), /*non_blocking=*/true);
  }

  Batch Forward(int64_t first, int64_t rows, bool training) const {
    const AutocastGuard precision(streams_.device().type(), workload_.spec.model.autocast == "bf16"
                                                                ? std::optional(at::kBFloat16)
                                                                : std::nullopt);
    Batch values(Here(workload_.inputs[0].tensor, first, rows));
    SkipTracker skips;
    for (size_t i = 0; i < layers_.size(); ++i) {
      KeyedRandom random(0, StepId(0), MicroBatchIndex(0), LayerIndex(static_cast<int>(i)));
      values = RunLayer(layers_[i], values, {.training = training, .values_checked = true, .random = &random}, skips);
    }
    return values;
  }

  void TrainOnce() {
    const int micro_batches = workload_.spec.schedule.micro_batches;
    const int64_t rows = workload_.rows / micro_batches;
    Tensors losses;
    for (int m = 0; m < micro_batches; ++m) {
      const Batch outputs = Forward(m * rows, rows, true);
      const at::Tensor target = Here(workload_.target, m * rows, rows);
      const at::Tensor output = outputs.TensorAt(0);
      const at::Tensor mean = workload_.spec.loss.name == "cross_entropy"
                                  ? at::cross_entropy_loss(output.reshape({-1, output.size(-1)}), target.reshape({-1}))
                                  : at::mse_loss(output, target);
      losses.push_back(mean.mul(1.0 / micro_batches));
      torch::autograd::backward({losses.back()}, {});
    }
    const double norm = GlobalNorm(GradientNorms(parameters_));
    optimizer_->Step(1e-4, ClipScale(norm, workload_.spec.optimizer.clip_norm));
    for (const NamedTensor& parameter : parameters_) at::Tensor(parameter.tensor).mutable_grad().reset();
    (void)at::stack(losses).sum().item<double>();
    streams_.Synchronize();
  }

  const Workload& workload_;
  DeviceStreams& streams_;
  std::vector<NamedLayer> layers_;
  NamedTensors parameters_;
  std::unique_ptr<Optimizer> optimizer_;
  int64_t count_ = 0;
};

double InferOnce(Pipeline& pipeline, const Workload& workload) {
  ForwardRequest request;
  request.inputs = NamedTensors{{workload.inputs[0].name, workload.inputs[0].tensor.narrow(0, 0, 1)}};
  request.micro_batches = 1;
  absl::Notification done;
  absl::Status status;
  const int64_t begin = RealClock()->NowNanos();
  pipeline.InferAsync(std::move(request), [&](const absl::StatusOr<ForwardOutcome>& outcome) {
    status = outcome.status();
    done.Notify();
  });
  done.WaitForNotification();
  Check(status);
  return static_cast<double>(RealClock()->NowNanos() - begin) * 1e-9;
}

template <typename Run>
Spread Times(int rounds, const Run& run) {
  std::vector<double> seconds;
  for (int round = -2; round < rounds; ++round) {
    const double took = run();
    if (round >= 0) seconds.push_back(took);
  }
  return Sorted(std::move(seconds));
}

constexpr double kMebi = 1 << 20;

std::string Json(const char* key, const Spread& seconds) {
  return absl::StrFormat(R"("%s":{"median":%.9f,"least":%.9f,"most":%.9f})", key, seconds.median, seconds.least,
                         seconds.most);
}
// A line for the runner, which collects them; times are seconds.
void Figures(const std::string& members) {
  std::printf("figures {%s}\n", members.c_str());
  std::fflush(stdout);
}

void Compare(const Options& options) {
  const Workload workload = WorkloadOf(options);
  DeviceStreams& streams = StreamsOf(Gpu());
  const double unit = options.idle ? 1e6 : 1e3;
  const char* const name = options.idle ? "us" : "ms";
  Spread plain{};
  const auto measure_plain = [&] {
    PlainLoop loop(workload);
    const int64_t before = streams.Memory().allocated_bytes;
    streams.ResetPeak();
    plain = Times(options.rounds, [&] { return loop.Step(); });
    const DeviceMemory memory = streams.Memory();
    const Spread plain_infer = Times(options.rounds, [&] { return loop.Infer(); });
    std::printf("%lld parameters, %lld rows in %d micro-batches, %d rounds; %s: median (least .. most)\n",
                static_cast<long long>(loop.parameters()), static_cast<long long>(options.rows), options.micro_batches,
                options.rounds, name);
    std::printf(
        "plain loop: step %.2f (%.2f .. %.2f), inference of one row %.3f (%.3f .. %.3f), growth in a step %.0f MiB\n",
        plain.median * unit, plain.least * unit, plain.most * unit, plain_infer.median * unit, plain_infer.least * unit,
        plain_infer.most * unit, static_cast<double>(memory.peak_allocated_bytes - before) / kMebi);
    Figures(absl::StrFormat(R"("of":"plain loop","parameters":%d,%s,%s,"growth_bytes":%d)", loop.parameters(),
                            Json("step", plain), Json("inference", plain_infer), memory.peak_allocated_bytes - before));
  };
  measure_plain();
  std::vector<std::pair<int, bool>> variants;
  for (const int stages : options.stages) variants.push_back({stages, true});
  variants.push_back({options.stages.front(), false});
  for (const auto& [stages, undo] : variants) {
    const std::vector<Device> gpus = Gpus(std::min(stages, options.gpus));
    DevicePool pool(gpus, DevicePool::Mode::kThreads);
    PipelineSpec spec = workload.spec;
    const int layers = static_cast<int>(Must(ExpandModel(spec.model)).size());
    for (int s = 0; s < stages; ++s) spec.cut.balance.push_back(layers * (s + 1) / stages - layers * s / stages);
    for (int s = 0; s < stages; ++s) spec.devices.push_back(gpus[s * gpus.size() / stages].name);
    const int64_t empty = Allocated(gpus);
    const int64_t begin = RealClock()->NowNanos();
    Pipeline::Options pipeline_options = On(pool, options.rows / options.micro_batches);
    if (!undo) pipeline_options.edits.plan = [](Plan& plan) { plan.undo = false; };
    auto pipeline = Must(Pipeline::Create(spec, pipeline_options));
    const double created = static_cast<double>(RealClock()->NowNanos() - begin) * 1e-9;
    double bubble = 0;
    const auto step = [&] {
      const RunOutcome outcome = Must(pipeline->TrainStep(Request(workload), {}));
      bubble = outcome.measured_bubble;
      return outcome.seconds;
    };
    ResetPeaks(gpus);
    const Spread took = Times(options.rounds, step);
    const int64_t peak = Peak(gpus) - empty;
    const Spread infer = Times(options.rounds, [&] { return InferOnce(*pipeline, workload); });
    int64_t planned = 0;
    for (const StagePlan& stage : pipeline->plan().stages) {
      planned += 2 * stage.parameter_bytes + stage.optimizer_bytes + (undo ? stage.undo_bytes : 0) +
                 stage.peak_activation_bytes;
    }
    const int actions = stages * (2 * options.micro_batches + 1);
    std::printf(
        "%d stages on %d GPUs%s: step %.2f (%.2f .. %.2f), %.3f of the plain loop, %.1f us more per action; bubble "
        "%.1f %% "
        "measured, "
        "%.1f %% predicted; makespan predicted %.2f\n",
        stages, static_cast<int>(gpus.size()), undo ? "" : ", no copies to undo a step", took.median * unit,
        took.least * unit, took.most * unit, took.median / plain.median, (took.median - plain.median) * 1e6 / actions,
        100 * bubble, 100 * pipeline->plan().predicted_bubble, pipeline->plan().makespan_seconds * unit);
    std::printf("          inference of one row %.3f (%.3f .. %.3f); peak %.0f MiB, planned %.0f; created in %.1f s\n",
                infer.median * unit, infer.least * unit, infer.most * unit, static_cast<double>(peak) / kMebi,
                static_cast<double>(planned) / kMebi, created);
    Figures(absl::StrFormat(
        R"("of":"pipeline","stages":%d,"gpus":%d,"undo":%s,%s,%s,"engine_per_action":%.9f,"bubble_measured":%.4f,)"
        R"("bubble_predicted":%.4f,"makespan_predicted":%.9f,"peak_bytes":%d,"planned_bytes":%d,"created":%.3f)",
        stages, gpus.size(), undo ? "true" : "false", Json("step", took), Json("inference", infer),
        (took.median - plain.median) / actions, bubble, pipeline->plan().predicted_bubble,
        pipeline->plan().makespan_seconds, peak, planned, created));
  }
  measure_plain();  // the machine may have changed
}

}  // namespace
}  // namespace penstock::bench

int main(int argc, char** argv) {
  using namespace penstock::bench;
  BeLikeTheDaemon();
  const Options options = Parse(argc, argv);
  penstock::OpenAccelerators({"cuda"});
  if (const penstock::CudaFound found = penstock::FoundCuda(); found.count == 0) {
    std::printf("no GPU: %s\n", found.why_none.c_str());
    return 0;
  }
  if (const int found = penstock::FoundCuda().count; found < options.gpus) {
    std::printf("%d GPUs are needed, and there are %d\n", options.gpus, found);
    return 0;
  }
  Compare(options);
  return 0;
}
