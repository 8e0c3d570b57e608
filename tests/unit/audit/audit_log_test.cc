#include "server/audit/audit_log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/synchronization/notification.h"
#include "engine/base/log.h"

namespace penstock {
namespace {

class AuditLogTest : public ::testing::Test {
 protected:
  ~AuditLogTest() override { std::filesystem::remove(path_); }

  std::unique_ptr<AuditLog> Open(const std::string& path) {
    auto log = AuditLog::Open({.path = path, .max_bytes = 1 << 30, .old_files = 1}, &metrics_);
    EXPECT_TRUE(log.ok()) << log.status();
    return *std::move(log);
  }
  int64_t Count(AuditOutcome outcome) const { return metrics_.audit_records[outcome].value(); }

  const std::string path_ =
      (std::filesystem::path(::testing::TempDir()) / ("audit_log_" + std::to_string(::getpid()))).string();
  ServerMetrics metrics_;
};

TEST_F(AuditLogTest, TheEndWritesWhatWaits) {
  auto log = Open(path_);
  for (int i = 0; i < 1000; ++i) log->Add({.identity = std::to_string(i)});
  log.reset();
  std::ifstream file(path_);
  int lines = 0;
  for (std::string line; std::getline(file, line); ++lines) {
    EXPECT_NE(line.find("\"identity\": \"" + std::to_string(lines) + "\""), std::string::npos) << line;
  }
  EXPECT_EQ(lines, 1000);
  EXPECT_EQ(Count(AuditOutcome::kWritten), 1000);
}

TEST_F(AuditLogTest, WhatADiskHasNoRoomForIsCounted) {
  auto log = Open("/dev/full");
  for (int i = 0; i < 3; ++i) log->Add({});
  log.reset();
  EXPECT_EQ(Count(AuditOutcome::kFailed), 3);
  EXPECT_EQ(Count(AuditOutcome::kWritten), 0);
}

TEST_F(AuditLogTest, AFailureIsLoggedOnceUntilALineIsWrittenAgain) {
  const int64_t before = LoggedLines(LogLevel::kError);
  int64_t lines = 0;
  auto log = std::make_unique<AuditLog>(
      [&](std::string_view) {
        ++lines;
        return lines == 4 ? absl::OkStatus() : absl::ResourceExhaustedError("no room");
      },
      &metrics_);
  for (int i = 0; i < 6; ++i) log->Add({});
  log.reset();
  EXPECT_EQ(lines, 6);
  EXPECT_EQ(LoggedLines(LogLevel::kError) - before, 2);
}

TEST_F(AuditLogTest, NobodyWaitsForASlowDiskAndWhatFindsNoRoomIsCounted) {
  absl::Notification writing;
  absl::Notification go_on;
  int64_t lines = 0;  // the thread's until the log has ended
  auto log = std::make_unique<AuditLog>(
      [&](std::string_view) {
        if (++lines == 1) {
          writing.Notify();
          go_on.WaitForNotification();
        }
        return absl::OkStatus();
      },
      &metrics_);
  log->Add({});
  writing.WaitForNotification();
  constexpr int64_t kRoom = AuditLog::kMaxWaiting;
  for (int64_t i = 0; i < kRoom + 3; ++i) log->Add({});
  EXPECT_EQ(Count(AuditOutcome::kDropped), 3);
  go_on.Notify();
  log.reset();
  EXPECT_EQ(lines, kRoom + 1);
  EXPECT_EQ(Count(AuditOutcome::kWritten), kRoom + 1);
}

}  // namespace
}  // namespace penstock
