// What happens to a pipe when layers fail, when many use it at once, and when it goes away.

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <set>
#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "engine/base/error.h"
#include "engine/base/thread.h"
#include "engine/device/torch_status.h"
#include "tests/unit/exec/function_layers.h"

namespace penstock::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A layer that fails while it is told to.
class Fuse {
 public:
  LayerSpec Layer() {
    return Function({.forward =
                         [this](const Batch& in, const LayerContext&, const Tensors& weights) {
                           if (blown) throw std::runtime_error("the fuse has blown\nsomewhere deep");
                           return Batch(in.TensorAt(0).mul(weights[0]));
                         },
                     .parameters = {{2}},
                     .name = "fuse"});
  }
  std::atomic<bool> blown = true;
};

ContributionRequest Rows(int64_t rows) { return Contribution(Range({rows, 2}), at::ones({rows, 2})); }

// --- The first error ---

// Where the executor of a lane can't be made, no other lane has begun: none would find the run again.
TEST(PipeFailure, ARunOfWhichOneLaneCanNotStartRunsOnNone) {
  PipeWorld world;
  bool fails = false;
  int actions = 0;
  world.watch_passes = [&](const PassEvent& event) {
    if (event.when == PassEvent::When::kBegins) ++actions;
    if (fails && event.when == PassEvent::When::kLeftOver && event.lane == 1) throw std::runtime_error("no memory");
  };
  const auto pipeline = world.Make(Pipe({Weighted(), Weighted()}, {1, 1}, 2));
  fails = true;
  EXPECT_EQ(ReasonOf(pipeline->TrainStep(Rows(4), {}).status()), "BUG");
  EXPECT_EQ(actions, 0);
  fails = false;
  EXPECT_TRUE(pipeline->TrainStep(Rows(4), {}).ok());
  EXPECT_GT(actions, 0);
}

TEST(PipeFailure, TheStageBeforeTheBrokenOneRanTwoMicroBatches) {
  // One device per stage, as the ancestors have.
  DevicePool pool({{"cpu:0", {}, 0}, {"cpu:1", {}, 0}, {"cpu:2", {}, 0}, {"cpu:3", {}, 0}}, DevicePool::Mode::kSerial);
  int counter = 0;
  const auto count = [&](const Batch& in, const LayerContext&, const Tensors&) {
    ++counter;
    return in;
  };
  const auto raise = [](const Batch&, const LayerContext&, const Tensors&) -> Batch {
    throw std::runtime_error("an expected one");
  };
  Pipeline::Options options;
  options.devices = &pool;
  auto pipeline = Pipeline::Create(
      Pipe({Function(PassOn), Function(PassOn), Function(count), Function(raise)}, {1, 1, 1, 1}, 3), options);
  ASSERT_TRUE(pipeline.ok()) << pipeline.status();
  const absl::Status status = (*pipeline)->ForwardBackward(Rows(3)).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("an expected one"));
  EXPECT_EQ(ValuesOf(status)["stage"], "3");
  EXPECT_EQ(ValuesOf(status)["micro_batch"], "0");
  EXPECT_EQ(counter, 2);
}

// A layer of the caller's is no part of the daemon: what it throws is no bug that the operator should report.
TEST(PipeFailure, WhatALayerThrowsIsTheLayersFault) {
  const auto throws = [](const Batch&, const LayerContext&, const Tensors&) -> Batch {
    throw std::runtime_error("out of ideas");
  };
  const auto misfits = [](const Batch& in, const LayerContext&, const Tensors&) {
    return Batch(at::matmul(in.TensorAt(0), at::ones({3, 3})));
  };
  const auto strange = [](const Batch&, const LayerContext&, const Tensors&) -> Batch { throw 7; };
  const auto backward = [](const Batch& in, const LayerContext&, const Tensors& weights) {
    at::Tensor out = in.TensorAt(0).mul(weights[0]);
    if (out.requires_grad()) {
      out.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("no gradient today"); });
    }
    return Batch(out);
  };
  struct Case {
    LayerFunction forward;
    std::string action;
    std::string text;
  };
  const std::string at_layer = "stage 1, micro-batch 0, action 1F0: layer faulty: ";
  for (const Case& one : {Case{throws, "1F0", at_layer + "out of ideas"},
                          Case{misfits, "1F0", at_layer + "mat1 and mat2 shapes cannot be multiplied"},
                          Case{strange, "1F0", at_layer + "an exception of unknown type"},
                          Case{backward, "1B0", "stage 1, micro-batch 0, action 1B0: no gradient today"}}) {
    PipeWorld world;
    const auto pipeline = world.Make(
        Pipe({Weighted(), Function({.forward = one.forward, .parameters = {{2}}, .name = "faulty"})}, {1, 1}, 1));
    const absl::Status failed = pipeline->TrainStep(Rows(4), {}).status();
    EXPECT_EQ(failed.code(), absl::StatusCode::kFailedPrecondition) << failed;
    EXPECT_EQ(ReasonOf(failed), "LAYER_FAILED") << failed;
    EXPECT_THAT(std::string(failed.message()), HasSubstr(one.text));
    EXPECT_EQ(ValuesOf(failed)["stage"], "1");
    EXPECT_EQ(ValuesOf(failed)["micro_batch"], "0");
    EXPECT_EQ(ValuesOf(failed)["action"], one.action);
    EXPECT_EQ(ValuesOf(failed)["field"], one.action == "1F0" ? "faulty" : "");
  }
}

