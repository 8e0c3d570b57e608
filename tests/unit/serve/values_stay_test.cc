// Results that stay on the device that made them, over the real engine and stand-ins for accelerators: a chain of calls,
// the host where it is asked for, and what trains on such values.

#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "engine/base/file.h"
#include "engine/base/timer_queue.h"
#include "engine/device/accelerators.h"
#include "engine/exec/device_pool.h"
#include "engine/program/program_file.h"
#include "engine/serve/served_pipeline.h"
#include "tests/support/fake_clock.h"
#include "tests/support/stand_in_device.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/serve/served_engine.h"

namespace penstock {
namespace {

using testing::DeviceCopyBytes;
using testing::FakeClock;
using testing::HostCopyBytes;
using testing::kWidth;

std::vector<Device> Devices() {
  OpenAccelerators({}, {.driver = "libm.so.6", .module = FAKE_MODULE});
  return {{.name = "cuda:0", .cores = {0}, .kind = DeviceKind::kCuda, .index = 0},
          {.name = "cuda:1", .cores = {0}, .kind = DeviceKind::kCuda, .index = 1}};
}

class ValuesStay : public ::testing::Test {
 protected:
  ~ValuesStay() override {
    hosted_->Stop();
    hosted_.reset();
    handles_.Close();
  }
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<Pipeline>> pipeline = Pipeline::Create(Spec(), {.devices = &pool_});
    ASSERT_TRUE(pipeline.ok()) << pipeline.status();
    hosted_ = ServedPipeline::Start(*std::move(pipeline),
                                    CheckpointFolder::Open(RealFileSystem(), &clock_, folder_.path(), "gpt").value(),
                                    {.name = "gpt",
                                     .origin = {.spec_digest = "d"},
                                     .batching = batching(),
                                     .handles = &handles_,
                                     .timers = &timers_,
                                     .clock = &clock_});
  }
  virtual std::optional<DynamicBatchingSpec> batching() const { return std::nullopt; }
  virtual PipelineSpec Spec() const {
    PipelineSpec spec = testing::ServedSpec();
    spec.devices = {"cuda:0", "cuda:1"};
    return spec;
  }

  static CallContext Ann() { return {.caller = "ann"}; }
  absl::Status Settled(const HandleName& name) {
    absl::Status error;
    absl::Notification done;
    handles_.OnSettled("ann", {name}, HandleStore::WaitMode::kAll, std::numeric_limits<int64_t>::max(),
                       [&](std::vector<HandleStore::HandleAnswer> answers) {
                         error = answers[0].ok() ? answers[0]->error : answers[0].status();
                         done.Notify();
                       });
    done.WaitForNotification();
    return error;
  }
  HandleName Start(InputSource input, std::optional<int> micro_batches = std::nullopt, int64_t reply_bytes = 0) {
    InferCall call;
    call.inputs.push_back(std::move(input));
    call.request.micro_batches = micro_batches;
    call.reply_bytes = reply_bytes;
    absl::StatusOr<Accepted> accepted = hosted_->Infer(Ann(), std::move(call));
    EXPECT_TRUE(accepted.ok()) << accepted.status();
    return accepted.ok() ? *accepted->outputs : HandleName();
  }
  HandleName Infer(InputSource input, std::optional<int> micro_batches, int64_t reply_bytes = 0) {
    const HandleName name = Start(std::move(input), micro_batches, reply_bytes);
    const absl::Status settled = Settled(name);
    EXPECT_TRUE(settled.ok()) << settled;
    return name;
  }
  at::Tensor TensorOf(const HandleName& name) { return (*handles_.Pin("ann", name)->tensors())[0].tensor; }
  static InputSource From(const HandleName& name) { return {"input", HandleTensor{.handle = name}}; }

