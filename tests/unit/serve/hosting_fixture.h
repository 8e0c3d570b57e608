#pragma once

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <memory>
#include <string>

#include "absl/synchronization/notification.h"
#include "engine/base/cancel_token.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/status_macros.h"
#include "engine/base/timer_queue.h"
#include "engine/checkpoint/checkpoint_quota.h"
#include "engine/checkpoint/checkpoint_store.h"
#include "engine/ledger/memory_ledger.h"
#include "engine/observe/metrics_registry.h"
#include "engine/plan/planning.h"
#include "engine/serve/pipeline_table.h"
#include "tests/support/fake_clock.h"
#include "tests/support/fake_pipeline.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/temporary_folder.h"

namespace penstock::testing {

// Of one plan that was asked for.
struct PlanAnswer {
  const std::shared_ptr<CancelToken> cancel = std::make_shared<CancelToken>();
  absl::Status status;  // once it is done
  absl::Notification done;

  std::string Reason() {
    done.WaitForNotification();
    return ReasonOf(status);
  }
};

// A table with fake pipelines, and one called "gpt" that is ready.
class HostingFixture : public ::testing::Test {
 protected:
  explicit HostingFixture(ServedPipeline::Options hosting = {}, int max_pipelines = 3, int64_t trace_events = 0,
                          int64_t memory = kMemory)
      : memory_(memory), registry_(&clock_, trace_events) {
    handles_ = std::make_unique<HandleStore>(HandleStore::Options{}, &clock_, &timers_);
    PipelineTable::Options options;
    options.builder.factory.create = [this](const PipelineSpec& spec,
                                            Pipeline::Options engine) -> absl::StatusOr<std::unique_ptr<Pipeline>> {
      if (engine.claim_memory) {
        const auto needs = needs_.find(spec.model.name);
        if (absl::Status claimed = engine.claim_memory(needs == needs_.end() ? 0 : needs->second); !claimed.ok()) {
          return claimed;
        }
      }
      if (spec.model.name == "broken") return Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID", "broken");
      if (before_create_ != nullptr) before_create_(engine);
      auto pipeline = std::make_unique<FakePipeline>(control_);
      if (engine.metrics) engine.metrics(plan_.has_value() ? *plan_ : pipeline->plan());
      return pipeline;
    };
    options.builder.factory.load = [this](ModelSpec*, const std::string&) {
      if (before_load_) before_load_();
      return absl::OkStatus();
    };
    options.builder.factory.plan = [this](const PipelineSpec&,
                                          const Pipeline::Options& engine) -> absl::StatusOr<Plan> {
      if (before_plan_) before_plan_(engine);
      PENSTOCK_RETURN_IF_ERROR(engine.profile.planning->CheckWanted());
      Plan plan;
      plan.predicted_bubble = 0.25;
      return plan;
    };
    options.builder.factory.search = [this](const PipelineSpec& spec,
                                            const Pipeline::Options& engine) -> absl::StatusOr<PlanSearch> {
      searched_ = spec;
      if (before_plan_) before_plan_(engine);
      PlanSearch search;
      search.considered = 2;
      search.complete = !engine.profile.planning->OutOfTime();
      search.refused.push_back({{.kind = "gpipe"},
                                Error(absl::StatusCode::kFailedPrecondition, "PLAN_DOES_NOT_FIT", "too large")
                                    .With("device", "cpu:1")
                                    .With("value", "99")});
      if (spec.model.name == "huge") return search;
      PlanCandidate candidate;
      candidate.schedule = {"zb-h1", 8, CheckpointMode::kNever};
      candidate.cut.balance = {2, 1};
      candidate.makespan_seconds = 0.5;
      candidate.bubble = 0.125;
      DeviceNeed need{.device = "cpu:0", .lanes = {0, 1}, .limit_bytes = 100, .buffers = {}};
      need.buffers[BufferClass::kActivations] = 70;
      need.buffers[BufferClass::kWeights] = 10;
      candidate.memory = {need};
      search.candidates.push_back(candidate);
      search.plan = Plan();
      search.plan->predicted_bubble = 0.125;
      return search;
    };
    options.builder.handles = handles_.get();
    options.builder.timers = &timers_;
    options.builder.clock = &clock_;
    options.builder.metrics = &registry_;
    checkpoints_ = CheckpointStore::Open(&files_, &clock_, temporary_.path(), &quota_).value();
    options.builder.checkpoints = checkpoints_.get();
    options.builder.memory = &memory_;
    options.max_pipelines = max_pipelines;
    options.builder.hosting = hosting;
    table_ = std::make_unique<PipelineTable>(options);
  }
  ~HostingFixture() override {
    control_->Resume();
    control_->ResumeInference();
    files_.ResumeWrites();
    gpt_.reset();
    table_.reset();
    handles_.reset();
  }

