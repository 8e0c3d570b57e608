#include "engine/checkpoint/checkpoint_file.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/checkpoint/checkpoint_manifest.h"
#include "engine/checkpoint/checkpoint_quota.h"
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
  ASSERT_TRUE(Open()->Save("first", 12, "digest", State(1.5)).ok());
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
  ASSERT_TRUE(folder->Save("first", 1, "d", State(1)).ok());
  const absl::Status again = folder->Save("first", 2, "d", State(2)).status();
  EXPECT_EQ(ReasonOf(again), "CHECKPOINT_EXISTS");
  EXPECT_EQ(ValuesOf(again)["checkpoint"], "first");
  EXPECT_EQ(folder->Load("first")->info.step, 1);
  EXPECT_EQ(ReasonOf(folder->Load("other").status()), "CHECKPOINT_NOT_FOUND");
  for (const char* bad : {"", "..", "../x", "A", "a/b", "-a", "a-"}) {
    EXPECT_EQ(ReasonOf(folder->Save(bad, 1, "d", State(1)).status()), "NAME_INVALID") << bad;
  }
}

// Every byte of both files, flipped or cut away.
TEST_F(CheckpointTest, AnyDamageIsFoundAndNamedAndTheOthersStillLoad) {
  auto folder = Open();
  ASSERT_TRUE(folder->Save("good", 1, "d", State(1)).ok());
  ASSERT_TRUE(folder->Save("bad", 2, "d", State(2)).ok());
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
  ASSERT_TRUE(folder->Save("first", 1, "d", State(1)).ok());
  const auto whole = static_cast<int64_t>(ReadFile(Folder() + "/first/state.safetensors").size() +
                                          ReadFile(Folder() + "/first/manifest.json").size());
  for (const int64_t room : {int64_t{0}, int64_t{7}, int64_t{100}, whole / 2, whole - 1}) {
    files_.SetFreeBytes(room);
    const absl::Status status = folder->Save("second", 2, "d", State(2)).status();
    EXPECT_EQ(ReasonOf(status), "STORAGE_FULL") << room;
    EXPECT_EQ(ValuesOf(status)["checkpoint"], "second");
    EXPECT_THAT(OnDisk(), ElementsAre("first"));
  }
  files_.SetFreeBytes(-1);
  EXPECT_TRUE(folder->Load("first").ok());
  EXPECT_TRUE(folder->Save("second", 2, "d", State(2)).ok());
}

TEST_F(CheckpointTest, FailedSyncsAndRenamesLeaveNoDebris) {
  const auto folder = Open();
  for (int in = 0; in < 2; ++in) {
    files_.FailSync(in);
    EXPECT_FALSE(folder->Save("a", 1, "d", State(1)).ok());
    EXPECT_THAT(OnDisk(), IsEmpty());
  }
  files_.FailSync(-1);
  // Also a rename that has happened: what nobody was told of must not come back with the next start.
  for (const auto fault : {FaultyFileSystem::RenameFault::kNotDone, FaultyFileSystem::RenameFault::kNotDurable}) {
    for (int in = 0; in < 2; ++in) {
      files_.FailRename(in, fault);
      EXPECT_FALSE(folder->Save("a", 1, "d", State(1)).ok());
      EXPECT_THAT(OnDisk(), IsEmpty());
      EXPECT_THAT(folder->List(), IsEmpty());
      EXPECT_THAT(Open()->List(), IsEmpty());
    }
  }
  files_.FailRename(-1);
  EXPECT_TRUE(folder->Save("a", 1, "d", State(1)).ok()) << "the name is free";
}

TEST_F(CheckpointTest, DyingAtAnyChangeOfTheDiskLeavesAWholeCheckpointOrNone) {
  {
    const auto folder = Open();
    ASSERT_TRUE(folder->Save("first", 1, "d", State(1)).ok());
  }
  bool saved = false;
  int deaths = 0;
  for (int64_t in = 0; !saved; ++in) {
    auto folder = Open();
    files_.DieBeforeChange(in);
    saved = folder->Save("second", 2, "d", State(2)).ok();
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
    EXPECT_FALSE(folder->Save("a", 1, "d", State(1)).ok());
    EXPECT_THAT(OnDisk(), IsEmpty());
    EXPECT_THAT(folder->List(), IsEmpty());
  }
}

