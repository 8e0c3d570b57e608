// Results that stay on the device that made them, over the real engine and stand-ins for accelerators: a chain of calls,
// the host where it is asked for, and what trains on such values.

#include <ATen/ops/equal.h>
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
#include "engine/serve/served_pipeline.h"
#include "tests/support/fake_clock.h"
#include "tests/support/stand_in_device.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/serve/served_engine.h"

namespace penstock {
namespace {

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
    PipelineSpec spec = testing::ServedSpec();
    spec.devices = {"cuda:0", "cuda:1"};
    absl::StatusOr<std::unique_ptr<Pipeline>> pipeline = Pipeline::Create(spec, {.devices = &pool_});
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

}  // namespace
}  // namespace penstock
