// Power fails: what was acknowledged is there afterwards, in order, once; and each sync that is left out is seen.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/unit/journal/journal_life.h"

namespace penstock {
namespace {

using testing::ContentOf;
using testing::JournalLife;
using testing::MakeCall;
using testing::MakeInput;
using testing::Told;
using testing::UnsyncedDisk;
using testing::UpTo;

// Acknowledges calls in several groups, with inputs in rows and in files, and outcomes; then power fails. What is wrong
// afterwards, or "".
std::string WhatIsLost(JournalLife& life, int64_t calls) {
  if (const absl::Status opened = life.Open(); !opened.ok()) return absl::StrCat("open: ", opened.ToString());
  for (int64_t sequence = 1; sequence <= calls; ++sequence) {
    if (!life.Append(sequence, sequence % 3 == 0 ? 5000 : 300).ok()) return "append";
    if (!life.Settle(sequence, absl::StrCat("outcome of ", sequence)).ok()) return "settle";
  }
  life.Crash();
  if (const absl::Status opened = life.Open(); !opened.ok()) return absl::StrCat("reopen: ", opened.ToString());
  const absl::StatusOr<std::vector<int64_t>> there = life.Sequences();
  if (!there.ok()) return absl::StrCat("read: ", there.status().ToString());
  if (*there != UpTo(calls)) return absl::StrCat(there->size(), " of ", calls, " calls are there");
  for (int64_t sequence = 1; sequence <= calls; ++sequence) {
    const absl::StatusOr<std::optional<RecordedCall>> found = life.Find(sequence);
    if (!found.ok() || !found->has_value()) return absl::StrCat("outcome of ", sequence);
    if ((*found)->outcome.bytes != absl::StrCat("outcome of ", sequence)) return absl::StrCat("bytes of ", sequence);
  }
  return "";
}

// All is in the log at the end; or the log was written into the database, and begun anew, many times.
enum class LogLife { kOne, kMany };

PipelineJournal::Options WithLog(PipelineJournal::Options options, LogLife life) {
  options.idle_log_pages = 1'000'000;
  options.max_log_pages = life == LogLife::kOne ? 1'000'000 : 8;
  return options;
}

TEST(JournalCrash, WhatWasAcknowledgedIsThere) {
  for (const LogLife log : {LogLife::kOne, LogLife::kMany}) {
    for (const int64_t calls : {1, 2, 3, 10, 40}) {
      JournalLife life;
      life.options = WithLog(life.options, log);
      EXPECT_EQ(WhatIsLost(life, calls), "") << calls << " calls";
    }
  }
}

TEST(JournalCrash, EachKindOfSyncIsNeeded) {
  using Kind = UnsyncedDisk::SyncOf;
  const std::pair<Kind, LogLife> cases[] = {{Kind::kLog, LogLife::kOne},
                                            {Kind::kDatabase, LogLife::kMany},
                                            {Kind::kFile, LogLife::kOne},
                                            {Kind::kFolder, LogLife::kOne}};
  for (const auto& [kind, log] : cases) {
    JournalLife life;
    life.options = WithLog(life.options, log);
    life.disk.Ignore(kind);
    EXPECT_NE(WhatIsLost(life, 40), "") << "without syncs of kind " << static_cast<int>(kind);
  }
}

TEST(JournalCrash, TheFoldersAreDurableOnceTheJournalIsOpen) {
  JournalLife life;
  ASSERT_TRUE(life.Open().ok());
  life.Crash();
  EXPECT_TRUE(life.disk.Exists(JournalLife::kFolder));
  EXPECT_TRUE(life.disk.Exists(JournalLife::kBlobs));
  EXPECT_TRUE(life.Open().ok());
}

// Of what was not synced some arrives, in any order.
TEST(JournalCrash, WhatWasUnderWayIsThereWholeOrNotAtAll) {
  for (uint64_t seed = 0; seed < 150; ++seed) {
    JournalLife life;
    life.options.idle_log_pages = 12;
    ASSERT_TRUE(life.Open().ok());
    const int64_t acknowledged = 1 + static_cast<int64_t>(seed % 17);
    for (int64_t sequence = 1; sequence <= acknowledged; ++sequence) {
      ASSERT_TRUE(life.Append(sequence, sequence % 4 == 0 ? 5000 : 900).ok());
    }
    // The next group is written, and one of its syncs fails: what of it is on the disk is anybody's guess.
    life.disk.FailSync(seed % 2 == 0 ? 0 : static_cast<int64_t>(seed / 2 % 3));
    Told told;
    life.journal->Append(MakeCall(acknowledged + 1), {MakeInput(ContentOf(1, 800)), MakeInput(ContentOf(2, 3000))},
                         told.done());
    const bool last_acknowledged = told.Wait().ok();
    life.disk.CrashKeepingSome(seed);
    life.journal.reset();
    const absl::Status opened = life.Open();
    ASSERT_TRUE(opened.ok()) << "seed " << seed << ": " << opened;
    const absl::StatusOr<std::vector<int64_t>> there = life.Sequences();
    ASSERT_TRUE(there.ok()) << "seed " << seed << ": " << there.status();
    EXPECT_GE(static_cast<int64_t>(there->size()), acknowledged + (last_acknowledged ? 1 : 0)) << "seed " << seed;
    EXPECT_EQ(*there, UpTo(static_cast<int64_t>(there->size()))) << "seed " << seed;
    EXPECT_TRUE(life.Append(acknowledged + 2).ok());
  }
}

TEST(JournalCrash, AContentThatNoCallNamesGoes) {
  JournalLife life;
  ASSERT_TRUE(life.Open().ok());
  ASSERT_TRUE(life.Append(1, 5000).ok());
  life.disk.FailSync(2);  // content and folder are synced, the call is not
  EXPECT_FALSE(life.Append(2, 6000).ok());
  EXPECT_EQ(life.disk.List(JournalLife::kBlobs)->size(), 2);
  life.disk.Put(absl::StrCat(JournalLife::kBlobs, "/.unfinished-abc"), "half");
  life.Crash();
  ASSERT_TRUE(life.Open().ok());
  EXPECT_EQ(life.disk.List(JournalLife::kBlobs)->size(), 1);
  EXPECT_EQ(*life.Sequences(), UpTo(1));
}

TEST(JournalCrash, ACutIsWholeOrHasNotBeen) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    JournalLife life;
    life.options.rows_per_cut = 2;
    ASSERT_TRUE(life.Open().ok());
    for (int64_t sequence = 1; sequence <= 6; ++sequence) {
      ASSERT_TRUE(life.Append(sequence, 5000).ok());
      ASSERT_TRUE(life.Settle(sequence).ok());
    }
    life.disk.FailSync(static_cast<int64_t>(seed % 3));  // of one of its three transactions
    EXPECT_EQ(ReasonOf(life.Cut(5)), "JOURNAL_STOPPED");
    life.disk.CrashKeepingSome(seed);
    life.journal.reset();
    const absl::Status opened = life.Open();
    ASSERT_TRUE(opened.ok()) << "seed " << seed << ": " << opened;
    const absl::StatusOr<std::vector<int64_t>> there = life.Sequences();
    ASSERT_TRUE(there.ok()) << there.status();
    ASSERT_FALSE(there->empty());
    EXPECT_EQ(there->back(), 6);
    EXPECT_EQ(there->front(), life.journal->cut_sequence() + 1);
    EXPECT_EQ(life.disk.List(JournalLife::kBlobs)->size(), there->size());
    for (int64_t sequence = 1; sequence <= 6; ++sequence) EXPECT_TRUE(life.Find(sequence)->has_value());
  }
}

}  // namespace
}  // namespace penstock
