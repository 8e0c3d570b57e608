#include "engine/checkpoint/checkpoint_file.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/checkpoint/checkpoint_manifest.h"
#include "engine/checkpoint/checkpoint_quota.h"
#include "engine/checkpoint/checkpoint_store.h"
#include "engine/checkpoint/epoch_file.h"
#include "tests/support/fake_clock.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/temporary_folder.h"

namespace penstock::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class CheckpointTest : public ::testing::Test {
 protected:
  std::unique_ptr<CheckpointFolder> Open() {
    auto folder = CheckpointFolder::Open(&files_, &clock_, temporary_.path(), "gpt");
    EXPECT_TRUE(folder.ok()) << folder.status();
    return folder.ok() ? *std::move(folder) : nullptr;
  }
  static NamedTensors State(float value) {
    return {{"0.weight", at::full({3, 2}, value)}, {"optimizer/0.weight/step", at::full({}, 5)}};
  }
  std::string Folder() const { return temporary_.path() + "/pipelines/gpt/checkpoints"; }
  std::vector<std::string> OnDisk() const { return *RealFileSystem()->List(Folder()); }
  static std::string ReadFile(const std::string& path) { return *RealFileSystem()->Read(path); }
  static void WriteFile(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
  }

  TemporaryFolder temporary_;
  FakeClock clock_;
  FaultyFileSystem files_{RealFileSystem()};
};

TEST_F(CheckpointTest, ComesBackAfterARestartAsItWasSaved) {
  ASSERT_TRUE(Open()->Save("first", {.step = 12, .spec_digest = "digest"}, State(1.5)).ok());
  const auto folder = Open();
  ASSERT_EQ(folder->List().size(), 1);
  EXPECT_EQ(folder->List()[0].id, "first");
  EXPECT_EQ(folder->List()[0].step, 12);
  EXPECT_THAT(folder->List()[0].digest, ::testing::MatchesRegex("crc32c:[0-9a-f]{8}"));
  const absl::StatusOr<LoadedCheckpoint> loaded = folder->Load("first");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->info.spec_digest, "digest");
  ASSERT_EQ(loaded->state.size(), 2);
  EXPECT_EQ(loaded->state[0].name, "0.weight");
  EXPECT_TRUE(at::equal(loaded->state[0].tensor, State(1.5)[0].tensor));
}

TEST_F(CheckpointTest, NamesAreCheckedAndTakenOnce) {
  const auto folder = Open();
  ASSERT_TRUE(folder->Save("first", {.step = 1, .spec_digest = "d"}, State(1)).ok());
  const absl::Status again = folder->Save("first", {.step = 2, .spec_digest = "d"}, State(2)).status();
  EXPECT_EQ(ReasonOf(again), "CHECKPOINT_EXISTS");
  EXPECT_EQ(ValuesOf(again)["checkpoint"], "first");
  EXPECT_EQ(folder->Load("first")->info.step, 1);
  EXPECT_EQ(ReasonOf(folder->Load("other").status()), "CHECKPOINT_NOT_FOUND");
  for (const char* bad : {"", "..", "../x", "A", "a/b", "-a", "a-"}) {
    EXPECT_EQ(ReasonOf(folder->Save(bad, {.step = 1, .spec_digest = "d"}, State(1)).status()), "NAME_INVALID") << bad;
  }
}

// Every byte of both files, flipped or cut away.
TEST_F(CheckpointTest, AnyDamageIsFoundAndNamedAndTheOthersStillLoad) {
  auto folder = Open();
  ASSERT_TRUE(folder->Save("good", {.step = 1, .spec_digest = "d"}, State(1)).ok());
  ASSERT_TRUE(folder->Save("bad", {.step = 2, .spec_digest = "d"}, State(2)).ok());
  for (const std::string file : {"/state.safetensors", "/manifest.json"}) {
    const std::string path = Folder() + "/bad" + file;
    const std::string whole = ReadFile(path);
    const auto expect_corrupt = [&](const std::string& bytes, size_t at) {
      WriteFile(path, bytes);
      const absl::Status status = folder->Load("bad").status();
      ASSERT_EQ(ReasonOf(status), "CHECKPOINT_CORRUPT") << file << " at " << at << ": " << status;
      ASSERT_EQ(ValuesOf(status)["checkpoint"], "bad");
      ASSERT_EQ(status.message().find(temporary_.path()), std::string::npos);
    };
    for (size_t i = 0; i < whole.size(); ++i) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(damaged[i] ^ 1);
      expect_corrupt(damaged, i);
      expect_corrupt(whole.substr(0, i), i);
    }
    expect_corrupt(whole + " ", whole.size());
    std::filesystem::remove(path);
    EXPECT_EQ(ReasonOf(folder->Load("bad").status()), "CHECKPOINT_CORRUPT");
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    EXPECT_EQ(ReasonOf(folder->Load("bad").status()), "CHECKPOINT_CORRUPT") << "nobody writes the pipe";
    EXPECT_NE(Open()->List().at(0).damage, "");
    std::filesystem::remove(path);
    WriteFile(path, whole);
    EXPECT_TRUE(folder->Load("bad").ok());
  }
  EXPECT_TRUE(folder->Load("good").ok());
  WriteFile(Folder() + "/bad/manifest.json", "{}");
  folder = Open();
  EXPECT_EQ(folder->List().size(), 2) << "a damaged one is shown";
  EXPECT_EQ(ReasonOf(folder->Load("bad").status()), "CHECKPOINT_CORRUPT");
}

