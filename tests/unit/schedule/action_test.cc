#include "engine/schedule/action.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "engine/base/error.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

struct Pair {
  Action action;
  const char* text;
};

const std::vector<Pair>& Examples() {
  static const auto* examples = new std::vector<Pair>{
      {{ActionKind::kForward, 2, 0}, "2F0"},
      {{ActionKind::kBackward, 0, 2}, "0B2"},
      {{ActionKind::kInputGradient, 1, 3}, "1I3"},
      {{ActionKind::kWeightGradient, 1, 3}, "1W3"},
      {{ActionKind::kRecompute, 2, 0}, "2R0"},
      {{ActionKind::kSendForward, 3, 1}, "3SEND_F1"},
      {{ActionKind::kReceiveForward, 4, 1}, "4RECV_F1"},
      {{ActionKind::kSendBackward, 4, 1}, "4SEND_B1"},
      {{ActionKind::kReceiveBackward, 3, 1}, "3RECV_B1"},
      {{ActionKind::kOptimizer, 2, 0}, "2OPT"},
      {{ActionKind::kForward, 1023, 65535}, "1023F65535"},
      {{ActionKind::kSendForward, 2, 0, 5}, "2SEND_F0@5"},
      {{ActionKind::kReceiveForward, 5, 0, 2}, "5RECV_F0@2"},
      {{ActionKind::kSendBackward, 5, 13, 0}, "5SEND_B13@0"},
      {{ActionKind::kReceiveBackward, 2, 0, 4095}, "2RECV_B0@4095"},
  };
  return *examples;
}

TEST(ActionTest, PrintsAsTheFormatSays) {
  for (const auto& [action, text] : Examples()) EXPECT_EQ(ToString(action), text);
}

TEST(ActionTest, ReadsWhatItPrints) {
  for (const auto& [action, text] : Examples()) {
    const auto parsed = ParseAction(text);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, action) << text;
  }
}

TEST(ActionTest, EveryKindHasItsOwnText) {
  std::set<std::string> texts;
  for (int kind = 0; kind <= static_cast<int>(ActionKind::kOptimizer); ++kind) {
    texts.insert(std::string(KindText(static_cast<ActionKind>(kind))));
  }
  EXPECT_EQ(texts.size(), 10u);
}

TEST(ActionTest, RefusesEverythingElseAndNamesIt) {
  for (const std::string text : {"",
                                 "F0",
                                 "2F",
                                 "2",
                                 "2X0",
                                 "2f0",
                                 " 2F0",
                                 "2F0 ",
                                 "2 F0",
                                 "-1F0",
                                 "+1F0",
                                 "02F0",
                                 "2F00",
                                 "2F-1",
                                 "2F0x",
                                 "2OPT0",
                                 "OPT",
                                 "2SEND_F",
                                 "2SEND0",
                                 "2SEND_F@5",
                                 "2UNSHARD",
                                 "9999999999F0",
                                 "2F4294967296",
                                 "(0F5;7B2)",
                                 "2SEND_F0@",
                                 "2SEND_F0@-1",
                                 "2SEND_F0@05",
                                 "2SEND_F0@5@6",
                                 "2SEND_F0@5 ",
                                 "@5",
                                 "2SEND_F0@x"}) {
    const auto parsed = ParseAction(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(ReasonOf(parsed.status()), "FIELD_INVALID");
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("\"" + text + "\""));
  }
}

TEST(ActionTest, OnlyASendOrAReceiveHasAPeer) {
  for (const std::string text : {"2F0@5", "2B0@5", "2I0@5", "2W0@5", "2R0@5", "2OPT@5"}) {
    const auto parsed = ParseAction(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(parsed.status().message(), "action: must be a send or a receive to name a peer, got \"" + text + "\"");
  }
}

TEST(ActionTest, AnErrorStaysShortAndPrintable) {
  const auto parsed = ParseAction(std::string("\x1b[31m\n") + std::string(100'000, 'F'));
  ASSERT_FALSE(parsed.ok());
  const std::string message(parsed.status().message());
  EXPECT_LT(message.size(), 200u);
  EXPECT_THAT(message, HasSubstr("\\x1b[31m\\n"));
}

TEST(ActionTest, ComparesByKindStageMicroBatchAndPeer) {
  EXPECT_NE((Action{ActionKind::kSendForward, 1, 2, 3}), (Action{ActionKind::kSendForward, 1, 2}));
  EXPECT_EQ((Action{ActionKind::kForward, 1, 2}), (Action{ActionKind::kForward, 1, 2}));
  EXPECT_NE((Action{ActionKind::kForward, 1, 2}), (Action{ActionKind::kForward, 1, 3}));
  EXPECT_LT((Action{ActionKind::kForward, 1, 2}), (Action{ActionKind::kForward, 2, 0}));
}

}  // namespace
}  // namespace penstock
