#pragma once

// A served pipeline with a journal, its checkpoints and its journal on a disk that forgets what was not synced.

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "engine/base/error.h"
#include "engine/base/timer_queue.h"
#include "engine/checkpoint/checkpoint_quota.h"
#include "engine/checkpoint/checkpoint_store.h"
#include "engine/exec/device_pool.h"
#include "engine/ledger/memory_ledger.h"
#include "engine/plan/planning.h"
#include "engine/serve/pipeline_builder.h"
#include "tests/support/fake_clock.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/unsynced_disk.h"
#include "tests/unit/serve/served_engine.h"

namespace penstock::testing {

// Keeps calls and answers in memory, and their numbers in the rows: what a row says is not these tests' matter.
class KeptRecords : public CallRecords {
 public:
  std::string WriteCall(const Call& call) const override {
    absl::MutexLock lock(&mu_);
    calls_.push_back({.context = {.session = call.context.session,
                                  .expected_state = call.context.expected_state,
                                  .lease = call.context.lease},
                      .request = call.request});
    return std::to_string(calls_.size() - 1);
  }
  absl::StatusOr<std::vector<JournalInput>> WriteInputs(const Call&, const NamedValues& values) const override {
    std::vector<JournalInput> inputs;
    absl::MutexLock lock(&mu_);
    for (const NamedValue& value : values) {
      values_.push_back(value);
      inputs.push_back({.header = std::to_string(values_.size() - 1)});
    }
    return inputs;
  }
  absl::StatusOr<RepeatedCall> ReadCall(const std::string& method, std::string_view parameters,
                                        const std::vector<RecordedInput>& inputs) const override {
    if (method == "CopyCheckpoint") return CheckpointNotFound("saved");  // its pipeline was purged
    absl::MutexLock lock(&mu_);
    RepeatedCall call = calls_.at(std::stoul(std::string(parameters)));
    std::vector<InputSource> sources;
    for (const RecordedInput& input : inputs) {
      const NamedValue& value = values_.at(std::stoul(input.header));
      if (std::holds_alternative<penstock::WriteCall>(call.request)) {
        call.written.push_back({value.name, *value.value.tensor()});
      } else {
        sources.push_back({value.name, *value.value.tensor()});
      }
    }
    if (auto* backward = std::get_if<BackwardCall>(&call.request)) backward->gradients = sources;
    if (auto* forward = std::get_if<ForwardCall>(&call.request)) forward->inputs = sources;
    auto* contribution = std::get_if<ContributionCall>(&call.request);
    if (auto* step = std::get_if<TrainStepCall>(&call.request)) contribution = &step->contribution;
    if (contribution != nullptr && !sources.empty()) {
      contribution->target = sources.back();
      sources.pop_back();
      contribution->inputs = sources;
    }
    return call;
  }
  std::string WriteAnswer(const CallAnswer& answer) const override {
    absl::MutexLock lock(&mu_);
    answers_.push_back(answer);
    return std::to_string(answers_.size() - 1);
  }
  absl::StatusOr<CallAnswer> ReadAnswer(std::string_view bytes) const override {
    absl::MutexLock lock(&mu_);
    return answers_.at(std::stoul(std::string(bytes)));
  }

 private:
  mutable absl::Mutex mu_;
  mutable std::vector<RepeatedCall> calls_ ABSL_GUARDED_BY(mu_);
  mutable std::vector<NamedValue> values_ ABSL_GUARDED_BY(mu_);
  mutable std::vector<CallAnswer> answers_ ABSL_GUARDED_BY(mu_);
};

// One pipeline over many lives of its process.
class JournalledEngine {
 public:
  explicit JournalledEngine(AutomaticCheckpoints::Limits limits = {}) : limits_(limits) {
    setup_ = {.folder = "/state/journal", .records = &records_, .options = {.files = &disk, .vfs = disk.vfs()}};
    setup_.options.free_bytes = [this] {
      if (before_commit) before_commit();
      return disk.free_bytes();
    };
    setup_.recipe = [this](const std::string&) -> absl::StatusOr<PipelineRecipe> { return Recipe(); };
    CHECK_OK(disk.CreateDirectories("/state/journal"));
  }
  ~JournalledEngine() { End(); }

