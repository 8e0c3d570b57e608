#include "engine/observe/stage_state.h"

#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace penstock {
namespace {

std::vector<std::string> NamesOfClass(StateClass state_class) {
  std::vector<std::string> names;
  for (const StageStateInfo& info : StageStates()) {
    if (info.state_class == state_class) names.emplace_back(info.name);
  }
  return names;
}

// Recording rules and dashboards spell out these classes; a change here is a change there.
TEST(StageStateTest, EachStateIsInTheClassThatTheRulesExpect) {
  EXPECT_EQ(NamesOfClass(StateClass::kWork), (std::vector<std::string>{"forward", "backward", "backward_input",
                                                                       "backward_weight", "recompute", "optimizer"}));
  EXPECT_EQ(NamesOfClass(StateClass::kFilled), (std::vector<std::string>{"filled"}));
  EXPECT_EQ(NamesOfClass(StateClass::kIdleInStep),
            (std::vector<std::string>{"send", "receive", "fill", "drain", "wait_activation", "wait_gradient", "blocked",
                                      "wait_device", "sync", "host"}));
  EXPECT_EQ(
      NamesOfClass(StateClass::kOutsideStep),
      (std::vector<std::string>{"infer", "infer_wait", "checkpoint", "wait_client", "no_work", "paused", "setup"}));
}

TEST(StageStateTest, NamesAndColoursAreUniqueAndWellFormed) {
  std::set<std::string_view> names, colours;
  for (const StageStateInfo& info : StageStates()) {
    EXPECT_TRUE(names.insert(info.name).second) << info.name;
    EXPECT_TRUE(colours.insert(info.colour).second) << info.name;
    EXPECT_EQ(info.colour.size(), 7u) << info.name;
    EXPECT_EQ(info.colour.find_first_not_of("0123456789abcdef", 1), std::string_view::npos) << info.name;
    EXPECT_EQ(StageStateFromName(info.name), info.state);
    EXPECT_EQ(NameOf(info.state), info.name);
  }
  EXPECT_EQ(names.size(), 24u);
  EXPECT_FALSE(StageStateFromName("Forward").has_value());
}

}  // namespace
}  // namespace penstock
