#include "engine/journal_view/state_journals.h"

#include <gtest/gtest.h>

#include <string>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/state_lock.h"
#include "tests/support/fake_clock.h"
#include "tests/support/temporary_folder.h"

namespace penstock {
namespace {

// A state folder with two pipelines, of which one has lost its journal.
class StateJournalsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(RealFileSystem()->CreateDirectories(journals_).ok());
    const auto daemon = DaemonJournal::Open(journals_, &clock_, {});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    ASSERT_TRUE((*daemon)->Write({.put = JournalledPipeline{.name = "gpt", .life = "a1"}}).ok());
    ASSERT_TRUE((*daemon)->Write({.put = JournalledPipeline{.name = "lost", .life = "b2"}}).ok());
    ASSERT_TRUE(PipelineJournal::Open(journals_ + "/a1", &clock_, {}).ok());
  }

  testing::FakeClock clock_;
  testing::TemporaryFolder place_;
  const std::string state_ = place_.path();
  const std::string journals_ = state_ + "/journal";
};

TEST_F(StateJournalsTest, OpensTheJournalsByTheNamesOfTheirPipelines) {
  const absl::StatusOr<StateJournals> journals = StateJournals::Open(state_, &clock_);
  ASSERT_TRUE(journals.ok()) << journals.status();
  ASSERT_EQ(journals->pipelines().size(), 2);
  EXPECT_TRUE(journals->OpenPipeline("gpt").ok());
  EXPECT_EQ(ReasonOf(journals->OpenPipeline("none").status()), "PIPELINE_NOT_FOUND");
}

TEST_F(StateJournalsTest, AMissingJournalIsDamageAndIsNotMade) {
  const absl::StatusOr<StateJournals> journals = StateJournals::Open(state_, &clock_);
  ASSERT_TRUE(journals.ok()) << journals.status();
  EXPECT_EQ(ReasonOf(journals->OpenPipeline("lost").status()), "JOURNAL_CORRUPT");
  EXPECT_FALSE(RealFileSystem()->Exists(journals_ + "/b2"));
}

TEST_F(StateJournalsTest, KeepsDaemonsOutWhileItLives) {
  {
    const absl::StatusOr<StateJournals> journals = StateJournals::Open(state_, &clock_);
    ASSERT_TRUE(journals.ok()) << journals.status();
    EXPECT_EQ(ReasonOf(StateLock::Take(state_).status()), "STATE_IN_USE");
  }
  const auto daemon = StateLock::Take(state_);
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  EXPECT_EQ(ReasonOf(StateJournals::Open(state_, &clock_).status()), "STATE_IN_USE");
}

TEST_F(StateJournalsTest, AFolderWithoutJournalsIsNamedAndStaysAsItIs) {
  const testing::TemporaryFolder other;
  const absl::Status refused = StateJournals::Open(other.path(), &clock_).status();
  EXPECT_EQ(ReasonOf(refused), "FIELD_INVALID");
  EXPECT_EQ(ValuesOf(refused)["value"], other.path());
  EXPECT_EQ(RealFileSystem()->List(other.path())->size(), 0);
}

}  // namespace
}  // namespace penstock
