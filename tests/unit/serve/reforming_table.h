#pragma once

// A table whose pipelines stand on two ranks in this process, of which the second may be lost, and a client that asks
// again.

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/timer_queue.h"
#include "engine/checkpoint/checkpoint_store.h"
#include "engine/journal/daemon_journal.h"
#include "engine/serve/pipeline_table.h"
#include "tests/support/fake_clock.h"
#include "tests/support/group_in_process.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/serve/journalled_engine.h"

namespace penstock::testing {

// One life of a daemon over a group.
class ReformingTable {
 public:
  explicit ReformingTable(bool with_journal = true) : with_journal_(with_journal) {
    setup_ = {.folder = folder_.path() + "/journal", .records = &records_};
    setup_.recipe = [](const std::string&) -> absl::StatusOr<PipelineRecipe> { return Recipe(); };
    Begin();
  }
  ~ReformingTable() {
    End();
    handles_.Close();
  }
  void Begin() {
    if (with_journal_) journal_ = DaemonJournal::Open(setup_.folder, &clock_, {}).value();
    checkpoints_ = CheckpointStore::Open(RealFileSystem(), &clock_, folder_.path(), nullptr).value();
    PipelineTable::Options options;
    options.builder.factory.create = [this](const PipelineSpec& spec, Pipeline::Options made) {
      if (before_create) before_create();
      made.before_action = [this](const Action&) {
        if (until_.fetch_sub(1) == 0) LoseUnderway();
      };
      Pipeline::Options over = group.Options(std::move(made));
      over.edits.plan = [](Plan& plan) { plan.stages[1].rank = Rank(1); };
      ++builds;
      return Pipeline::Create(spec, std::move(over));
    };
    options.builder.devices = &group.devices();
    options.builder.group = &group;
    options.builder.handles = &handles_;
    options.builder.timers = &timers_;
    options.builder.clock = &clock_;
    options.builder.checkpoints = checkpoints_.get();
    if (with_journal_) options.builder.journal = &setup_;
    options.max_pipelines = 3;
    options.journal = journal_.get();
    table_ = std::make_unique<PipelineTable>(std::move(options));
  }
  void End() {
    table_.reset();
    checkpoints_.reset();
    journal_.reset();
  }
  // The next life, with the pipelines of the one before.
  void Restart() {
    End();
    Begin();
    absl::Notification done;
    ASSERT_TRUE(table_->Recover([&] { done.Notify(); }).ok());
    done.WaitForNotification();
  }
  static PipelineRecipe Recipe() {
    PipelineRecipe recipe;
    recipe.spec = ServedSpec();
    recipe.spec_digest = "d";
    recipe.describe = [](const Plan&, const ModelSpec&, const OptimizerSpec&) { return std::string("spec"); };
    return recipe;
  }
  absl::Status Create(const std::string& name = "gpt") {
    return Wait([&](auto done) {
      table_->Create({.caller = "ann"}, name, Recipe(), nullptr,
                     [done](const absl::StatusOr<PipelineEntry>& made) { done(made.status()); });
    });
  }
  absl::Status Update() {
    return Wait([&](auto done) {
      table_->Update({.caller = "ann"}, "gpt", Recipe(), nullptr,
                     [done](const absl::StatusOr<PipelineEntry>& updated) { done(updated.status()); });
    });
  }
  absl::Status Publish(const std::string& checkpoint) {
    return Wait([&](auto done) {
      table_->Publish({.caller = "ann"}, "gpt", checkpoint, Recipe(),
                      [done](const absl::StatusOr<PipelineEntry>& published) { done(published.status()); });
    });
  }
  absl::Status Unload() {
    return Wait([&](auto done) {
      table_->Unload({.caller = "ann"}, "gpt",
                     [done](const absl::StatusOr<PipelineEntry>& unloaded) { done(unloaded.status()); });
    });
  }
  void StartDelete(std::function<void(absl::Status)> done) {
    table_->Delete({.caller = "ann"}, "gpt", /*force=*/true, /*purge=*/true, std::move(done));
  }
  absl::Status Delete() {
    return Wait([&](auto done) { StartDelete(done); });
  }
  static absl::Status Wait(const std::function<void(std::function<void(absl::Status)>)>& call) {
    absl::Status status;
    absl::Notification done;
    call([&](const absl::Status& answer) {
      status = answer;
      done.Notify();
    });
    done.WaitForNotification();
    return status;
  }

