#pragma once

// A table of pipelines with journals, on the machine's disk.

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/synchronization/notification.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/timer_queue.h"
#include "engine/checkpoint/checkpoint_store.h"
#include "engine/journal/daemon_journal.h"
#include "engine/ledger/memory_ledger.h"
#include "engine/observe/metrics_registry.h"
#include "engine/plan/planning.h"
#include "engine/serve/pipeline_table.h"
#include "tests/support/fake_clock.h"
#include "tests/support/fake_pipeline.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/serve/journalled_engine.h"

namespace penstock::testing {

// Fake pipelines, over the lives of the daemon's process.
class JournalledTable : public ::testing::Test {
 protected:
  JournalledTable() {
    setup_ = {.folder = state_ + "/journal", .records = &records_};
    setup_.recipe = [](const std::string&) -> absl::StatusOr<PipelineRecipe> { return Recipe(); };
    Begin();
  }
  ~JournalledTable() override {
    End();
    handles_.Close();
  }
  void Begin() {
    journal_ = open_journal_();
    checkpoints_ = CheckpointStore::Open(RealFileSystem(), &clock_, state_, nullptr).value();
    PipelineTable::Options options;
    options.builder.factory.create = [this](const PipelineSpec&,
                                            Pipeline::Options engine) -> absl::StatusOr<std::unique_ptr<Pipeline>> {
      if (before_create_) before_create_();
      auto pipeline = std::make_unique<FakePipeline>(control_);
      if (engine.metrics) engine.metrics(pipeline->plan());
      return pipeline;
    };
    options.builder.factory.load = [](ModelSpec*, const std::string&) { return absl::OkStatus(); };
    options.builder.handles = &handles_;
    options.builder.timers = &timers_;
    options.builder.clock = &clock_;
    options.builder.metrics = &registry_;
    options.builder.checkpoints = checkpoints_.get();
    options.builder.memory = &memory_;
    options.builder.journal = &setup_;
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
  absl::Status Restart() {
    End();
    Begin();
    absl::Notification done;
    const absl::Status recovered = table_->Recover([&] { done.Notify(); });
    if (recovered.ok()) done.WaitForNotification();
    return recovered;
  }
  static PipelineRecipe Recipe() {
    PipelineRecipe recipe;
    recipe.spec.model.name = "fake";
    recipe.spec.sample = std::make_shared<const PlanningSample>();
    recipe.spec_digest = "digest";
    return recipe;
  }
  absl::StatusOr<PipelineEntry> Create(const std::string& name, const std::string& request_id = "",
                                       const std::string& payload_digest = "") {
    absl::StatusOr<PipelineEntry> made;
    absl::Notification done;
    table_->Create({.caller = "ann", .request_id = request_id, .payload_digest = payload_digest}, name, Recipe(),
                   nullptr, [&](absl::StatusOr<PipelineEntry> entry) {
                     made = std::move(entry);
                     done.Notify();
                   });
    done.WaitForNotification();
    return made;
  }

  TemporaryFolder state_place_;
  const std::string state_ = state_place_.path();
  FakeClock clock_;
  KeptRecords records_;
  MemoryLedger memory_{int64_t{1} << 20};
  MetricsRegistry registry_{&clock_, /*trace_events=*/0};
  TimerQueue timers_{&clock_};
  HandleStore handles_{{}, &clock_, &timers_};
  const std::shared_ptr<FakePipelineControl> control_ = std::make_shared<FakePipelineControl>();
  JournalSetup setup_;
  std::function<void()> before_create_;  // of an engine; changed only while none is made
  std::function<std::unique_ptr<DaemonJournal>()> open_journal_ = [this] {
    return DaemonJournal::Open(setup_.folder, &clock_, {}).value();
  };
  std::unique_ptr<DaemonJournal> journal_;
  std::unique_ptr<CheckpointStore> checkpoints_;
  std::unique_ptr<PipelineTable> table_;
};

}  // namespace penstock::testing
