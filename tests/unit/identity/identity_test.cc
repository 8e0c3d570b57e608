#include "server/identity/identity.h"

#include <gtest/gtest.h>

#include "engine/base/error.h"

namespace penstock::testing {
namespace {

PipelinePattern Pattern(const std::string& text) {
  const auto pattern = PipelinePattern::Parse(text, "field");
  EXPECT_TRUE(pattern.ok()) << pattern.status();
  return pattern.ok() ? *pattern : PipelinePattern();
}

TEST(Role, EachMayAllThatThoseBeforeItMay) {
  Identity identity;
  identity.role = Role::kTrain;
  EXPECT_TRUE(identity.May(Role::kViewer));
  EXPECT_TRUE(identity.May(Role::kInfer));
  EXPECT_TRUE(identity.May(Role::kTrain));
  EXPECT_FALSE(identity.May(Role::kAdmin));
}

TEST(Role, IsReadAsItIsWritten) {
  for (const Role role : {Role::kViewer, Role::kInfer, Role::kTrain, Role::kAdmin}) {
    EXPECT_EQ(ParseRole(NameOf(role), "f").value(), role);
  }
  const absl::Status fault = ParseRole("Admin", "map:3").status();
  EXPECT_EQ(ReasonOf(fault), "FIELD_INVALID");
  EXPECT_EQ(ValuesOf(fault)["field"], "map:3");
  EXPECT_EQ(ValuesOf(fault)["value"], "Admin");
}

TEST(PipelinePattern, MatchesWholeNames) {
  EXPECT_TRUE(Pattern("gpt").Matches("gpt"));
  EXPECT_FALSE(Pattern("gpt").Matches("gpt-2"));
  EXPECT_TRUE(Pattern("simple_*").Matches("simple_identity"));
  EXPECT_FALSE(Pattern("simple_*").Matches("simple-identity"));
  EXPECT_FALSE(Pattern("gpt").Matches("a-gpt"));
  EXPECT_FALSE(Pattern("gpt").Matches(""));
}

TEST(PipelinePattern, AStarTakesAnyRun) {
  EXPECT_TRUE(Pattern("*").Matches("anything"));
  EXPECT_TRUE(Pattern("*").Matches(""));
  EXPECT_TRUE(Pattern("team-*").Matches("team-"));
  EXPECT_TRUE(Pattern("team-*").Matches("team-a"));
  EXPECT_FALSE(Pattern("team-*").Matches("team"));
  EXPECT_TRUE(Pattern("*-eval").Matches("a-eval-eval"));
  EXPECT_FALSE(Pattern("*-eval").Matches("a-eval-"));
  EXPECT_TRUE(Pattern("a*b*c").Matches("a-b-b-c"));
  EXPECT_FALSE(Pattern("a*b*c").Matches("a-c-b"));
  EXPECT_TRUE(Pattern("a**").Matches("a"));
}

TEST(PipelinePattern, RefusesWhatNoNameCouldMatch) {
  for (const char* text : {"", "Team", "a b", "a?", "team/a"}) {
    EXPECT_EQ(ReasonOf(PipelinePattern::Parse(text, "f").status()), "FIELD_INVALID") << text;
  }
  EXPECT_EQ(ReasonOf(PipelinePattern::Parse(std::string(129, 'a'), "f").status()), "FIELD_INVALID");
}

TEST(IdentityName, MayBeAUriOrADnsNameOrAWord) {
  for (const char* name : {"spiffe://example.org/ns/a/sa/b", "train.example.org", "ann@example.org", "bob_2"}) {
    EXPECT_TRUE(CheckIdentityName(name, "f").ok()) << name;
  }
  for (const std::string name : {"", "a b", "a\n", "ü", "*.example.org"}) {
    EXPECT_EQ(ReasonOf(CheckIdentityName(name, "f")), "FIELD_INVALID") << name;
  }
  EXPECT_FALSE(CheckIdentityName(std::string(257, 'a'), "f").ok());
}

}  // namespace
}  // namespace penstock::testing
