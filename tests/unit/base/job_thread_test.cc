#include "engine/base/job_thread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "absl/synchronization/notification.h"

namespace penstock {
namespace {

TEST(JobThread, RunsJobsInTheOrderTheyWerePostedAndTheLastBeforeItEnds) {
  std::vector<int> ran;  // on the job thread until it has ended
  absl::Notification go;
  JobThread jobs("ps-test");
  jobs.Post([&] { go.WaitForNotification(); });
  for (int i = 0; i < 3; ++i) jobs.Post([&ran, i] { ran.push_back(i); });
  go.Notify();
  jobs.Close();
  EXPECT_THAT(ran, ::testing::ElementsAre(0, 1, 2));
}

TEST(JobThread, WhatComesAfterCloseIsDropped) {
  bool ran = false;
  JobThread jobs("ps-test");
  jobs.Close();
  jobs.Post([&ran] { ran = true; });
  jobs.Close();
  EXPECT_FALSE(ran);
}

TEST(JobThread, AJobThatThrowsDoesNotKeepTheNextOneFromRunning) {
  bool ran = false;
  JobThread jobs("ps-test");
  jobs.Post([] { throw std::runtime_error("broken"); });
  jobs.Post([&ran] { ran = true; });
  jobs.Close();
  EXPECT_TRUE(ran);
}

TEST(JobThread, AJobMayPostAnother) {
  absl::Notification second;
  JobThread jobs("ps-test");
  jobs.Post([&] { jobs.Post([&] { second.Notify(); }); });
  second.WaitForNotification();
}

}  // namespace
}  // namespace penstock
