// Real files, real processes: one that is killed while it appends, one that has the journal open.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/clock.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/journal/journal_life.h"

namespace penstock {
namespace {

using testing::ContentOf;
using testing::MakeCall;
using testing::MakeInput;
using testing::TemporaryFolder;
using testing::Told;

PipelineJournal::Options SmallJournal() {
  PipelineJournal::Options options;
  options.max_inline_bytes = 2000;
  options.idle_log_pages = 30;
  options.headroom_bytes = 0;
  return options;
}

// A process of this program's code, with a pipe on which it tells numbers. No thread may run when it begins.
class Child {
 public:
  explicit Child(const std::function<void(int pipe)>& body) {
    int ends[2];
    PENSTOCK_CHECK(::pipe2(ends, O_CLOEXEC) == 0);
    process_ = ::fork();
    PENSTOCK_CHECK(process_ >= 0);
    if (process_ == 0) {
      ::close(ends[0]);
      body(ends[1]);
      ::_exit(0);
    }
    ::close(ends[1]);
    pipe_ = ends[0];
  }
  ~Child() {
    Kill();
    ::close(pipe_);
  }

  // The next number; 0 when the process is gone and all was read.
  int64_t Next() {
    int64_t number = 0;
    return ::read(pipe_, &number, sizeof(number)) == sizeof(number) ? number : 0;
  }
  void Kill() {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
    process_ = 0;
  }
  static void Tell(int pipe, int64_t number) {
    PENSTOCK_CHECK(::write(pipe, &number, sizeof(number)) == sizeof(number));
  }

 private:
  pid_t process_ = 0;
  int pipe_ = -1;
};

// Appends from where the journal ends, several calls at a time, and tells each that is acknowledged.
void AppendUntilKilled(const std::string& folder, int pipe) {
  auto journal = PipelineJournal::Open(folder, RealClock(), SmallJournal());
  if (!journal.ok()) {
    std::cerr << journal.status() << std::endl;
    return;
  }
  int64_t sequence = (*journal)->last_sequence();
  while (true) {
    Told last;
    for (int i = 0; i < 4; ++i) {
      ++sequence;
      const size_t bytes = sequence % 5 == 0 ? 6000 : 500;
      (*journal)->Append(MakeCall(sequence), {MakeInput(ContentOf(sequence, bytes))},
                         [pipe, sequence, done = last.done(), ends = i == 3](const absl::Status& status) {
                           if (status.ok()) Child::Tell(pipe, sequence);
                           if (ends) done(status);
                         });
    }
    if (!last.Wait().ok()) return;
    (*journal)->RecordOutcome(sequence, {.status = CallStatus::kDone, .bytes = "done"}, [](const absl::Status&) {});
  }
}

TEST(JournalProcess, WhatAKilledProcessHasAcknowledgedIsThereInOrderOnce) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/journal";
  std::mt19937 random(18);
  int64_t acknowledged = 0;
  for (int kill = 0; kill < 20; ++kill) {
    {
      Child child([&](int pipe) { AppendUntilKilled(path, pipe); });
      const int64_t enough = 1 + static_cast<int64_t>(random() % 60);
      int64_t told = 0;
      for (int64_t i = 0; i < enough; ++i) {
        const int64_t number = child.Next();
        ASSERT_EQ(number, std::max(told, acknowledged) + 1) << "kill " << kill;  // in order
        told = number;
      }
      child.Kill();
      while (const int64_t number = child.Next()) told = number;
      acknowledged = told;
    }
    auto journal = PipelineJournal::Open(path, RealClock(), SmallJournal());
    ASSERT_TRUE(journal.ok()) << "kill " << kill << ": " << journal.status();
    EXPECT_GE((*journal)->last_sequence(), acknowledged) << "kill " << kill;
    int64_t rows = 0;
    const absl::Status read = (*journal)->Read(0, [&](CallRow row) -> absl::Status {
      EXPECT_EQ(row.sequence, ++rows);
      const absl::StatusOr<std::string> content = (*journal)->ReadInput(row.inputs[0]);
      if (!content.ok()) return content.status();
      EXPECT_EQ(*content, ContentOf(row.sequence, row.sequence % 5 == 0 ? 6000 : 500));
      return absl::OkStatus();
    });
    ASSERT_TRUE(read.ok()) << read;
    EXPECT_EQ(rows, (*journal)->last_sequence());
    acknowledged = rows;  // one that was durable and not yet told is there, too
  }
}

TEST(JournalProcess, ASecondProcessIsLockedOutByName) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/journal";
  Child first([&](int pipe) {
    auto journal = PipelineJournal::Open(path, RealClock(), SmallJournal());
    if (!journal.ok()) return;
    Child::Tell(pipe, 1);
    ::pause();
  });
  ASSERT_EQ(first.Next(), 1);
  EXPECT_EQ(ReasonOf(PipelineJournal::Open(path, RealClock(), SmallJournal()).status()), "JOURNAL_LOCKED");
  first.Kill();
  EXPECT_TRUE(PipelineJournal::Open(path, RealClock(), SmallJournal()).ok());
}

// Its log changes while the other reads it: that is no damage.
TEST(JournalProcess, AProcessAtWorkIsNotTakenForDamage) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/journal";
  Child first([&](int pipe) { AppendUntilKilled(path, pipe); });
  for (int attempt = 0; attempt < 20; ++attempt) {
    ASSERT_GT(first.Next(), 0);
    EXPECT_EQ(ReasonOf(PipelineJournal::Open(path, RealClock(), SmallJournal()).status()), "JOURNAL_LOCKED");
  }
}

}  // namespace
}  // namespace penstock
