#include "engine/journal/pipeline_journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

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

class PipelineJournalTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(life_.Open().ok()); }

  // Keeps the journal's thread busy until the returned function is called: what comes meanwhile is one group.
  std::function<void()> Hold(int64_t sequence) {
    auto entered = std::make_shared<absl::Notification>();
    auto go = std::make_shared<absl::Notification>();
    life_.journal->Append(MakeCall(sequence), {}, [entered, go](const absl::Status&) {
      entered->Notify();
      go->WaitForNotification();
    });
    entered->WaitForNotification();
    return [go] { go->Notify(); };
  }

  JournalLife life_;
};

TEST_F(PipelineJournalTest, ARowComesBackAsItWasAccepted) {
  CallRow call = MakeCall(7);
  call.forward_sequence = 3;
  Told told;
  life_.journal->Append(call, {MakeInput("small"), MakeInput(ContentOf(7, 5000))}, told.done());
  ASSERT_TRUE(told.Wait().ok());
  ASSERT_TRUE(life_.Reopen().ok());
  int rows = 0;
  const absl::Status read = life_.journal->Read(0, [&](CallRow row) {
    ++rows;
    EXPECT_EQ(row.sequence, 7);
    EXPECT_EQ(row.identity, "ann");
    EXPECT_EQ(row.method, "TrainStep");
    EXPECT_EQ(row.request_id, "request-7");
    EXPECT_EQ(row.payload_digest, "digest-7");
    EXPECT_EQ(row.parameters, "parameters of 7");
    EXPECT_EQ(row.micro_batches, 4);
    EXPECT_EQ(row.forward_sequence, 3);
    EXPECT_EQ(row.accepted_unix_nanos, 7000);
    EXPECT_EQ(row.outcome.status, CallStatus::kAccepted);
    EXPECT_EQ(row.inputs.size(), 2);
    EXPECT_EQ(row.inputs[0].header, "x");
    EXPECT_EQ(*life_.journal->ReadInput(row.inputs[0]), "small");
    EXPECT_TRUE(row.inputs[1].in_file());
    EXPECT_EQ(*life_.journal->ReadInput(row.inputs[1]), ContentOf(7, 5000));
    return absl::OkStatus();
  });
  EXPECT_TRUE(read.ok()) << read;
  EXPECT_EQ(rows, 1);
}

TEST_F(PipelineJournalTest, OneSyncServesAGroupAndIsAcknowledgedInOrder) {
  const std::function<void()> go = Hold(1);
  absl::Mutex mu;
  std::vector<int64_t> told;
  const int64_t before = life_.disk.syncs();
  for (int64_t sequence = 2; sequence <= 9; ++sequence) {
    life_.journal->Append(MakeCall(sequence), {}, [&, sequence](const absl::Status& status) {
      EXPECT_TRUE(status.ok()) << status;
      EXPECT_GE(life_.journal->last_sequence(), sequence);  // durable before it is told
      absl::MutexLock lock(&mu);
      told.push_back(sequence);
    });
  }
  go();
  ASSERT_TRUE(life_.journal->Close().ok());
  EXPECT_EQ(told, (std::vector<int64_t>{2, 3, 4, 5, 6, 7, 8, 9}));
  // The group's, and those of Close(): the log, the database.
  EXPECT_LE(life_.disk.syncs() - before, 1 + 3);
}

TEST_F(PipelineJournalTest, AGroupEndsWhereItsInputsAreMany) {
  life_.options.max_group_bytes = 2000;
  ASSERT_TRUE(life_.Reopen().ok());
  const std::function<void()> go = Hold(1);
  std::vector<Told> told(4);
  const int64_t before = life_.disk.syncs();
  for (int64_t i = 0; i < 4; ++i) {
    life_.journal->Append(MakeCall(i + 2), {MakeInput(ContentOf(i, 900))}, told[static_cast<size_t>(i)].done());
  }
  go();
  for (const Told& one : told) EXPECT_TRUE(one.Wait().ok());
  EXPECT_EQ(life_.disk.syncs() - before, 2);
}

