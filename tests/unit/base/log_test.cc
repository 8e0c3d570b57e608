#include "engine/base/log.h"

#include <signal.h>

#include <cstdlib>
#include <string>

#include "engine/base/log_level.h"
#include "engine/base/log_scope.h"
#include "engine/base/log_sink.h"
#include "engine/base/thread.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

// What one call writes to stderr.
template <typename Call>
std::string Written(Call call) {
  ::testing::internal::CaptureStderr();
  call();
  return ::testing::internal::GetCapturedStderr();
}

TEST(JsonEscapeTest, PlainTextAndValidUtf8StayAsTheyAre) {
  EXPECT_EQ(JsonEscape("plain text, 1/2"), "plain text, 1/2");
  EXPECT_EQ(JsonEscape("\xc3\xa4 \xe2\x82\xac \xf0\x9f\x92\xa7"), "\xc3\xa4 \xe2\x82\xac \xf0\x9f\x92\xa7");
  EXPECT_EQ(JsonEscape(""), "");
}

TEST(JsonEscapeTest, QuotesBackslashesAndControlCharactersAreEscaped) {
  EXPECT_EQ(JsonEscape("a\"b\\c"), "a\\\"b\\\\c");
  EXPECT_EQ(JsonEscape(std::string("\n\r\t\0\x1b\x7f", 6)), "\\u000a\\u000d\\u0009\\u0000\\u001b\\u007f");
}

TEST(JsonEscapeTest, TheSecondRowOfControlCharactersIsEscapedToo) {
  EXPECT_EQ(JsonEscape("\xc2\x80 \xc2\x9b \xc2\x9f"),
            "\\u0080 \\u009b \\u009f");  // \u009b begins a command of a terminal
  EXPECT_EQ(JsonEscape("\xc2\xa0"), "\xc2\xa0");
}

TEST(JsonEscapeTest, InvalidUtf8IsEscapedByteByByte) {
  EXPECT_EQ(JsonEscape("\xff"), "\\u00ff");                                   // never a lead byte
  EXPECT_EQ(JsonEscape("\x80"), "\\u0080");                                   // continuation without lead
  EXPECT_EQ(JsonEscape("\xe2\x82"), "\\u00e2\\u0082");                        // cut short
  EXPECT_EQ(JsonEscape("\xc0\xaf"), "\\u00c0\\u00af");                        // overlong
  EXPECT_EQ(JsonEscape("\xe0\x80\xaf"), "\\u00e0\\u0080\\u00af");             // overlong
  EXPECT_EQ(JsonEscape("\xed\xa0\x80"), "\\u00ed\\u00a0\\u0080");             // surrogate
  EXPECT_EQ(JsonEscape("\xf4\x90\x80\x80"), "\\u00f4\\u0090\\u0080\\u0080");  // above U+10FFFF
  EXPECT_EQ(JsonEscape("\xc3("
                       "x"),
            "\\u00c3(x");  // broken sequence keeps what follows
}

TEST(LogTest, ATextLineHasTimeLevelMessageAndQuotedValues) {
  const std::string line = Written([] { LogInfo("pipeline created", {{"pipeline", "gpt"}, {"stages", "2"}}); });
  EXPECT_THAT(line, MatchesRegex("[0-9-]+T[0-9:.]+[+-][0-9:]+ I pipeline created pipeline=\"gpt\" stages=\"2\"\n"));
}

TEST(LogTest, AValueCannotForgeALine) {
  const std::string line = Written([] { LogInfo("call", {{"caller", "x\"\n2026 error forged"}}); });
  EXPECT_THAT(line, EndsWith("caller=\"x\\\"\\u000a2026 error forged\"\n"));
  EXPECT_EQ(line.find('\n'), line.size() - 1);
}

