#include "server/models/model_uploads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "engine/base/error.h"
#include "engine/wire/checksum.h"
#include "engine/wire/sha256.h"
#include "tests/support/fake_clock.h"
#include "tests/unit/models/model_folder.h"

namespace penstock::testing {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kChunk = int64_t{64} << 10;

class ModelUploadsTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(Restart().ok()); }
  void TearDown() override {
    jobs_->Close();
    uploads_.reset();
  }

  // As a daemon that begins with what is on the disk.
  absl::Status Restart() {
    if (jobs_ != nullptr) jobs_->Close();
    uploads_.reset();
    jobs_ = std::make_shared<JobThread>("ps-models");
    root_ = std::make_unique<ModelRoot>(folder_.Options());
    auto made = ModelUploads::Create(root_.get(), jobs_, &timers_, &clock_);
    if (made.ok()) uploads_ = *std::move(made);
    return made.status();
  }

  ModelUploads::Request Request(const std::string& file) const {
    return {.caller = "me", .model = "a.pt2", .bytes = static_cast<int64_t>(file.size()), .digest = Sha256::Of(file)};
  }

  // The whole of a file, from where the upload stands.
  absl::StatusOr<ModelDescription> Send(const std::string& file) {
    ModelUploads::Hold hold;
    absl::StatusOr<ModelUploads::Position> position = uploads_->Start(Request(file), &hold);
    while (position.ok() && !position->model.has_value()) {
      const std::string chunk = file.substr(static_cast<size_t>(position->offset), kChunk);
      position = uploads_->Add(hold, position->offset, chunk, Crc32c(chunk));
    }
    if (!position.ok()) return position.status();
    return *position->model;
  }

  // Waits for what was posted before.
  void FinishJobs() {
    absl::Notification done;
    jobs_->Post([&] { done.Notify(); });
    done.WaitForNotification();
  }

  const std::string file_ = GoldenFile("language_dropout_both.pt2");
  ModelFolder folder_;
  FakeClock clock_;
  TimerQueue timers_{&clock_};
  std::shared_ptr<JobThread> jobs_;
  std::unique_ptr<ModelRoot> root_;
  std::unique_ptr<ModelUploads> uploads_;
};

TEST_F(ModelUploadsTest, MakesAModel) {
  const absl::StatusOr<ModelDescription> model = Send(file_);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->name, "a.pt2");
  EXPECT_THAT(folder_.Names(), ElementsAre("a.pt2"));
  EXPECT_EQ(*RealFileSystem()->Read(folder_.path() + "/a.pt2"), file_);
  EXPECT_EQ(Send(file_)->digest, model->digest) << "once more is no error";
  EXPECT_EQ(ReasonOf(Send(GoldenFile("conv_net.pt2")).status()), "MODEL_EXISTS");
}

TEST_F(ModelUploadsTest, LeavesNothingWhenTheDiskIsFull) {
  for (const int64_t free : {int64_t{0}, int64_t{1}, kChunk, kChunk + 100, static_cast<int64_t>(file_.size()) - 1}) {
    folder_.files().SetFreeBytes(free);
    EXPECT_EQ(ReasonOf(Send(file_).status()), "STORAGE_FULL") << free;
    EXPECT_THAT(folder_.Names(), ElementsAre()) << free;
  }
  folder_.files().SetFreeBytes(-1);
  EXPECT_TRUE(Send(file_).ok());
}

TEST_F(ModelUploadsTest, LeavesNothingWhenTheDiskFails) {
  folder_.files().FailSync(0);
  EXPECT_FALSE(Send(file_).ok());
  EXPECT_THAT(folder_.Names(), ElementsAre());
  folder_.files().FailSync(-1);
  for (const auto fault : {FaultyFileSystem::RenameFault::kNotDone, FaultyFileSystem::RenameFault::kNotDurable}) {
    folder_.files().FailRename(0, fault);
    EXPECT_FALSE(Send(file_).ok());
    EXPECT_THAT(folder_.Names(), ElementsAre());
  }
  folder_.files().FailRename(-1);
  EXPECT_TRUE(Send(file_).ok());
}

TEST_F(ModelUploadsTest, ADeathAtAnyMomentLeavesAllOrNothing) {
  ASSERT_TRUE(Send(file_).ok());
  const int64_t changes = folder_.files().changes();
  ASSERT_TRUE(root_->Delete("a.pt2").ok());
  for (int64_t moment = 0; moment < changes; ++moment) {
    folder_.files().DieBeforeChange(moment);
    const bool answered = Send(file_).ok();
    jobs_->Close();
    uploads_.reset();  // while nothing can change the disk: the dead clean up nothing
    folder_.files().DieBeforeChange(-1);
    ASSERT_TRUE(Restart().ok());
    const std::vector<std::string> left = folder_.Names();
    if (answered || !left.empty()) {
      ASSERT_THAT(left, ElementsAre("a.pt2")) << moment;
      EXPECT_EQ(*RealFileSystem()->Read(folder_.path() + "/a.pt2"), file_) << moment;
      ASSERT_TRUE(root_->Delete("a.pt2").ok());
    }
  }
}