TEST_F(PipelineJournalTest, AnOutcomeRidesWithTheNextCall) {
  const std::function<void()> go = Hold(1);
  Told outcome, call;
  const int64_t before = life_.disk.syncs();
  life_.journal->RecordOutcome(1, {.status = CallStatus::kDone}, outcome.done());
  life_.journal->Append(MakeCall(2), {}, call.done());
  go();
  EXPECT_TRUE(outcome.Wait().ok());
  EXPECT_TRUE(call.Wait().ok());
  EXPECT_EQ(life_.disk.syncs() - before, 1);
}

TEST_F(PipelineJournalTest, AnOutcomeWaitsForNoCall) {
  ASSERT_TRUE(life_.Append(1).ok());
  EXPECT_TRUE(life_.Settle(1).ok());
}

TEST_F(PipelineJournalTest, AnOutcomeIsRecordedOnceAndForACallThatIsThere) {
  ASSERT_TRUE(life_.Append(1).ok());
  EXPECT_EQ(ReasonOf(life_.Settle(2)), "FIELD_INVALID");
  EXPECT_TRUE(life_.Settle(1).ok());
  EXPECT_EQ(ReasonOf(life_.Settle(1, "another")), "FIELD_INVALID");
  EXPECT_EQ((*life_.Find(1))->outcome.bytes, "done");
}

TEST_F(PipelineJournalTest, ARequestIsFoundWithItsOutcomeAlsoAfterARestart) {
  ASSERT_TRUE(life_.Append(1).ok());
  ASSERT_TRUE(life_.Append(2).ok());
  Told told;
  life_.journal->RecordOutcome(1, {.status = CallStatus::kFailed, .draw_base = 8, .run_nanos = 3, .bytes = "why"},
                               told.done());
  ASSERT_TRUE(told.Wait().ok());
  for (int restart = 0; restart < 2; ++restart) {
    const absl::StatusOr<std::optional<RecordedCall>> settled = life_.Find(1);
    ASSERT_TRUE(settled.ok() && settled->has_value());
    EXPECT_EQ((*settled)->sequence, 1);
    EXPECT_EQ((*settled)->payload_digest, "digest-1");
    EXPECT_EQ((*settled)->outcome.status, CallStatus::kFailed);
    EXPECT_EQ((*settled)->outcome.draw_base, 8);
    EXPECT_EQ((*settled)->outcome.bytes, "why");
    EXPECT_EQ((*settled)->outcome.settled_unix_nanos, absl::ToUnixNanos(life_.clock.WallNow()));
    const absl::StatusOr<std::optional<RecordedCall>> open = life_.Find(2);
    ASSERT_TRUE(open.ok() && open->has_value());
    EXPECT_EQ((*open)->payload_digest, "digest-2");
    EXPECT_EQ((*open)->outcome.status, CallStatus::kAccepted);
    EXPECT_FALSE(life_.Find(3)->has_value());
    EXPECT_FALSE(life_.journal->FindRequest("bob", "TrainStep", "request-1")->has_value());
    EXPECT_FALSE(life_.journal->FindRequest("ann", "Backward", "request-1")->has_value());
    ASSERT_TRUE(life_.Reopen().ok());
  }
}

TEST_F(PipelineJournalTest, SequencesRiseAndMayLeaveNumbersOut) {
  EXPECT_TRUE(life_.Append(5).ok());
  EXPECT_EQ(ReasonOf(life_.Append(5)), "FIELD_INVALID");
  EXPECT_EQ(ReasonOf(life_.Append(4)), "FIELD_INVALID");
  EXPECT_TRUE(life_.Append(9).ok());
  ASSERT_TRUE(life_.Reopen().ok());
  EXPECT_EQ(ReasonOf(life_.Append(9)), "FIELD_INVALID");
  EXPECT_EQ(*life_.Sequences(), (std::vector<int64_t>{5, 9}));
}

