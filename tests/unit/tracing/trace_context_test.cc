#include "server/tracing/trace_context.h"

#include <string>

#include "gtest/gtest.h"

namespace penstock {
namespace {

constexpr char kTrace[] = "0af7651916cd43dd8448eb211c80319c";
constexpr char kSpan[] = "b7ad6b7169203331";
const std::string kGood = std::string("00-") + kTrace + "-" + kSpan + "-01";

struct Row {
  const char* what;
  std::string text;
  bool valid;
  bool sampled;
};

class TraceparentTest : public ::testing::TestWithParam<Row> {};

TEST_P(TraceparentTest, IsReadAsTheRecommendationSays) {
  const Row& row = GetParam();
  const std::optional<TraceContext> read = ParseTraceparent(row.text);
  ASSERT_EQ(read.has_value(), row.valid) << row.what << ": " << row.text;
  if (!row.valid) return;
  EXPECT_EQ(ToHex(read->trace_id), kTrace);
  EXPECT_EQ(ToHex(read->span_id), kSpan);
  EXPECT_EQ(read->sampled, row.sampled) << row.what;
}

const std::string kIds = std::string("-") + kTrace + "-" + kSpan;
const std::string kZeros32(32, '0');

INSTANTIATE_TEST_SUITE_P(
    Rows, TraceparentTest,
    ::testing::Values(Row{"sampled", kGood, true, true}, Row{"not sampled", "00" + kIds + "-00", true, false},
                      Row{"unknown flags beside sampled", "00" + kIds + "-ff", true, true},
                      Row{"unknown flags alone", "00" + kIds + "-fe", true, false},
                      Row{"a later version", "01" + kIds + "-01", true, true},
                      Row{"a later version with more fields", "cc" + kIds + "-01-what-the-future-holds", true, true},
                      Row{"a later version, more but no dash", "cc" + kIds + "-01x", false, false},
                      Row{"version ff", "ff" + kIds + "-01", false, false},
                      Row{"version 00 with more fields", kGood + "-00", false, false},
                      Row{"version 00 with a dash behind", kGood + "-", false, false},
                      Row{"a trace id of zeros", "00-" + kZeros32 + "-" + kSpan + "-01", false, false},
                      Row{"a span id of zeros", std::string("00-") + kTrace + "-0000000000000000-01", false, false},
                      Row{"upper case", "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01", false, false},
                      Row{"no digit in the flags", "00" + kIds + "-0g", false, false},
                      Row{"no digit in the version", "0." + kIds + "-01", false, false},
                      Row{"a short trace id", "00-0af7651916cd43dd8448eb211c80319-b7ad6b7169203331-01", false, false},
                      Row{"other separators", "00_" + kIds.substr(1) + "-01", false, false},
                      Row{"too short", kGood.substr(0, 54), false, false}, Row{"empty", "", false, false},
                      Row{"a blank before", " " + kGood, false, false}));

TEST(TraceContextTest, WhatIsWrittenIsReadBack) {
  const auto read = ParseTraceparent(kGood);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(FormatTraceparent(*read), kGood);
}

TEST(TraceContextTest, StateIsJoinedInOrder) {
  EXPECT_EQ(JoinTracestate({"rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"}), "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE");
  EXPECT_EQ(JoinTracestate({"a=1 ,\tb=2", ",c@vendor=3"}), "a=1,b=2,c@vendor=3");
  EXPECT_EQ(JoinTracestate({}), "");
}

TEST(TraceContextTest, StateThatBreaksItsGrammarIsDroppedWhole) {
  std::string many = "a=1";
  for (int i = 0; i < 32; ++i) many += ",k" + std::to_string(i) + "=1";
  for (const std::string& broken :
       {std::string("a"), std::string("A=1"), std::string("a=1,a=2"), std::string("a=b=c"), std::string("=1"),
        std::string("a="), std::string("a@=1"), std::string("a@b@c=1"), std::string("a=\x80"), many,
        "a=" + std::string(257, 'x'), "b=" + std::string(250, 'x') + ",c=" + std::string(250, 'x') + ",d=1234567"}) {
    EXPECT_EQ(JoinTracestate({"z=1", broken}), "") << broken;
  }
}

TEST(TraceContextTest, MetadataThatContradictsItselfIsNone) {
  EXPECT_FALSE(ReadTraceContext({}, {}));
  EXPECT_FALSE(ReadTraceContext({kGood, kGood}, {}));
  EXPECT_FALSE(ReadTraceContext({"broken"}, {}));
  EXPECT_EQ(ToHex(ReadTraceContext({kGood}, {})->trace_id), kTrace);
  EXPECT_EQ(ReadTraceContext({kGood}, {"a=1", "b=2"})->state, "a=1,b=2");
  EXPECT_EQ(ReadTraceContext({kGood}, {"broken"})->state, "");
}

}  // namespace
}  // namespace penstock
