// The table of pipelines over a restart of the daemon.

#include <ATen/ops/ones.h>

#include "absl/strings/str_cat.h"
#include "tests/unit/serve/journalled_table.h"

namespace penstock {
namespace {

class PipelineRecoveryTest : public testing::JournalledTable {};

TEST_F(PipelineRecoveryTest, ACreationOfALifeBeforeIsKnownByItsRequestIdAndItsPayload) {
  ASSERT_TRUE(Create("gpt", "first", "one").ok());
  ASSERT_TRUE(Restart().ok());
  EXPECT_TRUE(Create("gpt", "first", "one").ok()) << "a retry of what was made";
  EXPECT_EQ(ReasonOf(Create("gpt", "second", "one").status()), "PIPELINE_EXISTS");
  ASSERT_TRUE(Restart().ok());
  EXPECT_EQ(ReasonOf(Create("other", "first", "another").status()), "REQUEST_ID_REUSED");
}

TEST_F(PipelineRecoveryTest, JournalsOfPipelinesThatAreNotThereGo) {
  ASSERT_TRUE(Create("gpt").ok());
  const std::string own = absl::StrCat(setup_.folder, "/", table_->Get("gpt")->life);
  const std::string left = setup_.folder + "/0123456789abcdef";
  const std::string foreign = setup_.folder + "/notes";
  for (const std::string& folder : {left, foreign}) ASSERT_TRUE(RealFileSystem()->CreateDirectories(folder).ok());
  ASSERT_TRUE(Restart().ok());
  EXPECT_FALSE(RealFileSystem()->Exists(left));
  EXPECT_TRUE(RealFileSystem()->Exists(own));
  EXPECT_TRUE(RealFileSystem()->Exists(foreign));
}

TEST_F(PipelineRecoveryTest, AutomaticCheckpointsOfPipelinesThatAreNotThereGo) {
  ASSERT_TRUE(Create("gpt").ok());
  const auto save = [&](const char* id, const std::string& life, bool automatic) {
    const CheckpointPlace place{.life = life, .sequence = 1, .whole = true, .automatic = automatic};
    ASSERT_TRUE(checkpoints_->FindFolder("gpt")->Save(id, {.place = place}, {{"weight", at::ones({1})}}).ok());
  };
  save("auto-1", "0123456789abcdef", true);  // its pipeline was deleted when the process ended
  save("auto-2", table_->Get("gpt")->life, true);
  save("kept", "0123456789abcdef", false);
  ASSERT_TRUE(Restart().ok());
  EXPECT_FALSE(checkpoints_->Find("gpt", "auto-1").ok());
  EXPECT_TRUE(checkpoints_->Find("gpt", "auto-2").ok());
  EXPECT_TRUE(checkpoints_->Find("gpt", "kept").ok());
}

TEST_F(PipelineRecoveryTest, ADeletionThatIsNotRecordedPurgesNothing) {
  testing::UnsyncedDisk disk;
  ASSERT_TRUE(disk.CreateDirectories("/state").ok());
  open_journal_ = [&] {
    return DaemonJournal::Open("/state/journal", &clock_, {.files = &disk, .vfs = disk.vfs()}).value();
  };
  End();
  Begin();
  ASSERT_TRUE(Create("gpt").ok());
  ASSERT_TRUE(checkpoints_->FindFolder("gpt")->Save("kept", {}, {{"weight", at::ones({1})}}).ok());
  disk.FailSync(0);
  absl::Status deleted;
  absl::Notification done;
  table_->Delete({.caller = "ann"}, "gpt", /*force=*/false, /*purge=*/true, [&](const absl::Status& status) {
    deleted = status;
    done.Notify();
  });
  done.WaitForNotification();
  EXPECT_EQ(ReasonOf(deleted), "JOURNAL_STOPPED");
  EXPECT_TRUE(checkpoints_->Find("gpt", "kept").ok()) << "the next start makes it again";
  End();  // before its disk goes
}

TEST_F(PipelineRecoveryTest, ADeletedPipelineKeepsTheCheckpointsOfItsCallersAndNotThoseOfItsJournal) {
  ASSERT_TRUE(Create("gpt").ok());
  const std::string life = table_->Get("gpt")->life;
  const std::shared_ptr<CheckpointFolder> folder = checkpoints_->FindFolder("gpt");
  const NamedTensors state = {{"weight", at::ones({1})}};
  ASSERT_TRUE(
      folder->Save("auto-1", {.place = {.life = life, .sequence = 1, .whole = true, .automatic = true}}, state).ok());
  ASSERT_TRUE(folder->Save("kept", {.place = {.life = life, .sequence = 1}}, state).ok());
  absl::Status deleted;
  absl::Notification done;
  table_->Delete({.caller = "ann"}, "gpt", /*force=*/false, /*purge=*/false, [&](const absl::Status& status) {
    deleted = status;
    done.Notify();
  });
  done.WaitForNotification();
  ASSERT_TRUE(deleted.ok()) << deleted;
  EXPECT_TRUE(folder->Find("kept").ok());
  EXPECT_FALSE(folder->Find("auto-1").ok());
}

}  // namespace
}  // namespace penstock