TEST_F(PipelineJournalTest, TheReplaySizeIsWhatStandsBehindTheCut) {
  for (int64_t sequence = 1; sequence <= 4; ++sequence) {
    ASSERT_TRUE(life_.Append(sequence, sequence == 4 ? 5000 : 10).ok());
    ASSERT_TRUE(life_.Settle(sequence).ok());
  }
  const PipelineJournal::ReplaySize all = life_.journal->replay_size();
  EXPECT_EQ(all.rows, 4);
  EXPECT_GT(all.bytes, 5030);
  EXPECT_EQ(all.run_nanos, 20);
  ASSERT_TRUE(life_.Reopen().ok());
  EXPECT_EQ(life_.journal->replay_size().bytes, all.bytes);
  EXPECT_EQ(life_.journal->replay_size().run_nanos, 20);
  ASSERT_TRUE(life_.Cut(3).ok());
  const PipelineJournal::ReplaySize rest = life_.journal->replay_size();
  EXPECT_EQ(rest.rows, 1);
  EXPECT_EQ(rest.run_nanos, 5);
  ASSERT_TRUE(life_.Reopen().ok());
  EXPECT_EQ(life_.journal->replay_size().rows, 1);
  EXPECT_EQ(life_.journal->replay_size().bytes, rest.bytes);
}

TEST_F(PipelineJournalTest, ACutTakesCallsAndInputsAndLeavesOutcomes) {
  life_.options.rows_per_cut = 2;  // in several transactions
  ASSERT_TRUE(life_.Reopen().ok());
  for (int64_t sequence = 1; sequence <= 7; ++sequence) {
    ASSERT_TRUE(life_.Append(sequence, 5000).ok());
    ASSERT_TRUE(life_.Settle(sequence, absl::StrCat("outcome of ", sequence)).ok());
  }
  ASSERT_TRUE(life_.Cut(5).ok());
  EXPECT_EQ(life_.journal->cut_sequence(), 5);
  EXPECT_EQ(life_.disk.List(JournalLife::kBlobs)->size(), 2);
  for (int restart = 0; restart < 2; ++restart) {
    EXPECT_EQ(*life_.Sequences(), (std::vector<int64_t>{6, 7}));
    EXPECT_EQ((*life_.Find(2))->outcome.bytes, "outcome of 2");
    ASSERT_TRUE(life_.Reopen().ok());
  }
  EXPECT_TRUE(life_.Append(8).ok());
  ASSERT_TRUE(life_.Settle(8).ok());
  ASSERT_TRUE(life_.Cut(8).ok());
  ASSERT_TRUE(life_.Reopen().ok());
  EXPECT_EQ(life_.journal->last_sequence(), 8);
  EXPECT_TRUE(life_.Sequences()->empty());
  EXPECT_TRUE(life_.Append(9).ok());
}

TEST_F(PipelineJournalTest, NothingIsCutThatHasNoOutcome) {
  ASSERT_TRUE(life_.Append(1).ok());
  ASSERT_TRUE(life_.Append(2).ok());
  ASSERT_TRUE(life_.Settle(1).ok());
  EXPECT_EQ(ReasonOf(life_.Cut(2)), "FIELD_INVALID");
  EXPECT_EQ(ReasonOf(life_.Cut(3)), "FIELD_INVALID");
  EXPECT_EQ(*life_.Sequences(), UpTo(2));
  EXPECT_TRUE(life_.Cut(1).ok());
}

TEST_F(PipelineJournalTest, AContentStaysUntilItsLastCallIsCut) {
  const std::string same = ContentOf(1, 5000);
  ASSERT_TRUE(life_.AppendContents(1, {same, same}).ok());
  ASSERT_TRUE(life_.AppendContents(2, {same}).ok());
  EXPECT_EQ(life_.disk.List(JournalLife::kBlobs)->size(), 1);
  ASSERT_TRUE(life_.Settle(1).ok());
  ASSERT_TRUE(life_.Settle(2).ok());
  ASSERT_TRUE(life_.Cut(1).ok());
  EXPECT_EQ(life_.disk.List(JournalLife::kBlobs)->size(), 1);
  ASSERT_TRUE(life_.Reopen().ok());
  ASSERT_TRUE(life_.Cut(2).ok());
  EXPECT_TRUE(life_.disk.List(JournalLife::kBlobs)->empty());
}

