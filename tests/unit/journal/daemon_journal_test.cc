#include "engine/journal/daemon_journal.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "engine/base/error.h"
#include "tests/support/fake_clock.h"
#include "tests/support/unsynced_disk.h"

namespace penstock {
namespace {

using testing::FakeClock;
using testing::UnsyncedDisk;

JournalledPipeline Pipeline(std::string name, std::string fingerprint = "build 1") {
  return {.name = std::move(name),
          .life = "life",
          .owner = "ann",
          .specification = std::string("spec\0ification", 14),
          .fingerprint = std::move(fingerprint),
          .create_unix_nanos = 17};
}

PipelineRequest Request(std::string id, CallStatus status = CallStatus::kAccepted) {
  return {.identity = "ann",
          .method = "CreatePipeline",
          .request_id = std::move(id),
          .pipeline = "mlp",
          .payload_digest = "digest",
          .status = status,
          .outcome = status == CallStatus::kAccepted ? "" : "outcome"};
}

class DaemonJournalTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(Open().ok()); }
  absl::Status Open() {
    journal_.reset();
    options_.files = &disk_;
    options_.vfs = disk_.vfs();
    absl::StatusOr<std::unique_ptr<DaemonJournal>> opened = DaemonJournal::Open("/daemon", &clock_, options_);
    if (opened.ok()) journal_ = *std::move(opened);
    return opened.status();
  }
  absl::Status Crash() {
    disk_.Crash();
    return Open();
  }
  std::string FingerprintOf(const std::string& name) {
    const absl::StatusOr<std::vector<JournalledPipeline>> rows = journal_->Pipelines();
    for (const JournalledPipeline& row : *rows) {
      if (row.name == name) return row.fingerprint;
    }
    return "missing";
  }
  std::optional<PipelineRequest> Find(const std::string& id) {
    return *journal_->FindRequest("ann", "CreatePipeline", id);
  }

  UnsyncedDisk disk_;
  FakeClock clock_;
  DaemonJournal::Options options_;
  std::unique_ptr<DaemonJournal> journal_;
};

TEST_F(DaemonJournalTest, APipelineAndItsRequestAreDurableAtOnce) {
  ASSERT_TRUE(journal_->Write({.put = Pipeline("mlp"), .request = Request("1")}).ok());
  ASSERT_TRUE(Crash().ok());
  const absl::StatusOr<std::vector<JournalledPipeline>> rows = journal_->Pipelines();
  ASSERT_TRUE(rows.ok());
  ASSERT_EQ(rows->size(), 1);
  const JournalledPipeline& row = rows->front();
  EXPECT_EQ(row.name, "mlp");
  EXPECT_EQ(row.owner, "ann");
  EXPECT_EQ(row.specification, std::string("spec\0ification", 14));
  EXPECT_EQ(row.life, "life");
  EXPECT_EQ(row.fingerprint, "build 1");
  EXPECT_EQ(row.create_unix_nanos, 17);
  ASSERT_TRUE(Find("1").has_value());
  EXPECT_EQ(Find("1")->status, CallStatus::kAccepted);
  EXPECT_EQ(Find("1")->pipeline, "mlp");
  EXPECT_FALSE(Find("2").has_value());
}

TEST_F(DaemonJournalTest, ARequestIsSettledWithTheNextFingerprintOfItsPipeline) {
  ASSERT_TRUE(journal_->Write({.put = Pipeline("mlp"), .request = Request("1")}).ok());
  ASSERT_TRUE(journal_->Write({.put = Pipeline("mlp", "build 2"), .request = Request("1", CallStatus::kDone)}).ok());
  ASSERT_TRUE(Crash().ok());
  EXPECT_EQ(FingerprintOf("mlp"), "build 2");
  ASSERT_TRUE(Find("1").has_value());
  EXPECT_EQ(Find("1")->status, CallStatus::kDone);
  EXPECT_EQ(Find("1")->outcome, "outcome");
  EXPECT_EQ(Find("1")->payload_digest, "digest");
}

TEST_F(DaemonJournalTest, ADeletedPipelineIsGoneAndItsRequestStays) {
  ASSERT_TRUE(journal_->Write({.put = Pipeline("a")}).ok());
  ASSERT_TRUE(journal_->Write({.put = Pipeline("b")}).ok());
  ASSERT_TRUE(journal_->Write({.remove = "a", .request = Request("1", CallStatus::kDone)}).ok());
  ASSERT_TRUE(Crash().ok());
  ASSERT_EQ(journal_->Pipelines()->size(), 1);
  EXPECT_EQ(FingerprintOf("b"), "build 1");
  EXPECT_TRUE(Find("1").has_value());
}