TEST_F(CheckpointTest, AFullDiskIsToldAndLeavesNoDebris) {
  const auto folder = Open();
  ASSERT_TRUE(folder->Save("first", {.step = 1, .spec_digest = "d"}, State(1)).ok());
  const auto whole = static_cast<int64_t>(ReadFile(Folder() + "/first/state.safetensors").size() +
                                          ReadFile(Folder() + "/first/manifest.json").size());
  for (const int64_t room : {int64_t{0}, int64_t{7}, int64_t{100}, whole / 2, whole - 1}) {
    files_.SetFreeBytes(room);
    const absl::Status status = folder->Save("second", {.step = 2, .spec_digest = "d"}, State(2)).status();
    EXPECT_EQ(ReasonOf(status), "STORAGE_FULL") << room;
    EXPECT_EQ(ValuesOf(status)["checkpoint"], "second");
    EXPECT_THAT(OnDisk(), ElementsAre("first"));
  }
  files_.SetFreeBytes(-1);
  EXPECT_TRUE(folder->Load("first").ok());
  EXPECT_TRUE(folder->Save("second", {.step = 2, .spec_digest = "d"}, State(2)).ok());
}

TEST_F(CheckpointTest, FailedSyncsAndRenamesLeaveNoDebris) {
  const auto folder = Open();
  for (int in = 0; in < 2; ++in) {
    files_.FailSync(in);
    EXPECT_FALSE(folder->Save("a", {.step = 1, .spec_digest = "d"}, State(1)).ok());
    EXPECT_THAT(OnDisk(), IsEmpty());
  }
  files_.FailSync(-1);
  // Also a rename that has happened: what nobody was told of must not come back with the next start.
  for (const auto fault : {FaultyFileSystem::RenameFault::kNotDone, FaultyFileSystem::RenameFault::kNotDurable}) {
    for (int in = 0; in < 2; ++in) {
      files_.FailRename(in, fault);
      EXPECT_FALSE(folder->Save("a", {.step = 1, .spec_digest = "d"}, State(1)).ok());
      EXPECT_THAT(OnDisk(), IsEmpty());
      EXPECT_THAT(folder->List(), IsEmpty());
      EXPECT_THAT(Open()->List(), IsEmpty());
    }
  }
  files_.FailRename(-1);
  EXPECT_TRUE(folder->Save("a", {.step = 1, .spec_digest = "d"}, State(1)).ok()) << "the name is free";
}

TEST_F(CheckpointTest, DyingAtAnyChangeOfTheDiskLeavesAWholeCheckpointOrNone) {
  {
    const auto folder = Open();
    ASSERT_TRUE(folder->Save("first", {.step = 1, .spec_digest = "d"}, State(1)).ok());
  }
  bool saved = false;
  int deaths = 0;
  for (int64_t in = 0; !saved; ++in) {
    auto folder = Open();
    files_.DieBeforeChange(in);
    saved = folder->Save("second", {.step = 2, .spec_digest = "d"}, State(2)).ok();
    deaths += saved ? 0 : 1;
    files_.DieBeforeChange(-1);
    folder = Open();  // the restart
    EXPECT_TRUE(folder->Load("first").ok());
    if (saved) {
      EXPECT_THAT(OnDisk(), ElementsAre("first", "second"));
      EXPECT_TRUE(folder->Load("second").ok());
    } else {
      EXPECT_THAT(OnDisk(), ElementsAre("first")) << "died before change " << in;
    }
  }
  EXPECT_GT(deaths, 8);
}

TEST_F(CheckpointTest, ARenameThatHappensButIsNotSyncedLeavesNoDebris) {
  const auto folder = Open();
  for (int in = 0; in < 2; ++in) {
    files_.FailRename(in, FaultyFileSystem::RenameFault::kNotDurable);
    EXPECT_FALSE(folder->Save("a", {.step = 1, .spec_digest = "d"}, State(1)).ok());
    EXPECT_THAT(OnDisk(), IsEmpty());
    EXPECT_THAT(folder->List(), IsEmpty());
  }
}

