// A journal that is not what was written is refused by name, and no call in it is skipped.

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/unit/journal/journal_life.h"

namespace penstock {
namespace {

using testing::ContentOf;
using testing::JournalLife;

class JournalDamage : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(life_.Open().ok()); }
  void Fill(int64_t calls, size_t bytes = 700) {
    for (int64_t sequence = 1; sequence <= calls; ++sequence) {
      ASSERT_TRUE(life_.Append(sequence, bytes).ok());
      if (sequence % 2 == 0) continue;
      ASSERT_TRUE(life_.Settle(sequence, absl::StrCat("OUTCOME-", sequence, ".")).ok());
    }
  }
  void EndProcess() {
    life_.disk.EndProcess();
    life_.journal.reset();
  }
  void CloseWell() {
    ASSERT_TRUE(life_.journal->Close().ok());
    life_.journal.reset();
  }
  std::string Content(const std::string& path) { return *life_.disk.Read(path); }
  // Where a text stands in a file, for the last time.
  size_t PlaceOf(const std::string& path, const std::string& text) {
    const size_t at = Content(path).rfind(text);
    EXPECT_NE(at, std::string::npos) << text;
    return at;
  }

  JournalLife life_;
};

TEST_F(JournalDamage, AByteInTheMiddleOfTheLog) {
  Fill(20);
  life_.Crash();
  life_.disk.Flip(JournalLife::kLog, Content(JournalLife::kLog).size() / 2);
  EXPECT_EQ(ReasonOf(life_.Open()), "JOURNAL_CORRUPT");
}

// Only the mark tells it from a commit that power has torn.
TEST_F(JournalDamage, AByteInTheLastCommitOfTheLog) {
  Fill(20);
  EndProcess();
  life_.disk.Flip(JournalLife::kLog, Content(JournalLife::kLog).size() - 100);
  const absl::Status opened = life_.Open();
  EXPECT_EQ(ReasonOf(opened), "JOURNAL_CORRUPT");
  EXPECT_NE(std::string(opened.message()).find("was acknowledged"), std::string::npos) << opened;
}

TEST_F(JournalDamage, ALogThatIsGone) {
  Fill(5);
  EndProcess();
  ASSERT_TRUE(life_.disk.RemoveAll(JournalLife::kLog).ok());
  EXPECT_EQ(ReasonOf(life_.Open()), "JOURNAL_CORRUPT");
}

// The log of a journal that is open changes at any time, so it is not judged.
TEST_F(JournalDamage, IsNotLookedForInAJournalThatIsOpen) {
  Fill(20);
  life_.disk.Flip(JournalLife::kLog, Content(JournalLife::kLog).size() / 2);
  const auto second = PipelineJournal::Open(JournalLife::kFolder, &life_.clock, life_.options);
  EXPECT_EQ(ReasonOf(second.status()), "JOURNAL_LOCKED") << second.status();
}

TEST_F(JournalDamage, AByteOfARowInTheDatabase) {
  Fill(5);
  CloseWell();
  const std::string whole = Content(JournalLife::kDatabase);
  for (const std::string text : {"parameters of 3", "3.......", "request-4", "digest-4", "OUTCOME-3.", "TrainStep"}) {
    life_.disk.Put(JournalLife::kDatabase, whole);
    life_.disk.Flip(JournalLife::kDatabase, PlaceOf(JournalLife::kDatabase, text));
    const absl::Status opened = life_.Open();
    EXPECT_EQ(ReasonOf(opened), "JOURNAL_CORRUPT") << text << ": " << opened;
  }
}

TEST_F(JournalDamage, AnyByteOfTheDatabaseIsSeenOrHurtsNoCall) {
  Fill(5);
  CloseWell();
  const std::string whole = Content(JournalLife::kDatabase);
  int refused = 0;
  for (size_t at = 0; at < whole.size(); at += 37) {
    life_.disk.Put(JournalLife::kDatabase, whole);
    life_.disk.Flip(JournalLife::kDatabase, at);
    if (!life_.Open().ok()) {
      ++refused;
      continue;
    }
    // A byte that nobody uses: all calls are there, with what belongs to them.
    EXPECT_EQ(*life_.Sequences(), testing::UpTo(5)) << at;
    for (int64_t sequence = 1; sequence <= 5; ++sequence) {
      const std::string expected = sequence % 2 == 1 ? absl::StrCat("OUTCOME-", sequence, ".") : "";
      const absl::StatusOr<std::optional<RecordedCall>> found = life_.Find(sequence);
      ASSERT_TRUE(found.ok() && found->has_value()) << at;
      EXPECT_EQ((*found)->outcome.bytes, expected) << at;
    }
    life_.journal.reset();
  }
  EXPECT_GT(refused, 20);
}