TEST(PipeFailure, ALayersBackwardInHalvesIsTheLayersToo) {
  for (const bool of_input : {false, true}) {
    const auto forward = [of_input](const Batch& in, const LayerContext&, const Tensors& weights) {
      const at::Tensor weight = weights[0].mul(2);
      const at::Tensor broken = of_input ? in.TensorAt(0).mul(2) : weight;
      if (broken.requires_grad()) {
        broken.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("no gradient today"); });
      }
      return Batch(of_input ? broken.mul(weight) : in.TensorAt(0).mul(broken));
    };
    PipeWorld world;
    PipelineSpec spec =
        Pipe({Weighted(), Function({.forward = forward, .parameters = {{2}}, .name = "faulty"})}, {1, 1}, 2);
    spec.schedule.kind = "zb-h1";
    const absl::Status failed = world.Make(spec)->TrainStep(Rows(4), {}).status();
    EXPECT_EQ(ReasonOf(failed), "LAYER_FAILED") << failed;
    EXPECT_EQ(ValuesOf(failed)["action"], of_input ? "1I0" : "1W0");
  }
}

TEST(PipeFailure, WithThreadsNothingStartsAfterTheErrorIsRecorded) {
  PipeWorld world(DevicePool::Mode::kThreads);
  absl::Mutex mu;
  std::vector<std::string> log;
  absl::Notification broken, recorded;
  world.before_action = [&](const Action& action) {
    {
      absl::MutexLock lock(&mu);
      log.push_back(ToString(action));
    }
    if (action.stage == 1) {
      broken.Notify();
      throw std::runtime_error("broken");
    }
    if (action.micro_batch == 1) recorded.WaitForNotification();  // it has begun before the error
  };
  auto pipeline = world.Make(Pipe({Weighted(), Weighted()}, {1, 1}, 4));
  world.before_action = nullptr;
  PipelineSpec other = Pipe({Weighted()}, {1});
  other.devices = {"cpu:1"};
  auto witness = world.Make(other);
  absl::Status status;
  {
    Thread trainer("trainer", [&] { status = pipeline->ForwardBackward(Rows(4)).status(); });
    broken.WaitForNotification();
    // The failed stage's thread does something else, so it is through with the failure.
    EXPECT_TRUE(world.Infer(*witness, Input(Range({1, 2}))).ok());
    recorded.Notify();
  }
  EXPECT_THAT(std::string(status.message()), HasSubstr("broken"));
  EXPECT_EQ(ValuesOf(status)["stage"], "1");
  for (const std::string& action : log) EXPECT_TRUE(action == "0F0" || action == "0F1" || action == "1F0") << action;
}