  // The process begins: the first time it makes the pipeline, then it makes it again.
  absl::Status Begin() {
    life_ = std::make_unique<Life>(*this);
    PipelineRecipe recipe = Recipe();
    Planning planning(&clock_, 60, [] { return false; });
    absl::StatusOr<std::shared_ptr<ServedPipeline>> made = life_->builder->Build(
        "gpt",
        {.id = "a",
         .again = made_,
         .gone =
             [this] {
               if (on_gone) on_gone();
             }},
        &recipe, [] { return true; }, &planning);
    if (!made.ok()) return made.status();
    made_ = true;
    life_->hosted = *std::move(made);
    return absl::OkStatus();
  }
  void End() {
    if (life_ == nullptr) return;
    if (life_->hosted != nullptr) life_->hosted->Stop();
    life_.reset();
  }
  // Power fails.
  void Crash() {
    disk.Crash();
    files.ResumeWrites();
    End();
    disk.FailSync(-1);
  }

  ServedPipeline& hosted() const { return *life_->hosted; }
  HandleStore& handles() const { return life_->handles; }
  CheckpointStore& checkpoints() const { return *life_->checkpoints; }
  std::vector<CheckpointInfo> Checkpoints() const { return life_->checkpoints->FindFolder("gpt")->List(); }

  static CallContext As(const std::string& request_id) {
    return {.caller = "ann", .request_id = request_id, .payload_digest = "d", .recorded_digest = "d"};
  }
  ContributionCall Batch(float value) const {
    ContributionCall call;
    call.inputs.push_back({"input", at::full({4, kWidth}, value).cumsum(0).sin()});
    call.target = {"target", at::full({4, kWidth}, value).cumsum(1).cos()};
    return call;
  }
  // The outcome of an accepted call, when it has settled.
  absl::StatusOr<CallOutcome> OutcomeOf(const absl::StatusOr<Accepted>& accepted) {
    if (absl::Status durable = Durable(accepted); !durable.ok()) return durable;
    Await(*accepted->outcome);
    absl::StatusOr<HandlePin> pin = handles().Pin("ann", *accepted->outcome);
    return pin.ok() ? pin->outcome() : pin.status();
  }
  static absl::Status Durable(const absl::StatusOr<Accepted>& accepted) {
    if (!accepted.ok()) return accepted.status();
    absl::Status status;
    absl::Notification known;
    accepted->WhenDurable([&](const absl::Status& durable) {
      status = durable;
      known.Notify();
    });
    known.WaitForNotification();
    return status;
  }
  void Await(const HandleName& name) {
    absl::Notification done;
    handles().OnSettled("ann", {name}, HandleStore::WaitMode::kAll, std::numeric_limits<int64_t>::max(),
                        [&](const std::vector<HandleStore::HandleAnswer>&) { done.Notify(); });
    done.WaitForNotification();
  }
  // Time passes meanwhile: inference that stands back for a step which is expected gives up waiting for it.
  void PassUntilSettled(const HandleName& name) {
    const auto done = std::make_shared<absl::Notification>();
    handles().OnSettled("ann", {name}, HandleStore::WaitMode::kAll, std::numeric_limits<int64_t>::max(),
                        [done](const std::vector<HandleStore::HandleAnswer>&) { done->Notify(); });
    while (!done->HasBeenNotified()) Pass(absl::Milliseconds(1));
  }
  static absl::StatusOr<StateAnswer> Wait(const std::function<void(StateCallback)>& call) {
    absl::StatusOr<StateAnswer> result;
    absl::Notification done;
    call([&](absl::StatusOr<StateAnswer> answer) {
      result = std::move(answer);
      done.Notify();
    });
    done.WaitForNotification();
    return result;
  }
  NamedTensors State() {
    absl::StatusOr<NamedTensors> tensors;
    absl::Notification done;
    const auto read = [&](absl::StatusOr<std::shared_ptr<const ParameterSnapshot>> snapshot) {
      tensors = snapshot.ok() ? absl::StatusOr<NamedTensors>((*snapshot)->tensors) : snapshot.status();
      done.Notify();
    };
    hosted().ReadParameters({.caller = "ann"}, {.content = ReadContent::kWithOptimizer, .done = read},
                            std::make_shared<CancelToken>());
    done.WaitForNotification();
    return tensors.value();
  }