TEST_F(JournalDamage, AByteOfAContent) {
  ASSERT_TRUE(life_.Append(1, 5000).ok());
  const std::string path = absl::StrCat(JournalLife::kBlobs, "/", life_.disk.List(JournalLife::kBlobs)->front());
  life_.disk.Flip(path, 4000);
  ASSERT_TRUE(life_.Reopen().ok());  // contents are compared when they are read
  const absl::Status read = life_.Sequences().status();
  EXPECT_EQ(ReasonOf(read), "JOURNAL_CORRUPT");
  EXPECT_NE(std::string(read.message()).find("sha256:"), std::string::npos) << read;
}

TEST_F(JournalDamage, AContentThatIsGoneOrShorter) {
  ASSERT_TRUE(life_.Append(1, 5000).ok());
  const std::string path = absl::StrCat(JournalLife::kBlobs, "/", life_.disk.List(JournalLife::kBlobs)->front());
  life_.disk.Put(path, Content(path).substr(1));
  EXPECT_EQ(ReasonOf(life_.Reopen()), "JOURNAL_CORRUPT");
  ASSERT_TRUE(life_.disk.RemoveAll(path).ok());
  EXPECT_EQ(ReasonOf(life_.Reopen()), "JOURNAL_CORRUPT");
}

// What somebody changes by SQL keeps SQLite content, but not the checksums.
class JournalRowDamage : public JournalDamage, public ::testing::WithParamInterface<const char*> {};

TEST_P(JournalRowDamage, IsSeen) {
  Fill(6, 5000);
  ASSERT_TRUE(life_.Settle(2).ok());
  ASSERT_TRUE(life_.Cut(2).ok());
  CloseWell();
  {
    auto database = Database::Open(
        JournalLife::kDatabase, {.migrations = CallTable::Migrations(), .files = &life_.disk, .vfs = life_.disk.vfs()});
    ASSERT_TRUE(database.ok()) << database.status();
    auto statement = (*database)->Prepare(GetParam());
    ASSERT_TRUE(statement.ok()) << statement.status();
    ASSERT_TRUE(statement->Run().ok());
    statement = Statement();
    ASSERT_TRUE((*database)->Close().ok());
  }
  const absl::Status opened = life_.Open();
  EXPECT_EQ(ReasonOf(opened), "JOURNAL_CORRUPT") << opened;
}

INSTANTIATE_TEST_SUITE_P(
    Rows, JournalRowDamage,
    ::testing::Values("DELETE FROM calls WHERE sequence = 3", "DELETE FROM calls WHERE sequence = 4",
                      "DELETE FROM calls WHERE sequence = 6",
                      "INSERT INTO calls SELECT -1, identity, method, request_id, payload_digest, micro_batches, "
                      "forward_sequence, accepted_unix_nanos, checksum, files, parameters, inputs FROM calls LIMIT 1",
                      "UPDATE calls SET sequence = 9 WHERE sequence = 6",
                      "UPDATE calls SET micro_batches = 5 WHERE sequence = 5", "UPDATE calls SET files = 0",
                      "DELETE FROM outcomes WHERE sequence = 3", "DELETE FROM outcomes WHERE sequence = 1",
                      "UPDATE outcomes SET sequence = 4 WHERE sequence = 3",
                      "UPDATE outcomes SET status = 2 WHERE sequence = 1",
                      "UPDATE outcomes SET accepted_checksum = 1 WHERE sequence = 5", "DELETE FROM chain",
                      "UPDATE chain SET last_sequence = 5", "UPDATE chain SET cut_sequence = 1", "DELETE FROM blobs",
                      "UPDATE blobs SET refs = refs + 1", "UPDATE blobs SET bytes = bytes + 1"));

}  // namespace
}  // namespace penstock