TEST(PipeFailure, ReasonAndValuesOfTheErrorArriveWithItsPlace) {
  PipeWorld world;
  const auto refuse = [](const Batch&, const LayerContext&, const Tensors&) -> Batch {
    ThrowStatus(Error(absl::StatusCode::kOutOfRange, "OF_MY_OWN", "refused").With("mine", "42"));
  };
  auto pipeline = world.Make(Pipe({Function(PassOn), Function(refuse)}, {1, 1}, 2));
  const absl::Status status = pipeline->ForwardBackward(Rows(4)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(ReasonOf(status), "OF_MY_OWN");
  EXPECT_EQ(ValuesOf(status)["mine"], "42");
  EXPECT_EQ(ValuesOf(status)["stage"], "1");
  EXPECT_EQ(ValuesOf(status)["action"], "1F0");
}

TEST(PipeFailure, AnErrorOfOneStageReachesTheCaller) {
  for (const DevicePool::Mode mode : {DevicePool::Mode::kThreads, DevicePool::Mode::kSerial}) {
    for (int broken = 0; broken < 3; ++broken) {
      PipeWorld world(mode);
      Fuse fuse;
      std::vector<LayerSpec> layers(3, Weighted());
      layers[broken] = fuse.Layer();
      const PipelineSpec spec = Pipe(layers, {1, 1, 1}, 3);
      auto pipeline = world.Make(spec);
      for (int call = 0; call < 3; ++call) {  // and again, at once
        for (const absl::Status& status :
             {pipeline->TrainStep(Rows(3), {}).status(), pipeline->ForwardBackward(Rows(3)).status(),
              pipeline->Forward(Ask(Input(Range({3, 2})))).status(),
              world.Infer(*pipeline, Input(Range({3, 2}))).status()}) {
          EXPECT_THAT(std::string(status.message()), HasSubstr("the fuse has blown"));
          EXPECT_EQ(ValuesOf(status)["stage"], absl::StrCat(broken));
          EXPECT_EQ(ValuesOf(status)["micro_batch"], "0");
        }
      }
      fuse.blown = false;
      PlainReference plain = PlainOf(spec);
      EXPECT_EQ(*pipeline->TrainStep(Rows(3), {})->loss,
                plain.TrainStep({Value(Range({3, 2}))}, at::ones({3, 2}), 3).loss);
      EXPECT_TRUE(SameState(*pipeline, plain));
    }
  }
}

TEST(PipeFailure, WhereverItFailedTheRetryEqualsARunWithoutTheError) {
  for (CheckpointMode mode : {CheckpointMode::kAlways, CheckpointMode::kNever}) {
    PipelineSpec spec = Pipe(
        {Linear(2, 4), Built("batch_norm", {{"features", int64_t{4}}}), Built("dropout", {{"p", 0.5}}), Linear(4, 2)},
        {2, 2}, 2, mode);
    spec.model.deferred_batch_norm = true;
    spec.optimizer.options = {{"learning_rate", 0.125}};
    // All actions of one step, from a pipe that works.
    PipeWorld world;
    std::vector<std::string> actions;
    std::string break_at;
    world.before_action = [&](const Action& action) {
      actions.push_back(ToString(action));
      if (actions.back() == break_at) throw std::runtime_error("broken here");
    };
    auto good = world.Make(spec);
    ASSERT_TRUE(good->TrainStep(Rows(4), {}).ok());
    const std::set<std::string> places(actions.begin(), actions.end());
    ASSERT_GE(places.size(), mode == CheckpointMode::kAlways ? 14 : 10);
    ASSERT_TRUE(good->TrainStep(Rows(6), {}).ok());
    const NamedTensors expected = good->ExportState(true).value();
    for (const std::string& place : places) {
      SCOPED_TRACE(place);
      auto pipeline = world.Make(spec);
      ASSERT_TRUE(pipeline->TrainStep(Rows(4), {}).ok());
      break_at = place;
      const absl::Status status = pipeline->TrainStep(Rows(6), {}).status();
      break_at.clear();
      EXPECT_THAT(std::string(status.message()), HasSubstr("broken here"));
      EXPECT_EQ(ValuesOf(status)["action"], place);
      EXPECT_EQ(pipeline->step(), 1);
      ASSERT_TRUE(pipeline->TrainStep(Rows(6), {}).ok());
      EXPECT_TRUE(SameTensors(pipeline->ExportState(true).value(), expected));
    }
  }
}

TEST(PipeFailure, AFailedBackwardAddsNothing) {
  PipeWorld world;
  std::string break_at;
  world.before_action = [&](const Action& action) {
    if (ToString(action) == break_at) throw std::runtime_error("broken here");
  };
  auto pipeline = world.Make(Pipe({Weighted(), Weighted()}, {1, 1}, 2));
  auto forward = pipeline->Forward(Ask(Input(Range({4, 2}))));
  break_at = "0B1";
  const NamedTensors ones = {{"output", at::ones({4, 2})}};
  EXPECT_FALSE(pipeline->Backward(forward->graph, ones, false).ok());
  break_at.clear();
  EXPECT_FALSE(pipeline->accumulating());
  EXPECT_EQ(ReasonOf(pipeline->OptimizerStep({}).status()), "ACCUMULATION_EMPTY");
}

// --- Threads ---

TEST(PipeThreads, AThreadPerDeviceAndStagesOfOneDeviceShareIt) {
  PipeWorld world(DevicePool::Mode::kThreads);
  std::vector<pthread_t> threads(4);
  std::vector<LayerSpec> layers;
  for (int stage = 0; stage < 4; ++stage) {
    layers.push_back(Function([&threads, stage](const Batch& in, const LayerContext&, const Tensors&) {
      threads[stage] = pthread_self();
      return in;
    }));
  }
  PipelineSpec spec = Pipe(layers, {1, 1, 1, 1}, 2);
  spec.devices = {"cpu", "cpu:1", "cpu:0", "cpu:1"};  // cpu is cpu:0
  auto pipeline = world.Make(spec);
  ASSERT_TRUE(world.Infer(*pipeline, Input(Range({2, 2}))).ok());
  EXPECT_EQ(threads[0], threads[2]);
  EXPECT_EQ(threads[1], threads[3]);
  EXPECT_NE(threads[0], threads[1]);
  EXPECT_NE(threads[0], pthread_self());
}

TEST(PipeThreads, TwoCpuDevicesOverlap) {
  PipeWorld world(DevicePool::Mode::kThreads);
  // Each waits within its forward until the other is in its own: only together they end.
  absl::Notification first, second;
  const auto stage0 = [&](const Batch& in, const LayerContext& context, const Tensors&) {
    if (context.micro_batch.value() == 1) {
      first.Notify();
      second.WaitForNotification();
    }
    return in;
  };
  const auto stage1 = [&](const Batch& in, const LayerContext& context, const Tensors&) {
    if (context.micro_batch.value() == 0) {
      second.Notify();
      first.WaitForNotification();
    }
    return in;
  };
  auto pipeline = world.Make(Pipe({Function(stage0), Function(stage1)}, {1, 1}, 2));
  EXPECT_TRUE(world.Infer(*pipeline, Input(Range({2, 2}))).ok());
}

TEST(PipeThreads, AStageRunsAheadOfASlowOne) {
  PipeWorld world(DevicePool::Mode::kThreads);
  constexpr int kMicroBatches = 4;
  // The second stage stays in its first forward until the first one has begun its last: in lockstep that never comes.
  absl::Notification last_begun;
  bool came = false;
  const auto fast = [&](const Batch& in, const LayerContext& context, const Tensors&) {
    if (context.micro_batch.value() == kMicroBatches - 1) last_begun.Notify();
    return in;
  };
  const auto slow = [&](const Batch& in, const LayerContext& context, const Tensors&) {
    if (context.micro_batch.value() == 0) came = last_begun.WaitForNotificationWithTimeout(absl::Minutes(1));
    return in;
  };
  auto pipeline = world.Make(Pipe({Function(fast), Function(slow)}, {1, 1}, kMicroBatches));
  ASSERT_TRUE(world.Infer(*pipeline, Input(Range({kMicroBatches, 2}))).ok());
  EXPECT_TRUE(came);
}

TEST(PipeThreads, TheCallersThreadStateIsNoneOfTheStages) {
  PipeWorld world(DevicePool::Mode::kThreads);
  absl::Mutex mu;
  std::set<std::string> seen;
  const auto note = [&](const Batch& in, const LayerContext& context, const Tensors& weights) {
    absl::MutexLock lock(&mu);
    seen.insert(absl::StrCat(context.training ? "train" : "infer", at::GradMode::is_enabled() ? " graph" : "",
                             at::autocast::is_autocast_enabled(at::kCPU) ? " autocast" : ""));
    return Batch(in.TensorAt(0).mul(weights[0]));
  };
  const LayerSpec layer = Function({.forward = note, .parameters = {{2}}});
  const PipelineSpec spec = Pipe({layer, layer}, {1, 1}, 2, CheckpointMode::kNever);
  auto pipeline = world.Make(spec);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  {
    const at::NoGradGuard no_graph;
    EXPECT_TRUE(pipeline->TrainStep(Rows(4), {}).ok());
  }
  EXPECT_TRUE(world.Infer(*pipeline, Input(Range({4, 2}))).ok());
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_THAT(seen, ElementsAre("infer", "train graph"));
  EXPECT_TRUE(at::GradMode::is_enabled());
}

TEST(PipeThreads, PipesAndPoolsEndAlsoAfterErrors) {
  for (const bool fails : {false, true}) {
    std::vector<Device> devices;
    for (int d = 0; d < 10; ++d) devices.push_back({absl::StrCat("cpu:", d), {}, 0});
    auto pool = std::make_unique<DevicePool>(devices, DevicePool::Mode::kThreads);
    Fuse fuse;
    fuse.blown = fails;
    std::vector<LayerSpec> layers(9, Weighted());
    layers.push_back(fuse.Layer());
    Pipeline::Options options;
    options.devices = pool.get();
    auto pipeline = Pipeline::Create(Pipe(layers, std::vector<int>(10, 1), 4), options);
    ASSERT_TRUE(pipeline.ok()) << pipeline.status();
    EXPECT_EQ((*pipeline)->TrainStep(Rows(4), {}).ok(), !fails);
    // Inference that is still open when the pipe is deleted: it is answered first.
    std::atomic<int> answers = 0;
    for (int i = 0; i < 5; ++i) {
      (*pipeline)->InferAsync(Ask(Input(Range({4, 2}))), [&](const absl::StatusOr<ForwardOutcome>& outcome) {
        EXPECT_EQ(outcome.ok(), !fails);
        ++answers;
      });
    }
    pipeline->reset();
    EXPECT_EQ(answers, 5);
    pool.reset();
  }
  PipeWorld unused(DevicePool::Mode::kThreads);  // a pool that nobody used ends, too
}

TEST(PipeThreads, ManyClientsOfSeveralPipesOnOnePool) {
  PipeWorld world(DevicePool::Mode::kThreads);
  constexpr int kPipes = 3;
  constexpr int kSteps = 20;
  std::vector<PipelineSpec> specs;
  std::vector<std::unique_ptr<Pipeline>> pipes;
  std::vector<std::vector<at::Tensor>> answers(kPipes);  // of the weights of every step
  for (int p = 0; p < kPipes; ++p) {
    specs.push_back(
        Pipe({Linear(2, 8), Built("dropout", {{"p", 0.25}}), Linear(8, 8), Linear(8, 2)}, {1, 2, 1}, 2 + p, kModes[p]));
    specs.back().seed = 100 + p;
    specs.back().optimizer.options = {{"learning_rate", 0.125}};
    pipes.push_back(world.Make(specs.back()));
    PlainReference plain = PlainOf(specs.back());
    answers[p].push_back(plain.Infer({Value(Range({5, 2}))}, 2 + p)[0]);
    for (int step = 0; step < kSteps; ++step) {
      plain.TrainStep({Value(Range({6, 2}))}, at::ones({6, 2}), 2 + p);
      answers[p].push_back(plain.Infer({Value(Range({5, 2}))}, 2 + p)[0]);
    }
  }
  std::vector<std::unique_ptr<Thread>> threads;
  for (int p = 0; p < kPipes; ++p) {
    threads.push_back(std::make_unique<Thread>("trainer", [&, p] {
      for (int step = 0; step < kSteps; ++step) EXPECT_TRUE(pipes[p]->TrainStep(Rows(6), {}).ok());
    }));
    for (int client = 0; client < 3; ++client) {
      threads.push_back(std::make_unique<Thread>("client", [&, p] {
        for (int i = 0; i < 20; ++i) {
          auto answer = world.Infer(*pipes[p], Input(Range({5, 2})));
          ASSERT_TRUE(answer.ok()) << answer.status();
          EXPECT_TRUE(at::equal(*answer->outputs[0].value.tensor(), answers[p].at(answer->step)));
        }
      }));
    }
  }
  threads.clear();  // joins
  for (int p = 0; p < kPipes; ++p) {
    auto answer = world.Infer(*pipes[p], Input(Range({5, 2})));
    EXPECT_TRUE(at::equal(*answer->outputs[0].value.tensor(), answers[p].back()));
  }
}

TEST(PipeThreads, AnErrorOfOnePipeIsNoneOfTheOthers) {
  PipeWorld world(DevicePool::Mode::kThreads);
  Fuse fuse;
  auto broken = world.Make(Pipe({Weighted(), fuse.Layer()}, {1, 1}, 2));
  const PipelineSpec spec = Pipe({Linear(2, 2), Linear(2, 2)}, {1, 1}, 2);
  auto working = world.Make(spec);
  PlainReference plain = PlainOf(spec);
  {
    Thread failing("failing", [&] {
      for (int i = 0; i < 20; ++i) EXPECT_FALSE(broken->TrainStep(Rows(4), {}).ok());
    });
    for (int i = 0; i < 20; ++i) EXPECT_TRUE(working->TrainStep(Rows(4), {}).ok());
  }
  for (int i = 0; i < 20; ++i) plain.TrainStep({Value(Range({4, 2}))}, at::ones({4, 2}), 2);
  EXPECT_TRUE(SameState(*working, plain));
}

}  // namespace
}  // namespace penstock::testing