TEST_F(CheckpointTest, ADamagedOneIsListedAsSuchOnceItIsKnown) {
  auto folder = Open();
  ASSERT_TRUE(folder->Save("mine", {.step = 1, .spec_digest = "d"}, State(1)).ok());
  const std::string path = Folder() + "/mine/state.safetensors";
  const std::string whole = ReadFile(path);
  std::string flipped = whole;
  flipped.back() = static_cast<char>(flipped.back() ^ 1);
  const auto damage = [&] { return folder->List().at(0).damage; };

  WriteFile(path, flipped);
  const absl::Status corrupt = folder->Load("mine").status();
  EXPECT_EQ(ReasonOf(corrupt), "CHECKPOINT_CORRUPT");
  EXPECT_EQ(std::string(corrupt.message()),
            "checkpoint mine is damaged: state.safetensors does not match its checksum");
  EXPECT_EQ(damage(), "state.safetensors does not match its checksum") << "what a load has found is remembered";
  WriteFile(path, whole);
  EXPECT_TRUE(folder->Load("mine").ok());
  EXPECT_EQ(damage(), "");

  WriteFile(path, whole.substr(0, whole.size() - 1));
  folder = Open();
  EXPECT_EQ(damage(), absl::StrCat("state.safetensors must have ", whole.size(), " bytes, got ", whole.size() - 1));
  EXPECT_EQ(folder->List()[0].step, 1) << "what can be known";
  std::filesystem::remove(path);
  folder = Open();
  EXPECT_EQ(damage(), "state.safetensors is missing");
  WriteFile(path, whole);
  WriteFile(Folder() + "/mine/manifest.json", "{}");
  folder = Open();
  EXPECT_EQ(damage(), "manifest.json is not what was written");
  std::filesystem::remove(Folder() + "/mine/manifest.json");
  folder = Open();
  EXPECT_EQ(damage(), "manifest.json is missing");
}

TEST_F(CheckpointTest, RemovesOneAndFreesItsName) {
  const auto folder = Open();
  ASSERT_TRUE(folder->Save("first", {.step = 1, .spec_digest = "d"}, State(1)).ok());
  ASSERT_TRUE(folder->Save("second", {.step = 2, .spec_digest = "d"}, State(2)).ok());
  EXPECT_TRUE(folder->Remove("first").ok());
  EXPECT_THAT(OnDisk(), ElementsAre("second"));
  EXPECT_EQ(folder->List().size(), 1);
  EXPECT_EQ(ReasonOf(folder->Load("first").status()), "CHECKPOINT_NOT_FOUND");
  EXPECT_EQ(ReasonOf(folder->Remove("first")), "CHECKPOINT_NOT_FOUND");
  EXPECT_EQ(ReasonOf(folder->Remove("../second")), "CHECKPOINT_NOT_FOUND");
  EXPECT_TRUE(folder->Save("first", {.step = 3, .spec_digest = "d"}, State(3)).ok());
}

TEST_F(CheckpointTest, AFailedRemovalLeavesItWhole) {
  const auto folder = Open();
  ASSERT_TRUE(folder->Save("mine", {.step = 1, .spec_digest = "d"}, State(1)).ok());
  files_.FailRename(0);
  EXPECT_FALSE(folder->Remove("mine").ok());
  EXPECT_TRUE(folder->Load("mine").ok());
  files_.FailRename(-1);
  EXPECT_TRUE(folder->Remove("mine").ok());
}

TEST_F(CheckpointTest, ARemovalThatIsNotSyncedIsToldAndLeavesNothing) {
  const auto folder = Open();
  ASSERT_TRUE(folder->Save("mine", {.step = 1, .spec_digest = "d"}, State(1)).ok());
  files_.FailRename(0, FaultyFileSystem::RenameFault::kNotDurable);
  EXPECT_FALSE(folder->Remove("mine").ok());
  EXPECT_THAT(folder->List(), IsEmpty());
  EXPECT_THAT(OnDisk(), IsEmpty());
}

TEST_F(CheckpointTest, DyingAtAnyChangeOfARemovalLeavesAWholeCheckpointOrNone) {
  bool removed = false;
  int whole = 0;
  int gone = 0;
  for (int64_t in = 0; !removed; ++in) {
    auto folder = Open();
    if (folder->List().empty()) {
      ASSERT_TRUE(folder->Save("mine", {.step = 1, .spec_digest = "d"}, State(1)).ok());
    }
    files_.DieBeforeChange(in);
    removed = folder->Remove("mine").ok();
    files_.DieBeforeChange(-1);
    folder = Open();  // the restart
    if (folder->List().empty()) {
      EXPECT_THAT(OnDisk(), IsEmpty()) << "died before change " << in;
      ++gone;
    } else {
      EXPECT_TRUE(folder->Load("mine").ok()) << "died before change " << in;
      ++whole;
    }
  }
  EXPECT_EQ(whole, 2);  // before the rename
  EXPECT_EQ(gone, 2);   // before its files went, and done
}