TEST_F(CheckpointTest, ADamagedOneIsListedAsSuchOnceItIsKnown) {
  auto folder = Open();
  ASSERT_TRUE(folder->Save("mine", 1, "d", State(1)).ok());
  const std::string path = Folder() + "/mine/state.safetensors";
  const std::string whole = ReadFile(path);
  std::string flipped = whole;
  flipped.back() = static_cast<char>(flipped.back() ^ 1);
  const auto damaged = [&] { return folder->List().at(0).damaged; };

  WriteFile(path, flipped);
  EXPECT_EQ(ReasonOf(folder->Load("mine").status()), "CHECKPOINT_CORRUPT");
  EXPECT_TRUE(damaged()) << "what a load has found is remembered";
  WriteFile(path, whole);
  EXPECT_TRUE(folder->Load("mine").ok());
  EXPECT_FALSE(damaged());

  WriteFile(path, whole.substr(0, whole.size() - 1));
  folder = Open();
  EXPECT_TRUE(damaged()) << "its size";
  EXPECT_EQ(folder->List()[0].step, 1) << "what can be known";
  std::filesystem::remove(path);
  folder = Open();
  EXPECT_TRUE(damaged()) << "no file";
  WriteFile(path, whole);
  WriteFile(Folder() + "/mine/manifest.json", "{}");
  folder = Open();
  EXPECT_TRUE(damaged()) << "its manifest";
}

TEST_F(CheckpointTest, RemovesOneAndFreesItsName) {
  const auto folder = Open();
  ASSERT_TRUE(folder->Save("first", 1, "d", State(1)).ok());
  ASSERT_TRUE(folder->Save("second", 2, "d", State(2)).ok());
  EXPECT_TRUE(folder->Remove("first").ok());
  EXPECT_THAT(OnDisk(), ElementsAre("second"));
  EXPECT_EQ(folder->List().size(), 1);
  EXPECT_EQ(ReasonOf(folder->Load("first").status()), "CHECKPOINT_NOT_FOUND");
  EXPECT_EQ(ReasonOf(folder->Remove("first")), "CHECKPOINT_NOT_FOUND");
  EXPECT_EQ(ReasonOf(folder->Remove("../second")), "CHECKPOINT_NOT_FOUND");
  EXPECT_TRUE(folder->Save("first", 3, "d", State(3)).ok());
}

TEST_F(CheckpointTest, AFailedRemovalLeavesItWhole) {
  const auto folder = Open();
  ASSERT_TRUE(folder->Save("mine", 1, "d", State(1)).ok());
  files_.FailRename(0);
  EXPECT_FALSE(folder->Remove("mine").ok());
  EXPECT_TRUE(folder->Load("mine").ok());
  files_.FailRename(-1);
  EXPECT_TRUE(folder->Remove("mine").ok());
}

TEST_F(CheckpointTest, ARemovalThatIsNotSyncedIsToldAndLeavesNothing) {
  const auto folder = Open();
  ASSERT_TRUE(folder->Save("mine", 1, "d", State(1)).ok());
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
      ASSERT_TRUE(folder->Save("mine", 1, "d", State(1)).ok());
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
  const auto bytes = Open()->Save("first", 1, "d", State(1))->bytes;
  CheckpointQuota quota(3 * bytes);
  ASSERT_TRUE(CountCheckpoints(RealFileSystem(), temporary_.path(), &quota).ok());  // "gpt" is not open
  const auto other = *CheckpointFolder::Open(&files_, &clock_, temporary_.path(), "other", &quota);
  EXPECT_TRUE(other->Save("one", 1, "d", State(1)).ok());
  EXPECT_TRUE(other->Save("two", 1, "d", State(1)).ok());
  const int64_t changes = files_.changes();
  const absl::Status refused = other->Save("three", 1, "d", State(1)).status();
  EXPECT_EQ(ReasonOf(refused), "STORAGE_FULL");
  EXPECT_EQ(ValuesOf(refused)["limit"], "checkpoint-bytes");
  EXPECT_EQ(ValuesOf(refused)["limit_value"], std::to_string(3 * bytes));
  EXPECT_NE(refused.message().find(absl::StrCat("(other ", 2 * bytes, ", gpt ", bytes, ")")), std::string::npos)
      << refused;
  EXPECT_EQ(ReasonOf(other->CheckRoom("three", bytes)), "STORAGE_FULL") << "known without the tensors";
  EXPECT_TRUE(other->CheckRoom("three", 0).ok());
  EXPECT_EQ(files_.changes(), changes);
  EXPECT_TRUE(other->Save("last", 1, "d", State(1), nullptr, /*beyond_quota=*/true).ok());
  EXPECT_TRUE(other->Remove("one").ok());
  EXPECT_EQ(ReasonOf(other->Save("three", 1, "d", State(1)).status()), "STORAGE_FULL");
  EXPECT_TRUE(other->Remove("two").ok());
  EXPECT_TRUE(other->Save("three", 1, "d", State(1)).ok());
}