  void SetUp() override {
    ASSERT_TRUE(Create("gpt").ok());
    gpt_ = *table_->Find("gpt");
  }

  absl::StatusOr<PipelineEntry> Create(const std::string& name, const std::string& model = "fake",
                                       const std::string& request_id = "", const std::string& caller = "ann") {
    PipelineSpec spec;
    spec.model.name = model;
    spec.sample = std::make_shared<const PlanningSample>();
    spec.batching = batching_;
    absl::StatusOr<PipelineEntry> answer;
    absl::Notification done;
    table_->Create({.caller = caller, .request_id = request_id, .payload_digest = name}, name,
                   {.spec = spec, .spec_digest = "digest"}, nullptr, [&](absl::StatusOr<PipelineEntry> entry) {
                     answer = std::move(entry);
                     done.Notify();
                   });
    done.WaitForNotification();
    return answer;
  }
  // Asks for a plan; returns what it came to.
  std::shared_ptr<PlanAnswer> AskForPlan(const std::string& caller = "ann") {
    auto answer = std::make_shared<PlanAnswer>();
    table_->Plan(caller, {}, answer->cancel, [answer](absl::StatusOr<Plan> plan) {
      answer->status = plan.status();
      answer->done.Notify();
    });
    return answer;
  }
  absl::Status Delete(const std::string& name, bool force = false, bool purge = false) {
    absl::Status answer;
    absl::Notification done;
    table_->Delete({.caller = "ann"}, name, force, purge, [&](absl::Status status) {
      answer = std::move(status);
      done.Notify();
    });
    done.WaitForNotification();
    return answer;
  }

  static CallContext Caller(const std::string& caller = "ann", const std::string& request_id = "",
                            const std::string& digest = "d") {
    CallContext context;
    context.caller = caller;
    context.request_id = request_id;
    context.payload_digest = digest;
    return context;
  }
  static InputSource X(float value, int64_t rows = 2) { return {"x", at::full({rows}, value)}; }
  static ContributionCall Batch(float value = 1) {
    ContributionCall call;
    call.inputs.push_back(X(value));
    call.target = {"target", at::full({2}, 0.0f)};
    return call;
  }
  static InferCall Ask(float value = 1) {
    InferCall call;
    call.inputs.push_back(X(value));
    return call;
  }

  static EvaluateCall Judge(float value = 1) {
    EvaluateCall call;
    call.batch = Batch(value);
    call.metrics = {"rows"};
    return call;
  }