TEST_F(CheckpointTest, TheQuotaIsForAllPipelinesAndRefusesBeforeAnythingIsWritten) {
  const auto bytes = Open()->Save("first", {.step = 1, .spec_digest = "d"}, State(1))->bytes;
  CheckpointQuota quota(3 * bytes);
  ASSERT_TRUE(CheckpointStore::Open(RealFileSystem(), &clock_, temporary_.path(), &quota).ok());  // "gpt" is not open
  const auto other = *CheckpointFolder::Open(&files_, &clock_, temporary_.path(), "other", &quota);
  EXPECT_TRUE(other->Save("one", {.step = 1, .spec_digest = "d"}, State(1)).ok());
  EXPECT_TRUE(other->Save("two", {.step = 1, .spec_digest = "d"}, State(1)).ok());
  const int64_t changes = files_.changes();
  const absl::Status refused = other->Save("three", {.step = 1, .spec_digest = "d"}, State(1)).status();
  EXPECT_EQ(ReasonOf(refused), "STORAGE_FULL");
  EXPECT_EQ(ValuesOf(refused)["limit"], "checkpoint-bytes");
  EXPECT_EQ(ValuesOf(refused)["limit_value"], std::to_string(3 * bytes));
  EXPECT_NE(refused.message().find(absl::StrCat("(other ", 2 * bytes, ", gpt ", bytes, ")")), std::string::npos)
      << refused;
  EXPECT_EQ(ReasonOf(other->CheckRoom("three", bytes)), "STORAGE_FULL") << "known without the tensors";
  EXPECT_TRUE(other->CheckRoom("three", 0).ok());
  EXPECT_EQ(files_.changes(), changes);
  EXPECT_TRUE(other->Save("last", {.step = 1, .spec_digest = "d"}, State(1), {.beyond_quota = true}).ok());
  EXPECT_TRUE(other->Remove("one").ok());
  EXPECT_EQ(ReasonOf(other->Save("three", {.step = 1, .spec_digest = "d"}, State(1)).status()), "STORAGE_FULL");
  EXPECT_TRUE(other->Remove("two").ok());
  EXPECT_TRUE(other->Save("three", {.step = 1, .spec_digest = "d"}, State(1)).ok());
}

TEST(CheckpointQuota, AnOwnerHasAQuarterWhileAnotherHasSome) {
  CheckpointQuota quota(100);
  quota.Set("old", 10);  // from an earlier life: nobody's
  quota.SetOwner("a1", "ann");
  quota.SetOwner("a2", "ann");
  quota.SetOwner("b", "bob");
  EXPECT_TRUE(quota.Take("a1", 20, false).ok());
  EXPECT_TRUE(quota.Take("a2", 20, false).ok()) << "nobody else has any";
  EXPECT_TRUE(quota.Take("b", 25, false).ok());
  const absl::Status share = quota.Take("a2", 1, false);
  EXPECT_EQ(ReasonOf(share), "CALLER_QUOTA");
  EXPECT_EQ(ValuesOf(share)["limit_value"], "25");
  EXPECT_EQ(ReasonOf(quota.CheckRoom("b", 1)), "CALLER_QUOTA");
  EXPECT_TRUE(quota.Take("a2", 1, /*beyond=*/true).ok());
  quota.Return("a1", 20);
  EXPECT_TRUE(quota.CheckRoom("a1", 4).ok());
  EXPECT_EQ(ReasonOf(quota.CheckRoom("old", 45)), "STORAGE_FULL");
}

TEST_F(CheckpointTest, AFailedSaveAndAPurgeGiveTheQuotaBack) {
  const auto bytes = Open()->Save("first", {.step = 1, .spec_digest = "d"}, State(1))->bytes;
  CheckpointQuota quota(bytes);
  const auto folder = *CheckpointFolder::Open(&files_, &clock_, temporary_.path(), "gpt", &quota);
  ASSERT_TRUE(folder->Remove("first").ok());
  files_.FailSync(0);
  EXPECT_FALSE(folder->Save("a", {.step = 1, .spec_digest = "d"}, State(1)).ok());
  files_.FailSync(-1);
  EXPECT_TRUE(folder->Save("a", {.step = 1, .spec_digest = "d"}, State(1)).ok());
  EXPECT_TRUE(folder->Purge().ok());
  EXPECT_TRUE(quota.Take("other", bytes, /*beyond=*/false).ok());
}

TEST_F(CheckpointTest, ASaveThatThrowsGivesTheQuotaBackAndLeavesNothing) {
  int64_t bytes = 0;
  for (const NamedTensor& tensor : State(1)) bytes += static_cast<int64_t>(tensor.tensor.nbytes());
  CheckpointQuota quota(bytes);
  const auto folder = *CheckpointFolder::Open(&files_, &clock_, temporary_.path(), "gpt", &quota);
  files_.ThrowIn("Create");
  const absl::Status thrown =
      Guarded("a save", [&] { return folder->Save("a", {.step = 1, .spec_digest = "d"}, State(1)).status(); });
  EXPECT_EQ(ReasonOf(thrown), "HOST_MEMORY");
  EXPECT_THAT(OnDisk(), IsEmpty());
  const absl::Status again = folder->Save("a", {.step = 1, .spec_digest = "d"}, State(1)).status();
  EXPECT_TRUE(again.ok()) << again;
}