TEST_F(CheckpointTest, AFailedSaveAndAPurgeGiveTheQuotaBack) {
  const auto bytes = Open()->Save("first", 1, "d", State(1))->bytes;
  CheckpointQuota quota(bytes);
  const auto folder = *CheckpointFolder::Open(&files_, &clock_, temporary_.path(), "gpt", &quota);
  ASSERT_TRUE(folder->Remove("first").ok());
  files_.FailSync(0);
  EXPECT_FALSE(folder->Save("a", 1, "d", State(1)).ok());
  files_.FailSync(-1);
  EXPECT_TRUE(folder->Save("a", 1, "d", State(1)).ok());
  EXPECT_TRUE(folder->Purge().ok());
  EXPECT_TRUE(quota.Take("other", bytes, /*beyond=*/false).ok());
}

TEST_F(CheckpointTest, ASaveThatThrowsGivesTheQuotaBackAndLeavesNothing) {
  int64_t bytes = 0;
  for (const NamedTensor& tensor : State(1)) bytes += static_cast<int64_t>(tensor.tensor.nbytes());
  CheckpointQuota quota(bytes);
  const auto folder = *CheckpointFolder::Open(&files_, &clock_, temporary_.path(), "gpt", &quota);
  files_.ThrowIn("Create");
  const absl::Status thrown = Guarded("a save", [&] { return folder->Save("a", 1, "d", State(1)).status(); });
  EXPECT_EQ(ReasonOf(thrown), "HOST_MEMORY");
  EXPECT_THAT(OnDisk(), IsEmpty());
  const absl::Status again = folder->Save("a", 1, "d", State(1)).status();
  EXPECT_TRUE(again.ok()) << again;
}

TEST_F(CheckpointTest, WhatARemovalLeavesOnTheDiskCountsUntilItIsGone) {
  const auto bytes = Open()->Save("a", 1, "d", State(1))->bytes;
  CheckpointQuota quota(bytes);
  const auto folder = *CheckpointFolder::Open(&files_, &clock_, temporary_.path(), "gpt", &quota);
  files_.DieBeforeChange(2);  // it has lost its name
  EXPECT_FALSE(folder->Remove("a").ok());
  files_.DieBeforeChange(-1);
  EXPECT_THAT(folder->List(), IsEmpty());
  EXPECT_EQ(ReasonOf(quota.CheckRoom(bytes)), "STORAGE_FULL");
  const absl::Status saved = folder->Save("a", 1, "d", State(1)).status();
  EXPECT_TRUE(saved.ok()) << "it takes the place of what was left: " << saved;
  ASSERT_TRUE(folder->Remove("a").ok());
  EXPECT_TRUE(quota.CheckRoom(bytes).ok());
}

TEST_F(CheckpointTest, PurgeRemovesEverything) {
  const auto folder = Open();
  ASSERT_TRUE(folder->Save("first", 1, "d", State(1)).ok());
  ASSERT_TRUE(folder->Purge().ok());
  EXPECT_THAT(folder->List(), IsEmpty());
  EXPECT_FALSE(RealFileSystem()->Exists(Folder()));
  EXPECT_THAT(Open()->List(), IsEmpty());
}

TEST(CheckpointManifestTest, RoundTrips) {
  for (const auto& names : std::vector<std::vector<std::string>>{{}, {"a"}, {"a", "b.c/d"}}) {
    const CheckpointManifest manifest{
        .step = 3, .bytes = 9, .crc32c = 0xab, .spec_digest = "x", .created_unix_ms = 77, .names = names};
    const auto parsed = ParseManifest(FormatManifest(manifest));
    ASSERT_TRUE(parsed.ok()) << FormatManifest(manifest);
    EXPECT_EQ(*parsed, manifest);
  }
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
