#include "engine/serve/state_copy.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/cancel_token.h"
#include "tests/unit/serve/journalled_table.h"

namespace penstock {
namespace {

// While the checkpoints are chosen, something else happens.
class Meanwhile : public testing::KeptRecords {
 public:
  absl::StatusOr<RepeatedCall> ReadCall(const std::string&, std::string_view,
                                        const std::vector<RecordedInput>&) const override {
    happens();
    return RepeatedCall{.request = RestoreCall{.id = "other"}};
  }
  std::function<void()> happens;
};

// The rows of gpt's journal, and its checkpoints, are put there by hand.
class StateCopyTest : public testing::JournalledTable {
 protected:
  ~StateCopyTest() override { gpt_.reset(); }
  void SetUp() override {
    const absl::StatusOr<PipelineEntry> made = Create("gpt");
    ASSERT_TRUE(made.ok()) << made.status();
    life_ = made->life;
    gpt_ = made->pipeline;
    const auto epoch = RealFileSystem()->Create(state_ + "/epoch");
    ASSERT_TRUE((*epoch)->Append("7\n").ok() && (*epoch)->Close().ok());
  }

  PipelineJournal& journal() { return gpt_->journal()->journal(); }
  static absl::Status Wait(const std::function<void(PipelineJournal::Done)>& call) {
    absl::Status status;
    absl::Notification told;
    call([&](const absl::Status& said) {
      status = said;
      told.Notify();
    });
    told.WaitForNotification();
    return status;
  }
  void Run(int64_t sequence, const std::string& method = "TrainStep") {
    const CallRow row{.sequence = sequence, .identity = "ann", .method = method};
    ASSERT_TRUE(Wait([&](auto done) { journal().Append(row, {}, done); }).ok());
    ASSERT_TRUE(Wait([&](auto done) { journal().RecordOutcome(sequence, {.status = CallStatus::kDone}, done); }).ok());
  }
  void Cut(int64_t up_to) {
    ASSERT_TRUE(Wait([&](auto done) { journal().Cut(up_to, done); }).ok());
  }
  void SaveAutomatic(int64_t sequence, bool whole = true) {
    const CheckpointPlace place{.life = life_, .sequence = sequence, .whole = whole, .automatic = true};
    const auto saved = checkpoints_->FindFolder("gpt")->Save(AutomaticCheckpoints::IdOf(sequence), {.place = place},
                                                             {{"weight", at::ones({1})}});
    ASSERT_TRUE(saved.ok()) << saved.status();
  }

  absl::StatusOr<CopiedState> Copy() { return CopyTo(copy_); }
  absl::StatusOr<CopiedState> CopyTo(const std::string& folder) {
    StateCopy::Parts parts{.pipelines = table_.get(),
                           .journal = journal_.get(),
                           .checkpoints = checkpoints_.get(),
                           .records = &meanwhile_,
                           .clock = &clock_,
                           .state_dir = state_,
                           .options = setup_.options};
    return StateCopy(std::move(parts), folder, /*named=*/false, std::make_shared<CancelToken>()).Run();
  }
  std::vector<std::string> NamesIn(const std::string& folder) {
    return RealFileSystem()->List(absl::StrCat(copy_, "/", folder)).value_or(std::vector<std::string>());
  }
  // The pipelines of the copy, as a daemon would find them.
  std::vector<std::string> Copied() {
    std::vector<std::string> names;
    const auto copied = DaemonJournal::Open(copy_ + "/journal", &clock_, {});
    if (!copied.ok()) return {copied.status().ToString()};
    const std::vector<JournalledPipeline> rows = (*copied)->Pipelines().value();
    for (const JournalledPipeline& row : rows) names.push_back(row.name);
    return names;
  }