TEST_F(CheckpointTest, WhatARemovalLeavesOnTheDiskCountsUntilItIsGone) {
  const auto bytes = Open()->Save("a", {.step = 1, .spec_digest = "d"}, State(1))->bytes;
  CheckpointQuota quota(bytes);
  const auto folder = *CheckpointFolder::Open(&files_, &clock_, temporary_.path(), "gpt", &quota);
  files_.DieBeforeChange(2);  // it has lost its name
  EXPECT_FALSE(folder->Remove("a").ok());
  files_.DieBeforeChange(-1);
  EXPECT_THAT(folder->List(), IsEmpty());
  EXPECT_EQ(ReasonOf(quota.CheckRoom("gpt", bytes)), "STORAGE_FULL");
  const absl::Status saved = folder->Save("a", {.step = 1, .spec_digest = "d"}, State(1)).status();
  EXPECT_TRUE(saved.ok()) << "it takes the place of what was left: " << saved;
  ASSERT_TRUE(folder->Remove("a").ok());
  EXPECT_TRUE(quota.CheckRoom("gpt", bytes).ok());
}

TEST_F(CheckpointTest, PurgeRemovesEverything) {
  const auto folder = Open();
  ASSERT_TRUE(folder->Save("first", {.step = 1, .spec_digest = "d"}, State(1)).ok());
  ASSERT_TRUE(folder->Purge().ok());
  EXPECT_THAT(folder->List(), IsEmpty());
  EXPECT_FALSE(RealFileSystem()->Exists(Folder()));
  EXPECT_THAT(Open()->List(), IsEmpty());
}

// --- Replacement.

class ReplacementTest : public CheckpointTest {
 protected:
  static CheckpointFacts Old() { return {.step = 1, .spec_digest = "d"}; }
  static CheckpointFacts New() { return {.step = 2, .spec_digest = "d", .rotating = true}; }
  absl::Status Replace(CheckpointFolder& folder) {
    clock_.Advance(absl::Seconds(1));
    return folder.Save("mine", New(), State(2), {.replace = true}).status();
  }
  // 1 or 2: which of both is there, whole; List() must say the same.
  static int64_t StepOf(CheckpointFolder& folder) {
    const absl::StatusOr<LoadedCheckpoint> loaded = folder.Load("mine");
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    if (!loaded.ok()) return 0;
    EXPECT_TRUE(at::equal(loaded->state[0].tensor, State(static_cast<float>(loaded->info.step))[0].tensor));
    EXPECT_EQ(folder.List().at(0).step, loaded->info.step);
    return loaded->info.step;
  }
  std::vector<std::string> Files() const { return *RealFileSystem()->List(Folder() + "/mine"); }
};

TEST_F(ReplacementTest, TakesThePlaceOfTheOldOneAndLeavesNothingOfIt) {
  const auto folder = Open();
  ASSERT_TRUE(folder->Save("mine", Old(), State(1)).ok());
  ASSERT_TRUE(Replace(*folder).ok());
  EXPECT_EQ(StepOf(*folder), 2);
  EXPECT_TRUE(folder->Find("mine")->rotating);
  EXPECT_THAT(Files(), ElementsAre("manifest.json", "state-2.safetensors"));
  ASSERT_TRUE(Replace(*folder).ok());
  EXPECT_THAT(Files(), ElementsAre("manifest.json", "state.safetensors"));
  EXPECT_EQ(StepOf(*Open()), 2);
}

TEST_F(ReplacementTest, OfNothingIsASave) {
  const auto folder = Open();
  ASSERT_TRUE(Replace(*folder).ok());
  EXPECT_EQ(StepOf(*folder), 2);
  EXPECT_EQ(ReasonOf(folder->Save("../mine", New(), State(2), {.replace = true}).status()), "NAME_INVALID");
}

TEST_F(ReplacementTest, DyingAtAnyChangeOfTheDiskLeavesTheOldOneOrTheNewOne) {
  bool replaced = false;
  int old_ones = 0;
  int new_ones = 0;
  for (int64_t in = 0; !replaced; ++in) {
    auto folder = Open();
    if (!folder->List().empty()) {
      ASSERT_TRUE(folder->Remove("mine").ok());
    }
    ASSERT_TRUE(folder->Save("mine", Old(), State(1)).ok());
    files_.DieBeforeChange(in);
    replaced = Replace(*folder).ok();
    files_.DieBeforeChange(-1);
    folder = Open();  // the restart
    const int64_t step = StepOf(*folder);
    (step == 1 ? old_ones : new_ones) += 1;
    EXPECT_EQ(Files().size(), 2) << "debris after a death before change " << in;
    if (replaced) {
      EXPECT_EQ(step, 2);
    }
  }
  EXPECT_GT(old_ones, 6);
  EXPECT_EQ(new_ones, 1) << "before the old tensors went: that is no failure";
}

