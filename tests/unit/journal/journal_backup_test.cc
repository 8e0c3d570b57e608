// A copy of a journal that is in use: PipelineJournal::BackUp().

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/synchronization/notification.h"
#include "engine/base/thread.h"
#include "tests/support/faulty_file_system.h"
#include "tests/unit/journal/journal_life.h"

namespace penstock {
namespace {

using testing::JournalLife;
using testing::MakeCall;
using testing::Told;

class JournalBackup : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(life_.Open().ok()); }

  JournalLife life_;
};

TEST_F(JournalBackup, ThatIsMadeWhileCallsGoOnOpensAsAJournal) {
  for (int64_t sequence = 1; sequence <= 40; ++sequence) ASSERT_TRUE(life_.Append(sequence, 900).ok());
  ASSERT_TRUE(life_.Append(41, 5000).ok());
  absl::Notification copied;
  Thread appender("ps-test", [&] {
    for (int64_t sequence = 42; !copied.HasBeenNotified() || sequence < 60; ++sequence) {
      ASSERT_TRUE(life_.Append(sequence, sequence % 7 == 0 ? 5000 : 900).ok());
    }
  });
  const absl::Status backed_up = life_.journal->BackUp("/copies/one");
  copied.Notify();
  appender.Join();
  ASSERT_TRUE(backed_up.ok()) << backed_up;
  const int64_t last = life_.journal->last_sequence();
  EXPECT_EQ(ReasonOf(life_.journal->BackUp("/copies/one")), "FIELD_INVALID");
  life_.Crash();  // the copy is durable

  auto copy = PipelineJournal::Open("/copies/one", &life_.clock, life_.options);
  ASSERT_TRUE(copy.ok()) << copy.status();
  EXPECT_GE((*copy)->last_sequence(), 41);
  EXPECT_LE((*copy)->last_sequence(), last);
  int64_t rows = 0;
  ASSERT_TRUE((*copy)
                  ->Read(0,
                         [&](CallRow row) {
                           EXPECT_EQ(row.sequence, ++rows);
                           return (*copy)->ReadInput(row.inputs[0]).status();
                         })
                  .ok());
  EXPECT_EQ(rows, (*copy)->last_sequence());
  Told told;
  (*copy)->Append(MakeCall(1000), {}, told.done());
  EXPECT_TRUE(told.Wait().ok());
}

// Does something when the first content of a copy is written.
class HookedFiles : public testing::FaultyFileSystem {
 public:
  HookedFiles(FileSystem* files, std::function<void()> hook) : FaultyFileSystem(files), hook_(std::move(hook)) {}

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    if (path.find(".unfinished/blobs/") != std::string::npos && hook_ != nullptr) std::exchange(hook_, nullptr)();
    return FaultyFileSystem::Create(path);
  }

 private:
  std::function<void()> hook_;
};

TEST_F(JournalBackup, HasItsContentsAlsoWhereTheyAreCutMeanwhile) {
  HookedFiles files(&life_.disk, [&] { EXPECT_TRUE(life_.Cut(3).ok()); });
  life_.options.files = &files;
  ASSERT_TRUE(life_.Reopen().ok());
  for (int64_t sequence = 1; sequence <= 3; ++sequence) {
    ASSERT_TRUE(life_.Append(sequence, 5000).ok());
    ASSERT_TRUE(life_.Settle(sequence).ok());
  }
  const absl::Status backed_up = life_.journal->BackUp("/copies/two");
  ASSERT_TRUE(backed_up.ok()) << backed_up;
  EXPECT_EQ(life_.disk.List("/copies/two/blobs")->size(), 3);
  EXPECT_EQ(life_.journal->cut_sequence(), 3);
  ASSERT_TRUE(life_.Append(4).ok());  // the next commit removes what was held
  EXPECT_TRUE(life_.disk.List(JournalLife::kBlobs)->empty());
  auto copy = PipelineJournal::Open("/copies/two", &life_.clock, life_.options);
  ASSERT_TRUE(copy.ok()) << copy.status();
  EXPECT_EQ((*copy)->replay_size().rows, 3);
  copy->reset();
  life_.journal.reset();  // before its files
}

TEST_F(JournalBackup, ThatFailsLeavesNoCopy) {
  ASSERT_TRUE(life_.Append(1, 5000).ok());
  const std::string content = absl::StrCat(JournalLife::kBlobs, "/", life_.disk.List(JournalLife::kBlobs)->front());
  life_.disk.Flip(content, 100);
  EXPECT_EQ(ReasonOf(life_.journal->BackUp("/copies/three")), "JOURNAL_CORRUPT");
  EXPECT_FALSE(life_.disk.Exists("/copies/three"));
  life_.disk.Flip(content, 100);
  EXPECT_TRUE(life_.journal->BackUp("/copies/three").ok());
}

}  // namespace
}  // namespace penstock