TEST_F(ModelUploadsTest, AnUploadIsForgottenTenMinutesAfterItBroke) {
  ModelUploads::Hold hold;
  ASSERT_TRUE(uploads_->Start(Request(file_), &hold).ok());
  const std::string chunk = file_.substr(0, kChunk);
  ASSERT_TRUE(uploads_->Add(hold, 0, chunk, Crc32c(chunk)).ok());
  uploads_->Detach(hold);
  clock_.Advance(ModelUploads::kBrokenLife - absl::Seconds(1));
  timers_.SettleForTest();
  FinishJobs();
  EXPECT_EQ(folder_.Names().size(), 1u);
  // Whoever goes on with it has it; the end of the first stream's time means nothing then.
  ModelUploads::Hold second;
  EXPECT_EQ(uploads_->Start(Request(file_), &second)->offset, kChunk);
  EXPECT_EQ(ReasonOf(uploads_->Add(hold, kChunk, chunk, Crc32c(chunk)).status()), "STREAM_PROTOCOL");
  clock_.Advance(absl::Seconds(2));
  timers_.SettleForTest();
  FinishJobs();
  EXPECT_EQ(folder_.Names().size(), 1u);
  uploads_->Detach(second);
  clock_.Advance(ModelUploads::kBrokenLife);
  timers_.SettleForTest();
  FinishJobs();
  EXPECT_THAT(folder_.Names(), ElementsAre());
  ModelUploads::Hold third;
  EXPECT_EQ(uploads_->Start(Request(file_), &third)->offset, 0);
}

TEST_F(ModelUploadsTest, CallersDoNotMeet) {
  ModelUploads::Hold mine, theirs;
  ASSERT_TRUE(uploads_->Start(Request(file_), &mine).ok());
  const std::string chunk = file_.substr(0, kChunk);
  ASSERT_TRUE(uploads_->Add(mine, 0, chunk, Crc32c(chunk)).ok());
  ModelUploads::Request other = Request(file_);
  other.caller = "you";
  EXPECT_EQ(uploads_->Start(other, &theirs)->offset, 0);
}

TEST_F(ModelUploadsTest, ACallerHasAShareOfTheUploadsAndLeavesRoomForOthers) {
  std::vector<ModelUploads::Hold> holds;
  const auto start = [&](const std::string& caller, const std::string& model) {
    ModelUploads::Request request = Request(file_);
    request.caller = caller;
    request.model = model;
    return ReasonOf(uploads_->Start(request, &holds.emplace_back()).status());
  };
  for (int i = 0; i < 6; ++i) EXPECT_EQ(start("me", "m" + std::to_string(i) + ".pt2"), "");
  EXPECT_EQ(start("me", "more.pt2"), "CALLER_QUOTA");
  EXPECT_EQ(start("you", "a.pt2"), "");
  EXPECT_EQ(start("you", "b.pt2"), "");
  EXPECT_EQ(start("she", "a.pt2"), "STREAM_LIMIT") << "all are taken";
}

TEST_F(ModelUploadsTest, ACallerAnnouncesItsShareOfTheRoomAndLeavesOthersTheirs) {
  std::vector<ModelUploads::Hold> holds;
  const auto start = [&](const std::string& caller, const std::string& model, int64_t bytes) {
    ModelUploads::Request request = Request(file_);
    request.caller = caller;
    request.model = model;
    request.bytes = bytes;
    return ReasonOf(uploads_->Start(request, &holds.emplace_back()).status());
  };
  const int64_t quarter = root_->options().max_root_bytes / 4;
  ASSERT_LE(quarter, root_->options().max_model_bytes);
  for (const char* model : {"a.pt2", "b.pt2", "c.pt2"}) EXPECT_EQ(start("me", model, quarter), "");
  EXPECT_EQ(start("me", "d.pt2", 1), "CALLER_QUOTA");
  EXPECT_EQ(start("you", "a.pt2", quarter), "") << "there is room for the next";
  EXPECT_EQ(start("she", "a.pt2", 1), "STORAGE_FULL");
}

TEST_F(ModelUploadsTest, AFileThatCameMeanwhileStays) {
  ModelUploads::Hold hold;
  absl::StatusOr<ModelUploads::Position> position = uploads_->Start(Request(file_), &hold);
  folder_.Put("a.pt2", "theirs");
  while (position.ok() && !position->model.has_value()) {
    const std::string chunk = file_.substr(static_cast<size_t>(position->offset), kChunk);
    position = uploads_->Add(hold, position->offset, chunk, Crc32c(chunk));
  }
  EXPECT_EQ(ReasonOf(position.status()), "MODEL_EXISTS");
  EXPECT_EQ(*RealFileSystem()->Read(folder_.path() + "/a.pt2"), "theirs");
}

TEST_F(ModelUploadsTest, NoChunkGoesBeyondItsFile) {
  const std::string file(static_cast<size_t>(kChunk) * 3 / 2, 'x');
  ModelUploads::Hold hold;
  ASSERT_TRUE(uploads_->Start(Request(file), &hold).ok());
  const std::string chunk = file.substr(0, kChunk);
  ASSERT_TRUE(uploads_->Add(hold, 0, chunk, Crc32c(chunk)).ok());
  const absl::Status beyond = uploads_->Add(hold, kChunk, chunk, Crc32c(chunk)).status();
  EXPECT_EQ(ReasonOf(beyond), "CHUNK_SIZE");
  EXPECT_EQ(ValuesOf(beyond)["value"], std::to_string(kChunk));
}

TEST_F(ModelUploadsTest, ClosingRemovesWhatIsOpen) {
  ModelUploads::Hold hold;
  ASSERT_TRUE(uploads_->Start(Request(file_), &hold).ok());
  EXPECT_EQ(folder_.Names().size(), 1u);
  jobs_->Close();
  uploads_->Close();
  EXPECT_THAT(folder_.Names(), ElementsAre());
}

}  // namespace
}  // namespace penstock::testing