  using Names = std::vector<std::string>;
  testing::TemporaryFolder place_;
  const std::string copy_ = place_.path() + "/copy";
  Meanwhile meanwhile_;
  std::shared_ptr<ServedPipeline> gpt_;
  std::string life_;
};

TEST_F(StateCopyTest, HasTheCheckpointsThatItsJournalReaches) {
  for (int64_t sequence : {1, 2}) Run(sequence);
  for (int64_t sequence : {1, 2}) SaveAutomatic(sequence);
  Cut(2);
  Run(3);
  const absl::StatusOr<CopiedState> copied = Copy();
  ASSERT_TRUE(copied.ok()) << copied.status();
  ASSERT_EQ(copied->pipelines.size(), 1);
  EXPECT_EQ(copied->pipelines[0].sequence, 3);
  EXPECT_EQ(copied->pipelines[0].checkpoints, 1);
  EXPECT_EQ(NamesIn("pipelines/gpt/checkpoints"), Names{"auto-2"});
  EXPECT_EQ(Copied(), Names{"gpt"});
  EXPECT_EQ(RealFileSystem()->Read(copy_ + "/epoch").value_or(""), "7\n");
}

TEST_F(StateCopyTest, HasTheCheckpointThatIsPublishedAndNoOtherOfACaller) {
  Run(1);
  SaveAutomatic(1);
  for (const std::string id : {"mine", "other"}) {
    ASSERT_TRUE(checkpoints_->FindFolder("gpt")->Save(id, {}, {{"weight", at::ones({1})}}).ok());
  }
  ASSERT_TRUE(journal_->Write({.publication = JournalledPublication{"gpt", life_, "mine", 2}}).ok());
  ASSERT_TRUE(Copy().ok());
  EXPECT_EQ(NamesIn("pipelines/gpt/checkpoints"), (Names{"auto-1", "mine"}));
  const auto copied = DaemonJournal::Open(copy_ + "/journal", &clock_, {});
  EXPECT_EQ((*copied)->Publications().value().size(), 1);
}

TEST_F(StateCopyTest, HasNoCheckpointThatIsNewerThanItsJournal) {
  Run(1, "RestoreCheckpoint");
  SaveAutomatic(1);
  meanwhile_.happens = [this] { SaveAutomatic(2); };  // of a call that came when the journal was copied already
  ASSERT_TRUE(Copy().ok());
  EXPECT_EQ(NamesIn("pipelines/gpt/checkpoints"), Names{"auto-1"});
}

TEST_F(StateCopyTest, HasACheckpointBehindCallsThatStandInNoJournal) {
  Run(1);
  SaveAutomatic(3);  // behind two reads
  Cut(1);
  const absl::StatusOr<CopiedState> copied = Copy();
  ASSERT_TRUE(copied.ok()) << copied.status();
  EXPECT_EQ(NamesIn("pipelines/gpt/checkpoints"), Names{"auto-3"});
}

TEST_F(StateCopyTest, IsNotMadeOfAJournalWhoseBeginningNoCheckpointHas) {
  for (int64_t sequence : {1, 2}) Run(sequence);
  SaveAutomatic(1);
  SaveAutomatic(2, /*whole=*/false);
  Cut(2);
  const absl::Status refused = Copy().status();
  EXPECT_EQ(ReasonOf(refused), "CHECKPOINT_CORRUPT") << refused;
  EXPECT_EQ(ValuesOf(refused)["pipeline"], "gpt");
  EXPECT_EQ(RealFileSystem()->List(place_.path()).value(), Names{}) << "something is left of it";
}

TEST_F(StateCopyTest, IsRefusedByNameWhereNobodyMayWrite) {
  const absl::Status refused = CopyTo("/proc/copy").status();
  EXPECT_EQ(ReasonOf(refused), "FIELD_INVALID") << refused;
  EXPECT_EQ(ValuesOf(refused)["field"], "folder");
}

TEST_F(StateCopyTest, HasNoRowOfAPipelineThatIsGone) {
  ASSERT_TRUE(journal_->Write({.put = JournalledPipeline{.name = "gone", .life = "another"}}).ok());
  ASSERT_TRUE(Copy().ok());
  EXPECT_EQ(Copied(), Names{"gpt"});
}

TEST_F(StateCopyTest, TakesNoPipelineForOneThatHadItsName) {
  Run(1);
  ASSERT_TRUE(journal_->Write({.put = JournalledPipeline{.name = "gpt", .life = "before"}}).ok());
  ASSERT_TRUE(Copy().ok());
  EXPECT_EQ(Copied(), Names{});
  EXPECT_EQ(NamesIn("journal/before"), Names{});
}

}  // namespace
}  // namespace penstock