TEST_F(DaemonJournalTest, WhatIsPublishedIsDurableAndGoesWithItsPipeline) {
  const auto published = [this] {
    std::string all;
    const std::vector<JournalledPublication> rows = journal_->Publications().value();
    for (const JournalledPublication& one : rows) {
      all += one.pipeline + " " + one.life + " " + one.checkpoint + " " + std::to_string(one.version) + ";";
    }
    return all;
  };
  ASSERT_TRUE(journal_->Write({.put = Pipeline("mlp")}).ok());
  ASSERT_TRUE(journal_->Write({.publication = JournalledPublication{"mlp", "life", "one", 2, 7, 17}}).ok());
  ASSERT_TRUE(journal_->Write({.publication = JournalledPublication{"gpt", "other", "", 3}}).ok());
  ASSERT_TRUE(Crash().ok());
  EXPECT_EQ(published(), "gpt other  3;mlp life one 2;");
  ASSERT_TRUE(journal_->Write({.publication = JournalledPublication{"mlp", "life", "two", 3}}).ok());
  ASSERT_TRUE(journal_->Write({.remove = "gpt"}).ok());
  ASSERT_TRUE(Crash().ok());
  EXPECT_EQ(published(), "mlp life two 3;");
}

TEST_F(DaemonJournalTest, ThatAPipelineIsUnloadedIsDurableUntilItIsLoadedOrGoes) {
  const auto unloaded = [this] {
    std::string all;
    const std::vector<JournalledUnload> rows = journal_->Unloads().value();
    for (const JournalledUnload& one : rows) all += one.pipeline + " " + one.life + ";";
    return all;
  };
  for (const char* name : {"mlp", "gpt"}) {
    ASSERT_TRUE(journal_->Write({.put = Pipeline(name)}).ok());
    ASSERT_TRUE(journal_->Write({.unload = JournalledUnload{name, "life", 17}}).ok());
  }
  ASSERT_TRUE(Crash().ok());
  EXPECT_EQ(unloaded(), "gpt life;mlp life;");
  ASSERT_TRUE(journal_->Write({.load = "gpt"}).ok());
  ASSERT_TRUE(Crash().ok());
  EXPECT_EQ(unloaded(), "mlp life;");
  ASSERT_TRUE(journal_->Write({.remove = "mlp"}).ok());
  ASSERT_TRUE(Crash().ok());
  EXPECT_EQ(unloaded(), "");
}

TEST_F(DaemonJournalTest, SettledRequestsAreForgottenAndOpenOnesAreNot) {
  options_.retention.entries = 2;
  ASSERT_TRUE(Open().ok());
  const auto write = [&](std::string id, CallStatus status = CallStatus::kDone) {
    ASSERT_TRUE(journal_->Write({.request = Request(std::move(id), status)}).ok());
    clock_.Advance(absl::Seconds(1));
  };
  write("open", CallStatus::kAccepted);
  for (const char* id : {"1", "2", "3"}) write(id);
  EXPECT_TRUE(Find("1").has_value());
  clock_.Advance(absl::Minutes(10));
  write("4");
  EXPECT_FALSE(Find("1").has_value());
  EXPECT_FALSE(Find("2").has_value());
  EXPECT_TRUE(Find("3").has_value());
  clock_.Advance(absl::Hours(24));
  write("5");
  EXPECT_FALSE(Find("4").has_value());
  EXPECT_TRUE(Find("open").has_value());
}

TEST_F(DaemonJournalTest, AByteOfARowIsDamage) {
  ASSERT_TRUE(journal_->Write({.put = Pipeline("mlp"), .request = Request("1", CallStatus::kDone)}).ok());
  ASSERT_TRUE(journal_->Close().ok());
  journal_.reset();
  const std::string whole = *disk_.Read("/daemon/daemon.db");
  for (const char* text : {"build 1", "outcome"}) {
    disk_.Put("/daemon/daemon.db", whole);
    disk_.Flip("/daemon/daemon.db", whole.rfind(text));
    EXPECT_EQ(ReasonOf(Open()), "JOURNAL_CORRUPT") << text;
  }
}

TEST_F(DaemonJournalTest, ALostCommitIsDamage) {
  ASSERT_TRUE(journal_->Write({.put = Pipeline("a")}).ok());
  ASSERT_TRUE(journal_->Close().ok());
  ASSERT_TRUE(journal_->Write({.put = Pipeline("b")}).ok());
  const std::string mark = *disk_.Read("/daemon/daemon.db-acknowledged");
  disk_.Crash();
  journal_.reset();
  disk_.Put("/daemon/daemon.db-acknowledged", mark);
  disk_.Put("/daemon/daemon.db-wal", "");
  EXPECT_EQ(ReasonOf(Open()), "JOURNAL_CORRUPT");
}

TEST_F(DaemonJournalTest, FullDisksAndFailedSyncsAreToldByName) {
  ASSERT_TRUE(journal_->Write({.put = Pipeline("a")}).ok());
  disk_.SetFreeBytes(10);
  EXPECT_EQ(ReasonOf(journal_->Write({.put = Pipeline("b")})), "STORAGE_FULL");
  disk_.SetFreeBytes(-1);
  EXPECT_TRUE(journal_->Write({.put = Pipeline("b")}).ok());
  disk_.FailSync(0);
  EXPECT_EQ(ReasonOf(journal_->Write({.put = Pipeline("c")})), "JOURNAL_STOPPED");
  EXPECT_EQ(journal_->Pipelines()->size(), 2);
  EXPECT_EQ(ReasonOf(journal_->Write({.put = Pipeline("c")})), "JOURNAL_STOPPED");
}

}  // namespace
}  // namespace penstock