TEST(LogTest, ALongValueIsCutBetweenCharactersAndSaysHowLongItWas) {
  const std::string whole(8192, 'x');
  EXPECT_THAT(Written([&] { LogInfo("m", {{"v", whole}}); }), EndsWith("v=\"" + whole + "\"\n"));
  const std::string euros = std::string(8191, 'x') + "\xe2\x82\xac";
  EXPECT_THAT(Written([&] {
                LogInfo("m", {{"v", euros}});
              }),
              EndsWith("v=\"" + std::string(8191, 'x') + "... (8194 bytes)\"\n"));
  EXPECT_LT(Written([] { LogInfo("m", {{"v", std::string(64 << 20, 'x')}}); }).size(), size_t{10'000});
}

TEST(LogTest, LinesAreCountedByLevelAlsoBelowTheLevelThatIsWritten) {
  const int64_t debug = LoggedLines(LogLevel::kDebug);
  const int64_t errors = LoggedLines(LogLevel::kError);
  EXPECT_EQ(Written([] { Log(LogLevel::kDebug, "quiet"); }), "");
  EXPECT_THAT(Written([] { LogError("loud"); }), HasSubstr("loud"));
  EXPECT_EQ(LoggedLines(LogLevel::kDebug), debug + 1);
  EXPECT_EQ(LoggedLines(LogLevel::kError), errors + 1);
}

TEST(LogTest, TheLevelChangesWhileTheProgramRunsAndTheChangeIsToldUnderBothLevels) {
  const auto change = [](LogLevel level) { return Written([&] { SetLogLevel(level); }); };
  const auto debug = [] { return Written([] { Log(LogLevel::kDebug, "detail"); }); };
  EXPECT_THAT(change(LogLevel::kDebug), MatchesRegex(".* I log level changed from=\"info\" to=\"debug\"\n"));
  EXPECT_EQ(CurrentLogLevel(), LogLevel::kDebug);
  EXPECT_THAT(debug(), HasSubstr("detail"));
  EXPECT_THAT(change(LogLevel::kError), HasSubstr("from=\"debug\" to=\"error\""));
  EXPECT_EQ(debug() + Written([] { LogWarning("quiet"); }), "");
  EXPECT_THAT(change(LogLevel::kWarning), MatchesRegex(".* W log level changed .*\n"));
  EXPECT_THAT(change(LogLevel::kInfo), HasSubstr("to=\"info\""));
  EXPECT_EQ(SetLogLevel(LogLevel::kError), LogLevel::kInfo);
  EXPECT_EQ(SetLogLevel(LogLevel::kInfo), LogLevel::kError);
}

TEST(LogTest, LevelsHaveTheNamesOfTheFlag) {
  for (const LogLevel level : kLogLevels) EXPECT_EQ(LogLevelFromName(NameOf(level)), level);
  EXPECT_EQ(LogLevelFromName("verbose"), std::nullopt);
  EXPECT_EQ(LogLevelFromName(""), std::nullopt);
}

// The format is set once per process, so JSON is tried in a process of its own.
TEST(LogDeathTest, AJsonLineIsOneObjectWithEveryValueEscaped) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        ConfigureLog(LogLevel::kWarning, LogFormat::kJson);
        LogInfo("below the level");
        LogWarning("queue \"full\"", {{"caller", "a\nb"}});
        std::exit(0);
      },
      ::testing::ExitedWithCode(0),
      "^\\{\"time\":[0-9.]+,\"level\":\"warning\",\"message\":\"queue \\\\\"full\\\\\"\","
      "\"caller\":\"a\\\\u000ab\"\\}\n$");
}

#if defined(__has_feature)
#define PENSTOCK_SANITIZER (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define PENSTOCK_SANITIZER 0
#endif

// What waits for its thread is written before the process ends by a signal.
TEST(LogDeathTest, LastLinesOutliveACrash) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto crash = [](int signal) {
    StartLogWriter();
    for (int i = 0; i < 100; ++i) LogWarning("on the way", {{"i", std::to_string(i)}});
    LogError("last words");
    raise(signal);
  };
  EXPECT_EXIT(crash(SIGABRT), ::testing::KilledBySignal(SIGABRT), "last words\n$");
#if !PENSTOCK_SANITIZER  // a sanitizer takes this one, and has the last word
  EXPECT_EXIT(crash(SIGSEGV), ::testing::KilledBySignal(SIGSEGV), "last words\n$");
#endif
}

TEST(LogDeathTest, FlushedLinesAreWrittenAndDropsAreToldByMessage) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        StartLogWriter();
        for (int i = 0; i < 1000; ++i) LogWarning("again", {{"i", std::to_string(i)}});
        std::exit(FlushLog(absl::Seconds(60)) && DroppedLogLines(LogDrop::kRate) >= 700 ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "again i=\"199\"\n");
}

TEST(LogScopeTest, EveryLineInsideNamesItsValues) {
  const std::string line = Written([] {
    const LogScope outer({{"pipeline", "gpt"}, {"step", "7"}});
    const LogScope inner({{"trace_id", "0af7"}, {"pipeline", "mlp"}});
    LogWarning("slow", {{"step", "8"}});
  });
  EXPECT_THAT(line, EndsWith("slow step=\"8\" trace_id=\"0af7\" pipeline=\"mlp\"\n"));
}

TEST(LogScopeTest, LinesAfterwardsAndOfOtherThreadsDoNot) {
  const std::string lines = Written([] {
    {
      const LogScope scope(LogScope::Fields{{"trace_id", "0af7"}});
      Thread("other", [] { LogWarning("elsewhere"); }).Join();
    }
    LogWarning("later");
  });
  EXPECT_THAT(lines, Not(HasSubstr("0af7")));
}

}  // namespace
}  // namespace penstock