TEST_F(PipelineJournalTest, OutcomesOfCutCallsAreKeptForADayAndLongerNot) {
  life_.options.retention = {.entries = 3};
  ASSERT_TRUE(life_.Reopen().ok());
  const auto step = [&](int64_t sequence) {
    ASSERT_TRUE(life_.Append(sequence).ok());
    ASSERT_TRUE(life_.Settle(sequence).ok());
    ASSERT_TRUE(life_.Cut(sequence).ok());
  };
  const auto known = [&](int64_t sequence) { return life_.Find(sequence)->has_value(); };
  for (int64_t sequence = 1; sequence <= 5; ++sequence) step(sequence);
  EXPECT_TRUE(known(1));  // more than three are there, and ten minutes have not passed
  life_.clock.Advance(absl::Minutes(10));
  step(6);
  EXPECT_FALSE(known(1));
  EXPECT_FALSE(known(3));
  EXPECT_TRUE(known(4));  // 4, 5 and 6 are the newest three
  life_.clock.Advance(absl::Hours(24) - absl::Minutes(10) - absl::Nanoseconds(1));
  step(7);
  EXPECT_TRUE(known(5));
  life_.clock.Advance(absl::Nanoseconds(1));
  step(8);
  EXPECT_FALSE(known(5));
  EXPECT_TRUE(known(6));
  ASSERT_TRUE(life_.Reopen().ok());
  EXPECT_FALSE(known(5));
  EXPECT_TRUE(known(7));
}

TEST_F(PipelineJournalTest, AFullDiskAcceptsNothingAndGoesOnWhenThereIsRoom) {
  ASSERT_TRUE(life_.Append(1).ok());
  life_.disk.SetFreeBytes(100);
  EXPECT_EQ(ReasonOf(life_.Append(2, 600)), "STORAGE_FULL");   // there is no room, as the journal sees
  EXPECT_EQ(ReasonOf(life_.Append(2, 10)), "STORAGE_FULL");    // nor for the log, as SQLite finds
  EXPECT_EQ(ReasonOf(life_.Append(2, 5000)), "STORAGE_FULL");  // nor for a content
  EXPECT_EQ(*life_.Sequences(), UpTo(1));
  life_.disk.SetFreeBytes(-1);
  EXPECT_TRUE(life_.Append(2).ok());
  ASSERT_TRUE(life_.Reopen().ok());
  EXPECT_EQ(*life_.Sequences(), UpTo(2));
}

TEST_F(PipelineJournalTest, TheHeadroomIsForOutcomesAlone) {
  ASSERT_TRUE(life_.Append(1).ok());
  life_.options.headroom_bytes = 1 << 20;
  ASSERT_TRUE(life_.Reopen().ok());
  life_.disk.SetFreeBytes(1 << 20);
  EXPECT_EQ(ReasonOf(life_.Append(2)), "STORAGE_FULL");
  EXPECT_TRUE(life_.Settle(1).ok());
}

