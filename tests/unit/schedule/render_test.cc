#include "engine/schedule/render.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "engine/schedule/build.h"
#include "engine/schedule/what_if.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Simulation Simulated(WhatIfOptions options) { return WhatIf(options)->simulation; }

int Count(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(GanttTest, DrawsRanksOverTime) {
  EXPECT_EQ(RenderGantt(Simulated({.kind = "gpipe", .devices = 2, .micro_batches = 2})),
            "lane 0 |[F0][F1]............[B0    ][B1    ]|  66.7 % busy\n"
            "lane 1 |....[F0][F1][B0    ][B1    ]........|  66.7 % busy\n"
            "makespan 9, ideal 6, bubble 33.3 %\n"
            "F forward, B backward, . idle\n");
}

TEST(GanttTest, DropsBracketsThenNumbersWhenTimeIsLong) {
  const Simulation simulation = Simulated({.kind = "forward-only", .devices = 1, .micro_batches = 8});
  EXPECT_THAT(RenderGantt(simulation, {.columns = 32}), HasSubstr("|[F0][F1][F2][F3][F4][F5][F6][F7]|"));
  EXPECT_THAT(RenderGantt(simulation, {.columns = 31}), HasSubstr("|F0 F1 F2 F3 F4 F5 F6 F7 |"));
  EXPECT_THAT(RenderGantt(simulation, {.columns = 16}), HasSubstr("|F0F1F2F3F4F5F6F7|"));
  const Simulation longer = Simulated({.kind = "forward-only", .devices = 1, .micro_batches = 16});
  EXPECT_THAT(RenderGantt(longer, {.columns = 16}), HasSubstr("|FFFFFFFFFFFFFFFF|"));
}

TEST(GanttTest, StaysWithinItsColumns) {
  for (const double hop : {0.0, 0.1, 0.123}) {
    const Simulation simulation = Simulated({.kind = "1f1b", .devices = 5, .micro_batches = 50, .hop = hop});
    const std::vector<std::string> lines = absl::StrSplit(RenderGantt(simulation, {.columns = 60}), '\n');
    for (int lane = 0; lane < 5; ++lane) {
      EXPECT_LE(lines[lane].rfind('|') - lines[lane].find('|') - 1, 60u);
      EXPECT_EQ(lines[lane].rfind('|'), lines[0].rfind('|'));
    }
  }
}

TEST(GanttTest, NamesTheStageWhereALaneHoldsSeveral) {
  const auto simulation = Simulate(*ParseCsv("0F0,1F0,1B0,0B0\n"), {.stages = std::vector<StageCosts>(2)});
  EXPECT_THAT(RenderGantt(*simulation), HasSubstr("|[0F0][1F0][1B0     ][0B0     ]|"));
}

TEST(GanttTest, TellsHalvesOfABackwardApart) {
  const std::string drawing = RenderGantt(Simulated({.kind = "zb-h1", .devices = 2, .micro_batches = 2}));
  EXPECT_THAT(drawing, HasSubstr("|....[F0][I0][F1][I1][W0][W1]|"));
  EXPECT_THAT(drawing, HasSubstr("F forward, I input gradient, W weight gradient, . idle"));
}

TEST(GanttTest, DrawsNothingWithoutTime) {
  const Simulation simulation = Simulated({.kind = "forward-only", .forward = 0});
  EXPECT_EQ(RenderGantt(simulation),
            "lane 0 |...|   0.0 % busy\n"
            "makespan 0, ideal 0, bubble 0.0 %\n"
            ". idle\n");
}

TEST(SvgTest, HasARectangleForEveryActionAndEveryCauseOfIdleness) {
  const Simulation simulation = Simulated({.kind = "1f1b", .devices = 3, .micro_batches = 4, .recompute = "always"});
  const std::string svg = RenderSvg(simulation);
  EXPECT_EQ(Count(svg, "<rect class=\"forward\""), 12 + 1);  // the legend has one more
  EXPECT_EQ(Count(svg, "<rect class=\"backward\""), 12 + 1);
  EXPECT_EQ(Count(svg, "<rect class=\"recompute\""), 12 + 1);
  size_t idle = 0;
  for (const auto& spans : simulation.idle) idle += spans.size();
  EXPECT_EQ(Count(svg, "fill=\"#ffd54f\"") + Count(svg, "fill=\"#e53935\"") + Count(svg, "fill=\"#ffb300\"") +
                Count(svg, "fill=\"#ff7043\""),
            static_cast<int>(idle) + 3);  // fill, wait_gradient and drain occur
  EXPECT_THAT(svg, HasSubstr("<title>2F0: 2 to 3</title>"));
  EXPECT_THAT(svg, HasSubstr("<title>ideal finish: 16</title>"));
}

TEST(SvgTest, TellsHalvesAndChunksApart) {
  const std::string svg = RenderSvg(Simulated({.kind = "zbv", .devices = 2, .micro_batches = 3}));
  EXPECT_EQ(Count(svg, "<rect class=\"backward_input\""), 12 + 1);  // the legend has one more
  EXPECT_EQ(Count(svg, "<rect class=\"backward_weight\""), 12 + 1);
  EXPECT_EQ(Count(svg, "<rect class=\"backward\""), 0);
  EXPECT_EQ(Count(svg, "fill-opacity"), 2 * 3 * 3);  // the second chunk of each lane
  EXPECT_THAT(svg, HasSubstr(">3F0</text>"));
  EXPECT_THAT(RenderSvg(Simulated({.kind = "zb-h1", .devices = 2, .micro_batches = 3})), Not(HasSubstr("opacity")));
}

TEST(SvgTest, HasNoScriptAndNoStyle) {
  const std::string svg = RenderSvg(Simulated({.kind = "gpipe", .devices = 2, .micro_batches = 3}));
  EXPECT_THAT(svg, Not(HasSubstr("style")));
  EXPECT_THAT(svg, Not(HasSubstr("script")));
  EXPECT_THAT(svg, Not(HasSubstr(" on")));
}

TEST(SvgTest, EveryElementIsClosed) {
  const std::string svg = RenderSvg(Simulated({.kind = "1f1b", .devices = 4, .micro_batches = 5, .hop = 0.1}));
  std::vector<std::string> open;
  const std::regex tag("<(/?)([a-z]+)[^>]*?(/?)>");
  for (auto it = std::sregex_iterator(svg.begin(), svg.end(), tag); it != std::sregex_iterator(); ++it) {
    if ((*it)[3] == "/") continue;
    if ((*it)[1] == "/") {
      ASSERT_FALSE(open.empty());
      EXPECT_EQ(open.back(), (*it)[2]);
      open.pop_back();
    } else {
      open.push_back((*it)[2]);
    }
  }
  EXPECT_TRUE(open.empty());
}

TEST(SvgTest, LeavesOutWhatTakesNoTime) {
  const auto schedule = BuildSchedule({.kind = "gpipe", .lanes = 2, .micro_batches = 2});
  const auto simulation = Simulate(*schedule, {.stages = std::vector<StageCosts>(2)});
  const std::string svg = RenderSvg(*simulation);
  EXPECT_THAT(svg, Not(HasSubstr("SEND")));
  EXPECT_THAT(svg, Not(HasSubstr("OPT")));
  EXPECT_THAT(svg, Not(HasSubstr("\"nan\"")));
}

}  // namespace
}  // namespace penstock