TEST_F(ReplacementTest, FaultsOfTheDiskLeaveTheOldOneOrTheNewOneAndTheQuotaRight) {
  CheckpointQuota quota(1 << 20);
  const auto folder = *CheckpointFolder::Open(&files_, &clock_, temporary_.path(), "gpt", &quota);
  const int64_t bytes = folder->Save("mine", Old(), State(1))->bytes;
  const auto expect_old = [&](const char* what) {
    EXPECT_FALSE(Replace(*folder).ok()) << what;
    files_.FailSync(-1);
    files_.FailRename(-1);
    files_.SetFreeBytes(-1);
    EXPECT_EQ(StepOf(*folder), 1) << what;
    EXPECT_TRUE(quota.CheckRoom("gpt", (1 << 20) - bytes).ok()) << what;
    EXPECT_FALSE(quota.CheckRoom("gpt", (1 << 20) - bytes + 1).ok()) << what;
  };
  for (const int64_t room : {int64_t{0}, int64_t{20}, bytes - 1, bytes + 10}) {
    files_.SetFreeBytes(room);
    expect_old("a full disk");
  }
  for (int in = 0; in < 2; ++in) {
    files_.FailSync(in);
    expect_old("a sync");
  }
  files_.FailRename(0, FaultyFileSystem::RenameFault::kNotDone);
  expect_old("a rename that did not happen");
  EXPECT_EQ(StepOf(*Open()), 1);
  ASSERT_EQ(StepOf(*folder), 1);
}

// After a loss of power either manifest may be there: both must find their tensors.
TEST_F(ReplacementTest, ARenameThatIsNotSyncedIsToldAndKeepsTheTensorsOfBoth) {
  auto folder = Open();
  ASSERT_TRUE(folder->Save("mine", Old(), State(1)).ok());
  const std::string old_manifest = ReadFile(Folder() + "/mine/manifest.json");
  files_.FailRename(0, FaultyFileSystem::RenameFault::kNotDurable);
  EXPECT_FALSE(Replace(*folder).ok());
  files_.FailRename(-1);
  EXPECT_EQ(StepOf(*folder), 2) << "as List() tells";
  EXPECT_THAT(Files(), ElementsAre("manifest.json", "state-2.safetensors", "state.safetensors"));

  WriteFile(Folder() + "/mine/manifest.json", old_manifest);  // the power was lost
  folder = Open();
  EXPECT_EQ(StepOf(*folder), 1);
  EXPECT_THAT(Files(), ElementsAre("manifest.json", "state.safetensors"));
}

// The tensors that nobody may need any more go only when the manifest that does without them is durable.
TEST_F(ReplacementTest, TensorsAreRemovedOnlyAfterTheManifestWithoutThemIsDurable) {
  auto folder = Open();
  ASSERT_TRUE(folder->Save("mine", Old(), State(1)).ok());
  files_.FailRename(0, FaultyFileSystem::RenameFault::kNotDurable);
  EXPECT_FALSE(Replace(*folder).ok());
  EXPECT_FALSE(Replace(*folder).ok()) << "renames still fail";
  EXPECT_THAT(Files(), ElementsAre("manifest.json", "state-2.safetensors", "state.safetensors"));
  files_.FailRename(-1);
  EXPECT_TRUE(Replace(*folder).ok());
  EXPECT_EQ(Files().size(), 2);
  EXPECT_EQ(StepOf(*folder), 2);
}

TEST_F(ReplacementTest, NeedsRoomForBoth) {
  const int64_t bytes = Open()->Save("mine", Old(), State(1))->bytes;
  CheckpointQuota scarce(bytes + ByteSize(State(2)) - 1);
  auto folder = *CheckpointFolder::Open(&files_, &clock_, temporary_.path(), "gpt", &scarce);
  EXPECT_EQ(ReasonOf(Replace(*folder)), "STORAGE_FULL");
  EXPECT_EQ(StepOf(*folder), 1);
  CheckpointQuota enough(bytes + ByteSize(State(2)));
  folder = *CheckpointFolder::Open(&files_, &clock_, temporary_.path(), "gpt", &enough);
  EXPECT_TRUE(Replace(*folder).ok());
  EXPECT_TRUE(Replace(*folder).ok()) << "the room of the old one is free again";
}

TEST_F(ReplacementTest, ADamagedOneCanBeReplaced) {
  const auto folder = Open();
  for (const char* file : {"manifest.json", "state.safetensors"}) {
    ASSERT_TRUE(folder->Save("mine", Old(), State(1)).ok());
    std::filesystem::remove(Folder() + "/mine/" + file);
    EXPECT_EQ(ReasonOf(folder->Load("mine").status()), "CHECKPOINT_CORRUPT");
    EXPECT_TRUE(Replace(*folder).ok());
    EXPECT_EQ(StepOf(*folder), 2);
    EXPECT_EQ(folder->List()[0].damage, "");
    ASSERT_TRUE(folder->Remove("mine").ok());
  }
}

