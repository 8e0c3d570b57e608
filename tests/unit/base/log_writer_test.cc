#include "engine/base/log_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/check.h"
#include "tests/support/fake_clock.h"

namespace penstock::testing {
namespace {

constexpr int kPipeBytes = 16 << 10;  // the kernel calls a pipe full when its last page is in use

// A writer into a small pipe, which is read only when a test says so.
class LogWriterTest : public ::testing::Test {
 protected:
  LogWriterTest() {
    PENSTOCK_CHECK(::pipe(pipe_) == 0);
    PENSTOCK_CHECK(::fcntl(pipe_[1], F_SETPIPE_SZ, kPipeBytes) == kPipeBytes);
  }
  ~LogWriterTest() override {
    writer_.reset();
    for (const int end : pipe_) ::close(end);
  }
  void Start(size_t queue_bytes = 1 << 20) {
    LogWriter::Options options;
    options.descriptor = pipe_[1];
    options.queue_bytes = queue_bytes;
    options.burst = 3;
    options.per_second = 2;
    options.clock = &clock_;
    options.notice = [](LogDrop cause, std::string_view message, int64_t lines) {
      return absl::StrCat("dropped ", std::string(kLogDropNames[static_cast<size_t>(cause)]), " ", std::string(message),
                          " ", lines, "\n");
    };
    writer_ = std::make_unique<LogWriter>(std::move(options));
  }
  // Reads until what has come is enough.
  std::string ReadUntil(const std::function<bool(const std::string&)>& enough) {
    std::string text;
    char piece[4096];
    while (!enough(text)) {
      const ssize_t got = ::read(pipe_[0], piece, sizeof(piece));
      PENSTOCK_CHECK(got > 0);
      text.append(piece, static_cast<size_t>(got));
    }
    return text;
  }
  std::string ReadUntilEnd(const std::string& end) {
    return ReadUntil([&](const std::string& text) { return text.ends_with(end); });
  }
  // The lines that begin like this.
  static std::vector<std::string> Lines(const std::string& text, const std::string& begin) {
    std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
    std::erase_if(lines, [&](const std::string& line) { return !line.starts_with(begin); });
    return lines;
  }
  // How many dropped lines the whole lines of a text tell of.
  static int64_t Told(const std::string& text, const std::string& begin) {
    int64_t sum = 0;
    for (const std::string& line : Lines(text.substr(0, text.rfind('\n') + 1), begin)) {
      sum += std::stoll(line.substr(begin.size()));
    }
    return sum;
  }

  int pipe_[2];
  FakeClock clock_;
  std::unique_ptr<LogWriter> writer_;
};

TEST_F(LogWriterTest, WritesLinesInTheirOrder) {
  Start();
  writer_->Add("one\n");
  writer_->Add("two\n");
  EXPECT_TRUE(writer_->Flush(absl::InfiniteDuration()));
  EXPECT_EQ(ReadUntilEnd("two\n"), "one\ntwo\n");
}

TEST_F(LogWriterTest, ALineMayBeLongerThanThePipe) {
  Start();
  const std::string line = std::string(100'000, 'x') + "\n";
  writer_->Add(line);
  EXPECT_EQ(ReadUntilEnd("\n"), line);
}

TEST_F(LogWriterTest, NobodyWaitsForAReaderThatStallsAndWhatIsDroppedIsTold) {
  constexpr int kLines = 2000;
  Start(/*queue_bytes=*/64 << 10);
  for (int i = 0; i < kLines; ++i) writer_->Add(std::string(99, 'x') + "\n");  // 200 KB: more than pipe and queue hold
  EXPECT_FALSE(writer_->Flush(absl::ZeroDuration()));
  const int64_t dropped = writer_->dropped(LogDrop::kFull);
  EXPECT_GT(dropped, 0);
  ReadUntil([&](const std::string& text) {
    return Told(text, "dropped full  ") == dropped && Lines(text, "x").size() == static_cast<size_t>(kLines - dropped);
  });
}

TEST_F(LogWriterTest, WhatWasWrittenMakesRoomInTheQueue) {
  Start(/*queue_bytes=*/200);
  for (int i = 0; i < 20; ++i) {
    writer_->Add(std::string(99, 'x') + "\n");
    EXPECT_TRUE(writer_->Flush(absl::InfiniteDuration()));
    ReadUntilEnd("\n");
  }
  EXPECT_EQ(writer_->dropped(LogDrop::kFull), 0);
}

TEST_F(LogWriterTest, ItEndsAlthoughNobodyReads) {
  Start();
  for (int i = 0; i < 100; ++i) writer_->Add(std::string(999, 'x') + "\n");
  writer_.reset();
}

TEST_F(LogWriterTest, AReaderThatIsGoneIsCounted) {
  signal(SIGPIPE, SIG_IGN);
  Start();
  ::close(pipe_[0]);
  writer_->Add("one\n");
  EXPECT_TRUE(writer_->Flush(absl::InfiniteDuration()));
  EXPECT_EQ(writer_->dropped(LogDrop::kFailed), 1);
  pipe_[0] = ::dup(pipe_[1]);  // for the destructor
}

TEST_F(LogWriterTest, ABurstOfAMessagePassesThenSoManyPerSecondAndTheRestIsTold) {
  Start();
  const auto admitted = [&](const char* message, int tries) {
    int count = 0;
    for (int i = 0; i < tries; ++i) count += writer_->Admit(message) ? 1 : 0;
    return count;
  };
  EXPECT_EQ(admitted("a", 10), 3);
  EXPECT_EQ(admitted("b", 2), 2) << "each message has its own";
  EXPECT_EQ(writer_->dropped(LogDrop::kRate), 7);
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(admitted("a", 10), 2);
  clock_.Advance(absl::Seconds(1));  // notices come once per second
  writer_->Add("next\n");
  ReadUntil([](const std::string& text) { return Told(text, "dropped rate a ") == 15; });
  clock_.Advance(absl::Hours(1));
  EXPECT_EQ(admitted("a", 10), 3) << "no more than a burst";
}

}  // namespace
}  // namespace penstock::testing