  testing::TemporaryFolder folder_;
  FakeClock clock_;
  TimerQueue timers_{&clock_};
  HandleStore handles_{{}, &clock_, &timers_};
  DevicePool pool_{Devices(), DevicePool::Mode::kThreads};
  std::shared_ptr<ServedPipeline> hosted_;
  const at::Tensor input_ = at::randn({8, kWidth});
};

TEST_F(ValuesStay, AHundredCallsDoNotCrossTheHost) {
  for (const std::optional<int> micro_batches : {1, 2}) {
    std::vector<at::Tensor> by_host;
    HandleName last = Infer({"input", input_}, micro_batches);
    by_host.push_back(TensorOf(last).cpu());
    const int64_t crossed = HostCopyBytes();
    for (int call = 1; call < 100; ++call) {
      const HandleName next = Infer(From(last), micro_batches);
      ASSERT_TRUE(handles_.Release("ann", last).ok());
      last = next;
    }
    EXPECT_EQ(HostCopyBytes(), crossed);
    EXPECT_FALSE(TensorOf(last).is_cpu());
    at::Tensor want = by_host[0];
    for (int call = 1; call < 100; ++call) {
      const HandleName next = Infer({"input", want}, micro_batches, std::numeric_limits<int64_t>::max());
      want = TensorOf(next);
      ASSERT_TRUE(want.is_cpu());
      ASSERT_TRUE(handles_.Release("ann", next).ok());
    }
    EXPECT_TRUE(at::equal(TensorOf(last).cpu(), want));
    ASSERT_TRUE(handles_.Release("ann", last).ok());
  }
}

TEST_F(ValuesStay, WhatGoesWithTheReplyIsOnTheHost) {
  const int64_t bytes = static_cast<int64_t>(input_.nbytes());
  EXPECT_TRUE(TensorOf(Infer({"input", input_}, 1, bytes)).is_cpu());
  EXPECT_FALSE(TensorOf(Infer({"input", input_}, 1, bytes - 1)).is_cpu()) << "larger than a reply may carry";
  EXPECT_FALSE(TensorOf(Infer({"input", input_}, 1)).is_cpu());
}

TEST_F(ValuesStay, TrainsAndEvaluatesOnThem) {
  const HandleName value = Infer({"input", input_}, 1);
  for (const bool there : {true, false}) {
    const at::Tensor host = TensorOf(value).cpu();
    ContributionCall batch;
    batch.inputs.push_back(there ? From(value) : InputSource{"input", host});
    batch.target = there ? InputSource{"target", HandleTensor{.handle = value}} : InputSource{"target", host};
    const absl::StatusOr<Accepted> evaluated = hosted_->Evaluate(Ann(), {.batch = batch});
    ASSERT_TRUE(evaluated.ok()) << evaluated.status();
    EXPECT_TRUE(Settled(*evaluated->outcome).ok()) << Settled(*evaluated->outcome);
    const absl::StatusOr<Accepted> trained = hosted_->TrainStep(Ann(), batch, {});
    ASSERT_TRUE(trained.ok()) << trained.status();
    EXPECT_TRUE(Settled(*trained->outcome).ok()) << Settled(*trained->outcome);
  }
}

class ValuesStayBatched : public ValuesStay {
 protected:
  std::optional<DynamicBatchingSpec> batching() const override {
    return DynamicBatchingSpec{.max_rows = 64, .max_delay_seconds = 3600};
  }
};

TEST_F(ValuesStayBatched, RowsAreJoinedAndPartedOnTheirDevice) {
  // A batch is closed when it is full.
  const auto full = [this](const std::vector<InputSource>& inputs) {
    std::vector<HandleName> names;
    for (const InputSource& input : inputs) names.push_back(Start(input));
    for (const HandleName& name : names) EXPECT_TRUE(Settled(name).ok()) << Settled(name);
    return names;
  };
  const std::vector<HandleName> first = full(std::vector<InputSource>(8, {"input", input_}));
  const int64_t crossed = HostCopyBytes();
  std::vector<InputSource> inputs;
  for (const HandleName& name : first) inputs.push_back(From(name));
  const std::vector<HandleName> second = full(inputs);
  EXPECT_EQ(HostCopyBytes(), crossed);
  for (const HandleName& name : second) {
    EXPECT_FALSE(TensorOf(name).is_cpu());
    EXPECT_TRUE(at::equal(TensorOf(name).cpu(), TensorOf(second[0]).cpu()));
  }
}

// A program with three caches, each used by one of its blocks, the middle one on another device than the others.
class CachesStay : public ValuesStay, public ::testing::WithParamInterface<std::vector<int>> {
 protected:
  static constexpr int64_t kRows = 4;
  static constexpr int64_t kRowBytes = 4 * 4;  // from block to block
  static constexpr int64_t kScaleBytes = 4;

  PipelineSpec Spec() const override {
    PipelineSpec spec;
    spec.model.program = "cached_both.pt2";
    spec.model.loaded_program = LoadProgram(PENSTOCK_EXPORTED_FOLDER, spec.model.program, RealFileSystem()).value();
    spec.cut.balance = GetParam();
    for (size_t lane = 0; lane < GetParam().size(); ++lane) spec.devices.push_back(lane % 2 == 0 ? "cuda:0" : "cuda:1");
    spec.schedule = {"1f1b", 1, CheckpointMode::kAlways};
    spec.optimizer.name = "adamw";
    spec.loss.name = "mean_squared_error";
    return spec;
  }