  // And what is due by then has run.
  void Pass(absl::Duration time) {
    clock_.AdvanceNanos(absl::ToInt64Nanoseconds(time));
    life_->timers.SettleForTest();
  }

  UnsyncedDisk disk;
  FaultyFileSystem files{&disk};            // what checkpoints see of it
  int64_t memory_bytes = int64_t{1} << 40;  // that the next life may reserve
  int64_t request_log_entries = 100'000;    // of the next life
  // But for the answers that are kept.
  int64_t reserved_bytes() const { return life_->memory.bytes() - life_->memory.BytesOf(MemoryClass::kAnswers); }
  // Before Begin(): its journal is kept by the machine, which locks files.
  void KeepJournalIn(const std::string& folder) {
    setup_.folder = folder;
    setup_.options = {};
  }
  // By another connection.
  absl::Status OpenJournal() { return PipelineJournal::Open(setup_.folder + "/a", &clock_, setup_.options).status(); }

  std::function<void()> on_gone;        // of what has served
  std::function<void()> before_action;  // of a training run; changed only while none runs
  std::function<void()> before_commit;  // of calls to the journal, on its thread; changed only while there is none

 private:
  // What goes with the process.
  struct Life {
    explicit Life(JournalledEngine& engine)
        : memory(engine.memory_bytes),
          timers(&engine.clock_),
          handles({}, &engine.clock_, &timers),
          pool({{"cpu:0", {0}}, {"cpu:1", {0}}}, DevicePool::Mode::kThreads),
          checkpoints(CheckpointStore::Open(&engine.files, &engine.clock_, "/state", &quota).value()) {
      PipelineBuilder::Options options;
      options.factory.create = [&engine](const PipelineSpec& spec, Pipeline::Options made) {
        made.before_action = [&engine](const Action&) {
          if (engine.before_action) engine.before_action();
        };
        return Pipeline::Create(spec, std::move(made));
      };
      options.devices = &pool;
      options.handles = &handles;
      options.timers = &timers;
      options.clock = &engine.clock_;
      options.checkpoints = checkpoints.get();
      options.journal = &engine.setup_;
      options.memory = &memory;
      options.hosting.journal_limits = engine.limits_;
      options.hosting.request_log_entries = engine.request_log_entries;
      builder = std::make_unique<PipelineBuilder>(options);
    }
    ~Life() {
      hosted.reset();
      handles.Close();
    }

    MemoryLedger memory;
    TimerQueue timers;
    HandleStore handles;
    DevicePool pool;
    CheckpointQuota quota{int64_t{1} << 40};
    std::unique_ptr<CheckpointStore> checkpoints;
    std::unique_ptr<PipelineBuilder> builder;
    std::shared_ptr<ServedPipeline> hosted;
  };

  static void CHECK_OK(const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; }
  static PipelineRecipe Recipe() {
    PipelineRecipe recipe;
    recipe.spec = ServedSpec();
    recipe.spec_digest = "d";
    recipe.describe = [](const Plan&, const ModelSpec&, const OptimizerSpec&) { return std::string("spec"); };
    return recipe;
  }

  const AutomaticCheckpoints::Limits limits_;
  FakeClock clock_;
  KeptRecords records_;
  JournalSetup setup_;
  bool made_ = false;
  std::unique_ptr<Life> life_;
};

}  // namespace penstock::testing