  // --- The group.

  // In the action of training that comes so many later, counted over all builds.
  void LoseAt(int action) { until_ = action; }
  bool lost() const { return lost_; }
  void Lose() {
    lost_ = true;
    group.Lose(Rank(1), /*missing_first=*/true);
  }
  // While a client calls Complete() as soon as a rank is missing.
  void LoseUnderway() {
    lost_ = true;
    group.Lose(Rank(1));
  }
  void Complete() {
    group.Complete();
    table_->OnGroupComplete();
  }
  // A lost one is shown as reforming before it is stopped.
  void AwaitStopped() const {
    while (table_->Get("gpt")->pipeline != nullptr) std::this_thread::yield();
  }
  void Await(PipelineEntry::State state) const {
    while (table_->Get("gpt")->state != state) std::this_thread::yield();
  }

  // --- The client, which makes a call until it has gone.

  static CallContext As(const std::string& id) {
    return {.caller = "ann", .request_id = id, .payload_digest = "d", .recorded_digest = "d"};
  }
  static InputSource Input(float value) { return {"input", at::full({4, kWidth}, value).cumsum(0).sin()}; }
  static ContributionCall Batch(float value) {
    ContributionCall call;
    call.inputs.push_back(Input(value));
    call.target = {"target", at::full({4, kWidth}, value).cumsum(1).cos()};
    return call;
  }
  using Make = std::function<absl::Status(ServedPipeline&)>;
  // Makes it once. The pipeline is not held when this returns.
  absl::Status Once(const Make& make) {
    absl::StatusOr<std::shared_ptr<ServedPipeline>> pipeline = table_->Find("gpt");
    return pipeline.ok() ? make(**pipeline) : pipeline.status();
  }
  absl::Status Insist(const Make& make) {
    while (true) {
      absl::Status done = Once(make);
      if (!absl::IsUnavailable(done)) return done;
      refusals.push_back(done);
      while (table_->Get("gpt")->state != PipelineEntry::State::kReady) {
        if (!group.complete()) Complete();
        std::this_thread::yield();
      }
    }
  }
  absl::Status Settled(const HandleName& name) {
    return Wait([&](auto done) {
      handles_.OnSettled("ann", {name}, HandleStore::WaitMode::kAll, std::numeric_limits<int64_t>::max(),
                         [done](const std::vector<HandleStore::HandleAnswer>& answers) {
                           done(answers[0].ok() ? answers[0]->error : answers[0].status());
                         });
    });
  }
  // The same of an inference, which may wait for a gap between steps by the clock: that goes on meanwhile.
  absl::Status SettledInTime(const HandleName& name) {
    absl::Status status;
    absl::Notification settled;
    handles_.OnSettled("ann", {name}, HandleStore::WaitMode::kAll, std::numeric_limits<int64_t>::max(),
                       [&](const std::vector<HandleStore::HandleAnswer>& answers) {
                         status = answers[0].ok() ? answers[0]->error : answers[0].status();
                         settled.Notify();
                       });
    while (!settled.WaitForNotificationWithTimeout(absl::Milliseconds(1))) clock_.AdvanceNanos(10'000'000);
    return status;
  }
  // The outcome goes to `outcomes`.
  absl::Status OutcomeOf(const absl::StatusOr<Accepted>& accepted) {
    if (absl::Status durable = JournalledEngine::Durable(accepted); !durable.ok()) return durable;
    if (absl::Status error = Settled(*accepted->outcome); !error.ok()) return error;
    outcomes.push_back(handles_.Pin("ann", *accepted->outcome)->outcome().value());
    return absl::OkStatus();
  }
  absl::Status TrainStep(const std::string& id, float value) {
    return Insist([&](ServedPipeline& gpt) { return OutcomeOf(gpt.TrainStep(As(id), Batch(value), {})); });
  }
  absl::Status Contribute(const std::string& id, float value) {
    return Insist([&](ServedPipeline& gpt) { return OutcomeOf(gpt.ForwardBackward(As(id), Batch(value))); });
  }
  absl::Status OptimizerStep(const std::string& id) {
    return Insist([&](ServedPipeline& gpt) { return OutcomeOf(gpt.OptimizerStep(As(id), {})); });
  }
  absl::Status Forward(const std::string& id, float value) {
    return Insist([&](ServedPipeline& gpt) {
      ForwardCall call;
      call.inputs.push_back(Input(value));
      const absl::StatusOr<Accepted> accepted = gpt.Forward(As(id), std::move(call));
      if (absl::Status durable = JournalledEngine::Durable(accepted); !durable.ok()) return durable;
      graph = *accepted->graph;
      output = *accepted->outputs;
      return Settled(graph);
    });
  }
  // Of the forward of that id, which is asked for again where its graph is gone.
  absl::Status Backward(const std::string& id, const std::string& forward_id, float value) {
    while (true) {
      const absl::Status done = Insist([&](ServedPipeline& gpt) {
        BackwardCall call;
        call.graph = graph;
        const std::string name =
            gpt.pipeline().signature().outputs.empty() ? "output" : gpt.pipeline().signature().outputs[0].name;
        call.gradients.push_back({name, at::full({4, kWidth}, value)});
        return OutcomeOf(gpt.Backward(As(id), std::move(call)));
      });
      if (ReasonOf(done) != "GRAPH_STALE") return done;
      if (absl::Status again = Forward(forward_id, value); !again.ok()) return again;
    }
  }
  absl::Status Save(const std::string& id) {
    return Insist([&](ServedPipeline& gpt) {
      return Wait([&](auto done) {
        gpt.SaveCheckpoint(As(id), {.id = id},
                           [done](const absl::StatusOr<StateAnswer>& saved) { done(saved.status()); });
      });
    });
  }
  absl::StatusOr<Accepted> StartInfer(float value) {
    absl::StatusOr<std::shared_ptr<ServedPipeline>> gpt = table_->Find("gpt");
    if (!gpt.ok()) return gpt.status();
    InferCall call;
    call.inputs.push_back(Input(value));
    return (*gpt)->Infer({.caller = "ann"}, std::move(call));
  }
  NamedTensors State() {
    NamedTensors tensors;
    const absl::Status read = Insist([&](ServedPipeline& gpt) {
      return Wait([&](auto done) {
        gpt.ReadParameters({.caller = "ann"},
                           {.content = ReadContent::kWithOptimizer,
                            .done =
                                [&tensors, done](const absl::StatusOr<std::shared_ptr<const ParameterSnapshot>>& read) {
                                  if (read.ok()) tensors = (*read)->tensors;
                                  done(read.status());
                                }},
                           std::make_shared<CancelToken>());
      });
    });
    EXPECT_TRUE(read.ok()) << read;
    return tensors;
  }

  PipelineTable& table() const { return *table_; }
  CheckpointStore& checkpoints() const { return *checkpoints_; }

  GroupInProcess group{2, {{"cpu:0", {0}}, {"cpu:1", {0}}}};
  std::function<void()> before_create;  // changed only while none is made
  std::atomic<int> builds = 0;
  std::vector<CallOutcome> outcomes;
  std::vector<absl::Status> refusals;  // what was asked again
  HandleName graph;
  HandleName output;

 private:
  const bool with_journal_;
  TemporaryFolder folder_;
  FakeClock clock_;
  KeptRecords records_;
  JournalSetup setup_;
  TimerQueue timers_{&clock_};
  HandleStore handles_{{}, &clock_, &timers_};
  std::atomic<int> until_ = -1;
  std::atomic<bool> lost_ = false;
  std::unique_ptr<DaemonJournal> journal_;
  std::unique_ptr<CheckpointStore> checkpoints_;
  std::unique_ptr<PipelineTable> table_;
};

}  // namespace penstock::testing