  struct Inputs {
    at::Tensor rows = at::randn({kRows, 4});
    std::vector<at::Tensor> caches = {at::randn({kRows, 5, 4}), at::randn({kRows, 5, 4}), at::randn({kRows, 5, 4})};
    at::Tensor scale = at::rand({kRows, 1});
  };
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const TensorSignature& input : hosted_->pipeline().signature().inputs) names.push_back(input.name);
    return names;
  }
  std::vector<std::string> Outputs() const {
    std::vector<std::string> names;
    for (const TensorSignature& output : hosted_->pipeline().signature().outputs) names.push_back(output.name);
    return names;
  }
  // Caches from a call before, or from `inputs`.
  HandleName Call(const Inputs& inputs, const std::optional<HandleName>& before, bool with_reply = false) {
    InferCall call;
    const std::vector<std::string> names = Names();
    call.inputs.push_back({names[0], inputs.rows});
    for (int i = 0; i < 3; ++i) {
      InputSource source{names[i + 1], inputs.caches[i]};
      if (before.has_value()) {
        source = {names[i + 1], HandleTensor{.handle = *before, .tensor = Outputs()[i + 1]}};
      }
      call.inputs.push_back(std::move(source));
    }
    call.inputs.push_back({names[4], inputs.scale});
    call.reply_bytes = with_reply ? std::numeric_limits<int64_t>::max() : 0;
    absl::StatusOr<Accepted> accepted = hosted_->Infer(Ann(), std::move(call));
    EXPECT_TRUE(accepted.ok()) << accepted.status();
    if (!accepted.ok()) return {};
    if (!batching().has_value()) EXPECT_TRUE(Settled(*accepted->outputs).ok()) << Settled(*accepted->outputs);
    return *accepted->outputs;
  }
  at::Tensor Output(const HandleName& name, int i) { return (*handles_.Pin("ann", name)->tensors())[i].tensor; }
};

INSTANTIATE_TEST_SUITE_P(Cuts, CachesStay, ::testing::Values(std::vector<int>{3, 2}, std::vector<int>{2, 1, 2}));

TEST_P(CachesStay, AChainCrossesNeitherTheHostNorAnotherDevice) {
  const Inputs inputs;
  const auto cuts = static_cast<int64_t>(GetParam().size()) - 1;
  HandleName last = Call(inputs, std::nullopt);
  std::vector<c10::Device> where;
  for (int i = 1; i <= 3; ++i) where.push_back(Output(last, i).device());
  EXPECT_NE(where[0], where[GetParam().size() == 2 ? 2 : 1]) << "each where its block stands";
  const int64_t by_host = HostCopyBytes();
  const int64_t by_devices = DeviceCopyBytes();
  constexpr int kCalls = 20;
  for (int call = 0; call < kCalls; ++call) {
    const HandleName next = Call(inputs, last);
    ASSERT_TRUE(handles_.Release("ann", last).ok());
    last = next;
  }
  // What each call brings goes from the host, and what blocks hand to blocks goes over each cut; the number of a row is
  // on the first device, and crosses where the last stage stands on the other one.
  const int64_t scale = GetParam().size() == 2 ? kScaleBytes : 0;
  EXPECT_EQ(HostCopyBytes() - by_host, kCalls * kRows * (kRowBytes + kScaleBytes));
  EXPECT_EQ(DeviceCopyBytes() - by_devices, kCalls * kRows * (cuts * kRowBytes + scale));
  for (int i = 1; i <= 3; ++i) EXPECT_EQ(Output(last, i).device(), where[i - 1]);
  HandleName plain = Call(inputs, std::nullopt, /*with_reply=*/true);
  for (int call = 0; call < kCalls; ++call) {
    Inputs next = inputs;
    for (int i = 0; i < 3; ++i) next.caches[i] = Output(plain, i + 1);
    plain = Call(next, std::nullopt, /*with_reply=*/true);
  }
  for (int i = 0; i <= 3; ++i) {
    EXPECT_TRUE(Output(plain, i).is_cpu());
    EXPECT_TRUE(at::equal(Output(last, i).cpu(), Output(plain, i))) << i;
  }
}

class CachesStayBatched : public CachesStay {
 protected:
  std::optional<DynamicBatchingSpec> batching() const override {
    return DynamicBatchingSpec{.max_rows = 2 * kRows, .max_delay_seconds = 3600};
  }
};

INSTANTIATE_TEST_SUITE_P(Cuts, CachesStayBatched, ::testing::Values(std::vector<int>{2, 1, 2}));

TEST_P(CachesStayBatched, RowsAreJoinedAndPartedWhereTheyAre) {
  const Inputs one;
  const Inputs other;
  const auto both = [&](std::optional<HandleName> first, std::optional<HandleName> second) {
    std::vector<HandleName> names = {Call(one, first), Call(other, second)};  // the second one makes the batch full
    for (const HandleName& name : names) EXPECT_TRUE(Settled(name).ok()) << Settled(name);
    return names;
  };
  const std::vector<HandleName> first = both(std::nullopt, std::nullopt);
  const int64_t by_host = HostCopyBytes();
  const std::vector<HandleName> second = both(first[0], first[1]);
  EXPECT_EQ(HostCopyBytes() - by_host, 2 * kRows * (kRowBytes + kScaleBytes));
  for (int i = 1; i <= 3; ++i) {
    for (const int call : {0, 1}) {
      const at::Tensor before = Output(first[call], i);
      const at::Tensor after = Output(second[call], i);
      EXPECT_EQ(after.device(), before.device());
      EXPECT_EQ(after.size(1), 7);
      EXPECT_TRUE(at::equal(after.narrow(1, 0, 6).cpu(), before.cpu())) << "rows of its own";
    }
  }
}

}  // namespace
}  // namespace penstock