TEST_F(PipelineJournalTest, AnOutcomeIsRecordedWhereTheCallBesideItFindsNoRoom) {
  const std::function<void()> go = Hold(1);
  // Room for the outcome's pages, but not for those of the call.
  life_.options.headroom_bytes = 0;
  Told outcome, call;
  life_.journal->RecordOutcome(1, {.status = CallStatus::kDone}, outcome.done());
  CallRow large = MakeCall(2);
  large.parameters = std::string(200'000, 'p');
  life_.journal->Append(large, {}, call.done());
  life_.disk.SetFreeBytes(50'000);
  go();
  EXPECT_EQ(ReasonOf(call.Wait()), "STORAGE_FULL");
  EXPECT_TRUE(outcome.Wait().ok());
}

TEST_F(PipelineJournalTest, AfterAFailedSyncAllIsStoppedAndReadsGoOn) {
  ASSERT_TRUE(life_.Append(1).ok());
  life_.disk.FailSync(0);
  EXPECT_EQ(ReasonOf(life_.Append(2)), "JOURNAL_STOPPED");
  life_.disk.FailSync(-1);
  const int64_t syncs = life_.disk.syncs();
  EXPECT_EQ(ReasonOf(life_.Append(3)), "JOURNAL_STOPPED");
  EXPECT_EQ(ReasonOf(life_.Append(4, 5000)), "JOURNAL_STOPPED");
  EXPECT_EQ(ReasonOf(life_.Settle(1)), "JOURNAL_STOPPED");
  EXPECT_EQ(ReasonOf(life_.Cut(1)), "JOURNAL_STOPPED");
  EXPECT_EQ(*life_.Sequences(), UpTo(1));
  EXPECT_TRUE((*life_.Find(1)).has_value());
  EXPECT_EQ(ReasonOf(life_.journal->Close()), "JOURNAL_STOPPED");
  EXPECT_EQ(life_.disk.syncs(), syncs);
  // The restart knows: it is there, or not.
  ASSERT_TRUE(life_.Reopen().ok());
  EXPECT_GE(life_.Sequences()->size(), 1);
  EXPECT_TRUE(life_.Append(5).ok());
}

TEST_F(PipelineJournalTest, AFailedSyncOfAnInputStopsAll) {
  ASSERT_TRUE(life_.Append(1).ok());
  for (const int64_t which : {0, 1}) {  // its content, its folder
    life_.disk.FailSync(which);
    EXPECT_EQ(ReasonOf(life_.Append(2, 5000)), "JOURNAL_STOPPED") << which;
    life_.disk.FailSync(-1);
    EXPECT_EQ(ReasonOf(life_.Append(3)), "JOURNAL_STOPPED") << which;
    ASSERT_TRUE(life_.Reopen().ok());
    EXPECT_EQ(*life_.Sequences(), UpTo(1));
  }
}

TEST_F(PipelineJournalTest, TheLogIsWrittenIntoTheDatabaseAtLeisure) {
  life_.options.idle_log_pages = 20;
  ASSERT_TRUE(life_.Reopen().ok());
  const std::function<void()> go = Hold(1);
  Told told;
  for (int64_t sequence = 2; sequence < 100; ++sequence) {
    life_.journal->Append(MakeCall(sequence), {MakeInput(ContentOf(sequence, 900))}, [](const absl::Status&) {});
  }
  life_.journal->Append(MakeCall(100), {}, told.done());
  const int64_t before = life_.disk.syncs(UnsyncedDisk::SyncOf::kDatabase);
  go();
  ASSERT_TRUE(told.Wait().ok());
  life_.disk.AwaitSyncs(UnsyncedDisk::SyncOf::kDatabase, before + 1);
}

TEST_F(PipelineJournalTest, TheLogIsWrittenIntoTheDatabaseBeforeItIsTooLong) {
  life_.options.idle_log_pages = 1'000'000;
  life_.options.max_log_pages = 50;
  ASSERT_TRUE(life_.Reopen().ok());
  for (int64_t sequence = 1; sequence <= 100; ++sequence) ASSERT_TRUE(life_.Append(sequence).ok());
  EXPECT_LT(life_.disk.Info(JournalLife::kLog)->bytes, 70 * 4120);
  EXPECT_EQ(*life_.Sequences(), UpTo(100));
}

TEST_F(PipelineJournalTest, ACallbackThatThrowsHoldsUpNobody) {
  life_.journal->Append(MakeCall(1), {}, [](const absl::Status&) { throw std::runtime_error("a fault of the test"); });
  EXPECT_TRUE(life_.Append(2).ok());
}

TEST_F(PipelineJournalTest, WhatComesAfterTheEndIsRefused) {
  ASSERT_TRUE(life_.journal->Close().ok());
  EXPECT_EQ(ReasonOf(life_.Append(1)), "JOURNAL_STOPPED");
  EXPECT_EQ(ReasonOf(life_.Settle(1)), "JOURNAL_STOPPED");
  EXPECT_EQ(ReasonOf(life_.Cut(1)), "JOURNAL_STOPPED");
}

}  // namespace
}  // namespace penstock