// --- What a manifest keeps.

TEST_F(CheckpointTest, KeepsTheSpecificationAndSharesItAmongItsCheckpoints) {
  std::string bytes = "any bytes: \n \" } ";
  bytes += std::string("\0\xff", 2);
  const CheckpointFacts facts{.spec_digest = "d", .specification = std::make_shared<const std::string>(bytes)};
  {
    const auto folder = Open();
    ASSERT_TRUE(folder->Save("a", facts, State(1)).ok());
    ASSERT_TRUE(folder->Save("b", facts, State(2)).ok());
    ASSERT_TRUE(folder->Save("c", {.spec_digest = "d"}, State(2)).ok());
  }
  const auto folder = Open();
  ASSERT_NE(folder->Find("a")->specification, nullptr);
  EXPECT_EQ(*folder->Find("a")->specification, bytes);
  EXPECT_EQ(folder->Find("a")->specification, folder->Find("b")->specification) << "one copy";
  EXPECT_EQ(folder->Load("b")->info.specification, folder->Find("a")->specification);
  EXPECT_EQ(folder->Find("c")->specification, nullptr);
}

TEST_F(CheckpointTest, WhatATrainingGoesOnWithIsApartFromTheStateAndCounts) {
  CheckpointQuota quota(1 << 20);
  const CheckpointPlace place{.life = "a", .sequence = 3, .whole = true, .automatic = true};
  const auto folder = CheckpointFolder::Open(&files_, &clock_, temporary_.path(), "gpt", &quota).value();
  NamedTensors tensors = State(1);
  tensors.push_back({".training/gradient/0.weight", at::full({512}, 2)});
  ASSERT_TRUE(folder->Save("open", {.place = place, .training = "open 4 1"}, tensors).ok());
  EXPECT_EQ(ReasonOf(quota.CheckRoom("gpt", (1 << 20) - 512 * 8)), "STORAGE_FULL");
  ASSERT_TRUE(folder->Save("closed", {.place = place}, State(1)).ok());
  EXPECT_NE(ReadFile(Folder() + "/open/manifest.json").find("\"format\": 4"), std::string::npos);
  EXPECT_NE(ReadFile(Folder() + "/closed/manifest.json").find("\"format\": 3"), std::string::npos)
      << "earlier releases read it";
  const auto again = Open();
  const absl::StatusOr<LoadedCheckpoint> loaded = again->Load("open");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->info.place, place);
  EXPECT_EQ(loaded->training, "open 4 1");
  ASSERT_EQ(loaded->state.size(), 2);
  EXPECT_EQ(loaded->state[1].name, "optimizer/0.weight/step");
  ASSERT_EQ(loaded->training_tensors.size(), 1);
  EXPECT_EQ(loaded->training_tensors[0].name, "gradient/0.weight");
  EXPECT_EQ(again->Load("closed")->training, "");
}

TEST_F(CheckpointTest, OneOfTheFirstFormatIsReadAndRestored) {
  { const auto folder = Open(); }
  std::filesystem::copy(PENSTOCK_CHECKPOINT_FORMAT_1, Folder() + "/two");
  const auto folder = Open();
  const absl::StatusOr<LoadedCheckpoint> loaded = folder->Load("two");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->info.step, 2);
  EXPECT_EQ(loaded->info.digest, "crc32c:a4e0fbac");
  EXPECT_EQ(loaded->info.specification, nullptr);
  EXPECT_FALSE(loaded->info.rotating);
  ASSERT_EQ(loaded->state.size(), 4);
  EXPECT_EQ(loaded->state[0].name, "block0.weight");
  ASSERT_TRUE(folder->Save("two", {.step = 3}, State(1), {.replace = true}).ok()) << "and replaced";
  EXPECT_EQ(folder->Load("two")->info.step, 3);
}

TEST_F(CheckpointTest, AManifestThatIsFarTooLargeIsNotRead) {
  auto folder = Open();
  ASSERT_TRUE(folder->Save("mine", {.step = 1}, State(1)).ok());
  std::filesystem::resize_file(Folder() + "/mine/manifest.json", int64_t{1} << 30);  // sparse
  folder = Open();
  EXPECT_NE(folder->List().at(0).damage, "");
  EXPECT_EQ(ReasonOf(folder->Load("mine").status()), "CHECKPOINT_CORRUPT");
}

// The name of a file that a manifest gives must not lead out of its folder.
TEST(CheckpointManifestTest, NamesOneOfTwoFiles) {
  CheckpointManifest manifest{.file = "state-2.safetensors"};
  EXPECT_TRUE(ParseManifest(FormatManifest(manifest)).ok());
  for (const char* bad : {"", "../other/state.safetensors", "manifest.json"}) {
    manifest.file = bad;
    EXPECT_FALSE(ParseManifest(FormatManifest(manifest)).ok()) << bad;
  }
}