  // Waits until a handle has settled, and tells how.
  HandleInfo Settled(const HandleName& name, const std::string& caller = "ann") {
    HandleInfo info;
    absl::Notification done;
    handles_->OnSettled(caller, {name}, HandleStore::WaitMode::kAll, std::numeric_limits<int64_t>::max(),
                        [&](std::vector<HandleStore::HandleAnswer> answers) {
                          EXPECT_TRUE(answers[0].ok()) << answers[0].status();
                          if (answers[0].ok()) info = *answers[0];
                          done.Notify();
                        });
    done.WaitForNotification();
    return info;
  }
  std::string ErrorOf(const HandleName& name) { return ReasonOf(Settled(name).error); }
  float ValueOf(const HandleName& name) {
    EXPECT_EQ(Settled(name).state, HandleState::kReady);
    return (*handles_->Pin("ann", name)->tensors())[0].tensor[0].item<float>();
  }
  absl::StatusOr<StateAnswer> Save(const std::string& id, const std::string& request_id = "") {
    return Wait([&](auto done) { gpt_->SaveCheckpoint(Caller("ann", request_id), {.id = id}, done); });
  }
  absl::StatusOr<StateAnswer> Restore(const std::string& id, bool force = false) {
    return Wait([&](auto done) { gpt_->RestoreCheckpoint(Caller(), id, force, done); });
  }
  absl::Status Remove(const std::string& id, const std::string& request_id = "") {
    return Wait([&](auto done) { gpt_->DeleteCheckpoint(Caller("ann", request_id), id, done); }).status();
  }
  static absl::StatusOr<StateAnswer> Wait(const std::function<void(StateCallback)>& call) {
    absl::StatusOr<StateAnswer> answer;
    absl::Notification done;
    call([&](absl::StatusOr<StateAnswer> a) {
      answer = std::move(a);
      done.Notify();
    });
    done.WaitForNotification();
    return answer;
  }
  void StartRead(std::vector<std::string> names, bool optimizer, SnapshotCallback done,
                 CallContext context = Caller()) {
    StartRead({.names = std::move(names),
               .content = optimizer ? ReadContent::kWithOptimizer : ReadContent::kParameters,
               .done = std::move(done)},
              std::move(context));
  }
  void StartRead(ReadCall read, CallContext context = Caller()) {
    gpt_->ReadParameters(std::move(context), std::move(read), std::make_shared<CancelToken>());
  }
  absl::StatusOr<std::shared_ptr<const ParameterSnapshot>> Read(std::vector<std::string> names, bool optimizer) {
    return Read(ReadCall{.names = std::move(names),
                         .content = optimizer ? ReadContent::kWithOptimizer : ReadContent::kParameters});
  }
  absl::StatusOr<std::shared_ptr<const ParameterSnapshot>> Read(ReadCall read, CallContext context = Caller()) {
    absl::StatusOr<std::shared_ptr<const ParameterSnapshot>> answer;
    absl::Notification done;
    read.done = [&](auto snapshot) {
      answer = std::move(snapshot);
      done.Notify();
    };
    StartRead(std::move(read), std::move(context));
    done.WaitForNotification();
    return answer;
  }
  void Advance(absl::Duration time) {
    clock_.Advance(time);
    timers_.SettleForTest();
  }
  std::shared_ptr<PipelineMetrics> Metrics() { return registry_.Find("gpt"); }

  TemporaryFolder temporary_;
  FakeClock clock_;
  FaultyFileSystem files_{RealFileSystem()};
  static constexpr int64_t kMemory = 1 << 20;
  MemoryLedger memory_;
  MetricsRegistry registry_;
  TimerQueue timers_{&clock_};
  std::function<void()> before_load_;
  std::function<void(const Pipeline::Options&)> before_create_;
  std::function<void(const Pipeline::Options&)> before_plan_;  // or a search
  std::map<std::string, int64_t> needs_ = {
      {"broken", kMemory / 2}, {"half", kMemory / 2}, {"more", kMemory / 2 + 1}};  // memory of the host, by model
  std::optional<Plan> plan_;                                                       // that metrics are told
  std::optional<DynamicBatchingSpec> batching_;                                    // of what is created
  PipelineSpec searched_;                                                          // what a search was asked
  const std::shared_ptr<FakePipelineControl> control_ = std::make_shared<FakePipelineControl>();
  CheckpointQuota quota_{int64_t{1} << 30};
  std::unique_ptr<CheckpointStore> checkpoints_;
  std::unique_ptr<HandleStore> handles_;
  std::unique_ptr<PipelineTable> table_;
  std::shared_ptr<ServedPipeline> gpt_;
};

}  // namespace penstock::testing
