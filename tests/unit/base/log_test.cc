#include "engine/base/log.h"

#include <string>

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

TEST(LogTest, LinesAreCountedByLevelAlsoBelowTheLevelThatIsWritten) {
  const int64_t debug = LoggedLines(LogLevel::kDebug);
  const int64_t errors = LoggedLines(LogLevel::kError);
  EXPECT_EQ(Written([] { Log(LogLevel::kDebug, "quiet"); }), "");
  EXPECT_THAT(Written([] { LogError("loud"); }), HasSubstr("loud"));
  EXPECT_EQ(LoggedLines(LogLevel::kDebug), debug + 1);
  EXPECT_EQ(LoggedLines(LogLevel::kError), errors + 1);
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

}  // namespace
}  // namespace penstock