TEST(CheckpointManifestTest, RoundTrips) {
  for (const int format : {1, 2, 3, 4}) {
    for (const auto& names : std::vector<std::vector<std::string>>{{}, {"a"}, {"a", "b.c/d"}}) {
      CheckpointManifest manifest{.format = format,
                                  .step = 3,
                                  .bytes = 9,
                                  .crc32c = 0xab,
                                  .spec_digest = "x",
                                  .created_unix_ms = 77,
                                  .names = names};
      if (format >= 2) {
        manifest.specification = "\n  \"names\": [] \"";
        manifest.rotating = true;
      }
      if (format >= 3) {
        manifest.life = "a";
        manifest.sequence = manifest.version = 5;
        manifest.whole = manifest.automatic = true;
      }
      if (format == 4) manifest.training = "open 4 1; held YW5u  5 7";
      const auto parsed = ParseManifest(FormatManifest(manifest));
      ASSERT_TRUE(parsed.ok()) << FormatManifest(manifest);
      EXPECT_EQ(*parsed, manifest);
    }
  }
}

// --- All pipelines.

class CheckpointStoreTest : public CheckpointTest {
 protected:
  std::unique_ptr<CheckpointStore> Store(CheckpointQuota* quota = nullptr) {
    return CheckpointStore::Open(&files_, &clock_, temporary_.path(), quota).value();
  }
  static std::vector<std::string> Names(const std::vector<CheckpointInfo>& list) {
    std::vector<std::string> names;
    for (const CheckpointInfo& info : list) names.push_back(info.pipeline + "/" + info.id);
    return names;
  }
};

TEST_F(CheckpointStoreTest, FindsThoseOfAllPipelinesAfterARestart) {
  {
    const auto store = Store();
    for (const char* pipeline : {"b", "a", "b-2"}) {
      const auto folder = store->FolderOf(pipeline).value();
      ASSERT_TRUE(folder->Save("two", {.step = 2}, State(2)).ok());
      ASSERT_TRUE(folder->Save("one", {.step = 1}, State(1)).ok());
    }
    EXPECT_EQ(store->FolderOf("a").value(), store->FindFolder("a")) << "one folder, whoever asks";
  }
  const auto store = Store();
  EXPECT_THAT(Names(store->List("", "", 100)), ElementsAre("a/one", "a/two", "b/one", "b/two", "b-2/one", "b-2/two"));
  EXPECT_THAT(Names(store->List("", "", 3)), ElementsAre("a/one", "a/two", "b/one"));
  EXPECT_THAT(Names(store->List("b", "one", 2)), ElementsAre("b/two", "b-2/one"));
  EXPECT_EQ(store->Find("b", "two")->step, 2);
  EXPECT_EQ(ReasonOf(store->Find("b", "none").status()), "CHECKPOINT_NOT_FOUND");
  EXPECT_EQ(ReasonOf(store->Find("none", "two").status()), "CHECKPOINT_NOT_FOUND");
  EXPECT_EQ(ReasonOf(store->Find("../a", "two").status()), "CHECKPOINT_NOT_FOUND");
  EXPECT_EQ(store->FindFolder("none"), nullptr);
}

TEST_F(CheckpointStoreTest, AFolderIsReadAnewForAPipelineThatIsMade) {
  const auto store = Store();
  ASSERT_TRUE(store->FolderOf("gpt").value()->Save("mine", {.step = 1}, State(1)).ok());
  std::filesystem::remove_all(Folder());
  EXPECT_TRUE(store->FolderOf("gpt").value()->List().empty());
  EXPECT_TRUE(store->FindFolder("gpt")->Save("mine", {.step = 1}, State(1)).ok()) << "its folder is there again";
}

TEST(CheckpointManifestTest, RefusesAStepThatIsNone) {
  for (const int64_t step : {int64_t{-1}, kMaxStep + 1, std::numeric_limits<int64_t>::max()}) {
    EXPECT_FALSE(ParseManifest(FormatManifest({.step = step, .bytes = 9, .names = {}})).ok()) << step;
  }
  EXPECT_TRUE(ParseManifest(FormatManifest({.step = kMaxStep, .bytes = 9, .names = {}})).ok());
}

TEST(EpochFileTest, RisesAtEachStart) {
  TemporaryFolder folder;
  EXPECT_EQ(*RaiseEpoch(RealFileSystem(), folder.path() + "/new"), Epoch(1));
  EXPECT_EQ(*RaiseEpoch(RealFileSystem(), folder.path() + "/new"), Epoch(2));
  for (const char* bad : {"", "x", "2", "-1\n", "4294967295\n", "99999999999\n"}) {
    std::ofstream(folder.path() + "/new/epoch") << bad;
    EXPECT_EQ(ReasonOf(RaiseEpoch(RealFileSystem(), folder.path() + "/new").status()), "CHECKPOINT_CORRUPT") << bad;
  }
}

}  // namespace
}  // namespace penstock::testing
