// Pipelines that stand on disk alone, through the table, with fake engines.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "tests/unit/serve/journalled_table.h"

namespace penstock {
namespace {

using State = PipelineEntry::State;

// The one creation of an engine in its life waits.
class HeldCreation {
 public:
  explicit HeldCreation(std::function<void()>& before_create) : before_create_(before_create) {
    before_create_ = [this] {
      begun_.Notify();
      go_on_.WaitForNotification();
    };
  }
  ~HeldCreation() { before_create_ = nullptr; }
  HeldCreation(const HeldCreation&) = delete;
  HeldCreation& operator=(const HeldCreation&) = delete;
  void AwaitBegun() { begun_.WaitForNotification(); }
  void GoOn() { go_on_.Notify(); }

 private:
  std::function<void()>& before_create_;
  absl::Notification begun_;
  absl::Notification go_on_;
};

class PipelineUnloadingTest : public testing::JournalledTable {
 protected:
  using Change = void (PipelineTable::*)(CallContext, std::string, PipelineTable::UpdateCallback);
  absl::StatusOr<PipelineEntry> Run(Change change, const std::string& request_id = "") {
    absl::StatusOr<PipelineEntry> answer;
    absl::Notification done;
    (table_.get()->*change)({.caller = "ann", .request_id = request_id}, "gpt", [&](auto entry) {
      answer = std::move(entry);
      done.Notify();
    });
    done.WaitForNotification();
    return answer;
  }
  absl::StatusOr<PipelineEntry> Unload(const std::string& request_id = "") {
    return Run(&PipelineTable::Unload, request_id);
  }
  absl::StatusOr<PipelineEntry> Load(const std::string& request_id = "") {
    return Run(&PipelineTable::Load, request_id);
  }
  absl::Status Delete(const std::string& request_id = "") {
    absl::Status deleted;
    absl::Notification done;
    table_->Delete({.caller = "ann", .request_id = request_id}, "gpt", /*force=*/false, /*purge=*/false,
                   [&](const absl::Status& status) {
                     deleted = status;
                     done.Notify();
                   });
    done.WaitForNotification();
    return deleted;
  }
  State Now() { return table_->Get("gpt")->state; }
};

TEST_F(PipelineUnloadingTest, ItIsDestroyedAndMadeAgainAndEachTwiceIsOnce) {
  ASSERT_TRUE(Create("gpt").ok());
  const std::weak_ptr<ServedPipeline> first = *table_->Find("gpt");
  for (int i = 0; i < 2; ++i) {
    const auto unloaded = Unload();
    ASSERT_TRUE(unloaded.ok()) << unloaded.status();
    EXPECT_EQ(unloaded->state, State::kUnloaded);
    EXPECT_EQ(unloaded->pipeline, nullptr);
  }
  EXPECT_TRUE(first.expired());
  EXPECT_EQ(ReasonOf(table_->Find("gpt").status()), "PIPELINE_NOT_READY");
  EXPECT_EQ(journal_->Unloads()->size(), 1u);
  EXPECT_EQ(table_->Get("gpt")->spec.model.name, "fake");
  for (int i = 0; i < 2; ++i) {
    const auto loaded = Load();
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(loaded->state, State::kReady);
    EXPECT_NE(loaded->pipeline, nullptr);
  }
  EXPECT_TRUE(journal_->Unloads()->empty());
}

TEST_F(PipelineUnloadingTest, ARestartLeavesItAndARetryOfWhatIsDoneChangesNothing) {
  ASSERT_TRUE(Create("gpt").ok());
  ASSERT_TRUE(Unload("one").ok());
  ASSERT_TRUE(Restart().ok());
  EXPECT_EQ(Now(), State::kUnloaded);
  EXPECT_EQ(table_->Get("gpt")->spec.model.name, "fake");
  ASSERT_TRUE(Load("two").ok());
  EXPECT_EQ(Unload("one")->state, State::kReady);
  ASSERT_TRUE(Restart().ok());
  EXPECT_EQ(Now(), State::kReady);
  EXPECT_EQ(Unload("one")->state, State::kReady);
  ASSERT_TRUE(Unload("three").ok());
  EXPECT_EQ(Load("two")->state, State::kUnloaded);
}

TEST_F(PipelineUnloadingTest, OneThatCanNotBeMadeStaysUnloaded) {
  ASSERT_TRUE(Create("gpt").ok());
  ASSERT_TRUE(Unload().ok());
  const auto recipe = std::exchange(setup_.recipe, [](const std::string&) -> absl::StatusOr<PipelineRecipe> {
    return Error(absl::StatusCode::kResourceExhausted, "HOST_MEMORY", "no room");
  });
  EXPECT_EQ(ReasonOf(Load("one").status()), "HOST_MEMORY");
  EXPECT_EQ(Now(), State::kUnloaded);
  EXPECT_EQ(journal_->Unloads()->size(), 1u);
  setup_.recipe = recipe;
  EXPECT_TRUE(Load("one").ok()) << "a failure is not remembered";
}

TEST_F(PipelineUnloadingTest, DeletionAndCreationWhileItIsUnloaded) {
  ASSERT_TRUE(Create("gpt").ok());
  ASSERT_TRUE(Unload().ok());
  EXPECT_EQ(ReasonOf(Create("gpt").status()), "PIPELINE_EXISTS");
  EXPECT_TRUE(Delete().ok());
  EXPECT_EQ(ReasonOf(Load().status()), "PIPELINE_NOT_FOUND");
  EXPECT_TRUE(journal_->Unloads()->empty());
  ASSERT_TRUE(Create("gpt").ok());
  ASSERT_TRUE(Restart().ok());
  EXPECT_EQ(Now(), State::kReady);
}

TEST_F(PipelineUnloadingTest, ARetryOfWhatFoundItDoneChangesNothing) {
  ASSERT_TRUE(Create("gpt").ok());
  EXPECT_EQ(Load("two")->state, State::kReady);
  ASSERT_TRUE(Unload().ok());
  EXPECT_EQ(Load("two")->state, State::kUnloaded);
  EXPECT_EQ(Now(), State::kUnloaded);
  EXPECT_EQ(Unload("one")->state, State::kUnloaded);
  const std::weak_ptr<ServedPipeline> loaded = Load()->pipeline;
  EXPECT_EQ(Unload("one")->state, State::kReady);
  EXPECT_EQ(Now(), State::kReady);
  EXPECT_EQ(Load("three")->state, State::kReady);
  ASSERT_TRUE(Unload().ok());
  EXPECT_TRUE(loaded.expired()) << "what is remembered keeps nothing";
}

// Of any call, in this life or after a restart.
TEST_F(PipelineUnloadingTest, ARetryFindsThePipelineOfThatNameAsItIsNow) {
  ASSERT_TRUE(Create("gpt").ok());
  ASSERT_TRUE(Unload("unload").ok());
  ASSERT_TRUE(Load("load").ok());
  ASSERT_TRUE(Delete("delete").ok());
  const auto retries_find = [this](const std::optional<State>& now) {
    for (const bool restarted : {false, true}) {
      if (restarted) {
        ASSERT_TRUE(Restart().ok());
      }
      for (const absl::StatusOr<PipelineEntry>& retry : {Unload("unload"), Load("load")}) {
        if (now.has_value()) {
          ASSERT_TRUE(retry.ok()) << retry.status();
          EXPECT_EQ(retry->state, *now);
        } else {
          EXPECT_EQ(ReasonOf(retry.status()), "PIPELINE_NOT_FOUND") << restarted;
        }
      }
      EXPECT_TRUE(Delete("delete").ok());
    }
  };
  retries_find(std::nullopt);
  ASSERT_TRUE(Create("gpt").ok());
  retries_find(State::kReady);
  ASSERT_TRUE(Unload().ok());
  retries_find(State::kUnloaded);
}

TEST_F(PipelineUnloadingTest, ARetryOfWhatJoinedAnotherCallChangesNothing) {
  ASSERT_TRUE(Create("gpt").ok());
  ASSERT_TRUE(Unload().ok());
  HeldCreation held(before_create_);
  Thread first("first", [&] { EXPECT_TRUE(Load("one").ok()); });
  held.AwaitBegun();
  absl::Notification joined;
  table_->Load({.caller = "ann", .request_id = "two"}, "gpt", [&](const absl::StatusOr<PipelineEntry>& entry) {
    EXPECT_EQ(entry->state, State::kReady);
    joined.Notify();
  });
  held.GoOn();
  joined.WaitForNotification();
  first.Join();
  ASSERT_TRUE(Unload().ok());
  EXPECT_EQ(Load("two")->state, State::kUnloaded);
  EXPECT_EQ(Now(), State::kUnloaded);
}

TEST_F(PipelineUnloadingTest, OneThatIsBeingCreatedIsNotReady) {
  HeldCreation held(before_create_);
  Thread creation("creation", [&] { EXPECT_TRUE(Create("gpt").ok()); });
  held.AwaitBegun();
  const absl::Status refused = Unload().status();
  EXPECT_EQ(ReasonOf(refused), "PIPELINE_NOT_READY") << refused;
  EXPECT_NE(std::string(refused.message()).find("is being created"), std::string::npos) << refused;
  held.GoOn();
  creation.Join();
}

TEST_F(PipelineUnloadingTest, ADrainRefusesBoth) {
  ASSERT_TRUE(Create("gpt").ok());
  table_->Drain([] {});
  EXPECT_EQ(ReasonOf(Unload().status()), "DRAINING");
  table_->Resume();
  ASSERT_TRUE(Unload().ok());
  table_->Drain([] {});
  EXPECT_EQ(ReasonOf(Load().status()), "DRAINING");
  table_->Resume();
  EXPECT_EQ(Now(), State::kUnloaded);
  EXPECT_TRUE(Load().ok());
}

// The journal of the daemon can't be written: each change is as if it had not been asked for.
TEST_F(PipelineUnloadingTest, WhatIsNotRecordedIsNotDone) {
  testing::UnsyncedDisk disk;
  ASSERT_TRUE(disk.CreateDirectories("/state").ok());
  open_journal_ = [&] {
    return DaemonJournal::Open("/state/journal", &clock_, {.files = &disk, .vfs = disk.vfs()}).value();
  };
  End();
  Begin();
  ASSERT_TRUE(Create("gpt").ok());
  disk.FailSync(0);
  EXPECT_EQ(ReasonOf(Unload().status()), "JOURNAL_STOPPED");
  EXPECT_EQ(Now(), State::kReady);
  EXPECT_TRUE(table_->Find("gpt").ok());
  End();  // before its disk goes
}

}  // namespace
}  // namespace penstock
