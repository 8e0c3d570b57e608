// The commands that look at schedules: they need no daemon.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/schedule/generators.h"
#include "tests/unit/cli/command_fixture.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class ScheduleCommandsTest : public testing::CommandFixture {
 protected:
  double Measure(const std::string& options, const char* key) {
    EXPECT_EQ(Run(absl::StrCat("schedule simulate ", options, " -o json")), 0) << options << "\n" << err_;
    return Json::parse(out_, nullptr, false)[key].get<double>();
  }
};

TEST_F(ScheduleCommandsTest, SimulateAnswersExactlyTheseKeys) {
  EXPECT_EQ(Run("schedule simulate --kind 1f1b --devices 4 --micro-batches 8 --forward 1 --input 1.2 --weight 0.8 "
                "--hop 0.1 -o json"),
            0)
      << err_;
  const Json json = Json::parse(out_, nullptr, false);
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  EXPECT_THAT(keys, ElementsAre("makespan", "ideal_time", "window", "overhead", "bubble", "peak_activations"));
  EXPECT_EQ(json["makespan"].get<double>(), 34.6);
  EXPECT_EQ(json["ideal_time"].get<double>(), 24);
  EXPECT_EQ(Measure("--kind gpipe --devices 4 --micro-batches 8 --recompute always", "makespan"), 41);
}

// Three tables of golden numbers, one row of options and one column per size; the engine's own tests know more.
TEST_F(ScheduleCommandsTest, GoldenNumbers) {
  struct Row {
    const char* options;
    std::array<double, 4> makespan;
    double peak_of_four, peak_of_eight;  // of the second and the last size
  };
  constexpr std::array<const char*, 4> kSizes = {" --devices 4 --micro-batches 8", " --devices 4 --micro-batches 16",
                                                 " --devices 8 --micro-batches 16", " --devices 8 --micro-batches 32"};
  const std::string unequal = " --input 1.2 --weight 0.8 --hop 0.1";
  for (const Row& row : {
           Row{"--kind gpipe", {33, 57, 69, 117}, 16, 32},
           Row{"--kind 1f1b", {33, 57, 69, 117}, 4, 8},
           Row{"--kind interleaved-1f1b --chunks 2", {28.5, 52.5, 58.5, 106.5}, 5.5, 11.5},
           Row{"--kind interleaved-1f1b --chunks 4", {26.25, 50.25, 53.25, 101.25}, 4.75, 9.75},
           Row{"--kind looped-bfs --chunks 2", {28.5, 52.5, 58.5, 106.5}, 16, 32},
           Row{"--kind looped-bfs --chunks 4", {26.25, 50.25, 53.25, 101.25}, 16, 32},
           Row{"--kind zb-h1", {27, 51, 55, 103}, 4, 8},
           Row{"--kind zb-h2", {27, 51, 55, 103}, 7, 15},
           Row{"--kind interleaved-zb --chunks 2", {25.5, 49.5, 51.5, 99.5}, 4, 8},
           Row{"--kind interleaved-zb --chunks 4", {24.75, 48.75, 49.75, 97.75}, 4, 8},
           Row{"--kind zbv", {25.5, 49.5, 51.5, 99.5}, 4, 8},
           Row{"--kind dualpipe-v --chunks 2", {25.5, 49.5, 51.5, 99.5}, 4.5, 8.5},
           Row{"--kind auto", {27, 51, 55, 103}, 4, 8},
           Row{"--kind forward-only", {11, 19, 23, 39}, 1, 1},
           Row{"--kind forward-only --chunks 2", {9.5, 17.5, 19.5, 35.5}, 0.5, 0.5},
           Row{"--kind zb-h2 --input 1.2 --weight 0.8 --hop 0.1", {27.3, 51.3, 55.7, 103.7}, 7, 15},
           Row{"--kind zbv --input 1.2 --weight 0.8 --hop 0.1", {27.1, 51.1, 55.5, 103.5}, 4, 8},
           Row{"--kind interleaved-zb --chunks 4 --input 1.2 --weight 0.8 --hop 0.1",
               {27.45, 51.45, 55.65, 103.65},
               4,
               8},
           Row{"--kind looped-bfs --chunks 4 --last-scale 1.5", {29.25, 56.25, 59.25, 113.25}, 16, 32},
           Row{"--kind dualpipe-v --last-scale 1.5", {30, 60, 60, 120}, 4.5, 8.5},
           Row{"--kind zbv --recompute always", {33.5, 65.5, 67.5, 131.5}, 3.5, 7.5},
           Row{"--kind zb-h1 --recompute always", {35, 67, 71, 135}, 4, 8},
       }) {
    for (size_t i = 0; i < kSizes.size(); ++i) {
      const std::string options = absl::StrCat(row.options, kSizes[i]);
      EXPECT_EQ(Measure(options, "makespan"), row.makespan[i]) << options;
    }
    EXPECT_EQ(Measure(absl::StrCat(row.options, kSizes[1]), "peak_activations"), row.peak_of_four) << row.options;
    EXPECT_EQ(Measure(absl::StrCat(row.options, kSizes[3]), "peak_activations"), row.peak_of_eight) << row.options;
  }
  EXPECT_EQ(Measure("--kind lag --lag 6 --devices 4 --micro-batches 8" + unequal, "makespan"), 27.3);
  EXPECT_LE(Measure("--kind auto --limit 12 --devices 8 --micro-batches 16" + unequal, "makespan"), 57.6);
  EXPECT_EQ(Measure("--kind auto --limit 15 --devices 8 --micro-batches 32" + unequal, "makespan"), 103.7);
  EXPECT_EQ(Measure("--kind auto --limit 7 --devices 4 --micro-batches 8 --heavy-device 0", "makespan"), 36);
  EXPECT_EQ(Measure("--kind zbv --devices 4 --micro-batches 8", "window"), 24);
}

TEST_F(ScheduleCommandsTest, KindsAreListedAndDrawn) {
  EXPECT_EQ(Run("schedule list"), 0);
  ExpectGolden("schedule_list.txt");
  EXPECT_EQ(Run("schedule list -o name"), 0);
  std::string names;
  for (const ScheduleKind& kind : ScheduleKinds()) names.append(kind.name).append("\n");
  EXPECT_EQ(out_, names);
  EXPECT_EQ(Run("schedule show --kind 1f1b --devices 2 --micro-batches 4"), 0);
  ExpectGolden("schedule_show.txt");
  EXPECT_EQ(Run("schedule show --kind zbv --devices 2 --micro-batches 3"), 0);
  ExpectGolden("schedule_show_zbv.txt");
}

TEST_F(ScheduleCommandsTest, WrongArgumentsAreNamed) {
  const auto error = [&](const std::string& options) {
    EXPECT_EQ(Run("schedule simulate " + options), 2) << out_;
    EXPECT_EQ(Run("schedule show " + options), 2) << out_;
    return err_;
  };
  const std::string size = " --devices 4 --micro-batches 7";
  EXPECT_THAT(error("--kind dualpipe-v" + size), HasSubstr("--micro-batches: must be at least 8"));
  EXPECT_THAT(error("--kind 1f1b --chunks 2" + size), HasSubstr("--chunks: must be 1 for kind 1f1b, got 2"));
  EXPECT_THAT(error("--kind lag" + size), HasSubstr("--lag: must be set"));
  EXPECT_THAT(error("--kind zbv --lag 3" + size), HasSubstr("--lag: must be unset unless kind is lag, got 3"));
  EXPECT_THAT(error("--kind auto --limit 0" + size), HasSubstr("--limit: must be at least 1, got 0"));
  EXPECT_THAT(error("--kind gpipe --devices 0 --micro-batches 1"), HasSubstr("--devices: must be at least 1, got 0"));
  EXPECT_THAT(error("--kind gpipe --devices 1 --micro-batches 0"), HasSubstr("--micro-batches: must be at least 1"));
  EXPECT_THAT(error("--devices 4 --micro-batches 7"), HasSubstr("--kind"));
  EXPECT_THAT(error("--kind gpipe --micro-batches 7"), HasSubstr("--devices"));
  EXPECT_THAT(error("--kind gpipe --devices 7"), HasSubstr("--micro-batches"));
  EXPECT_THAT(error("--kind gpipe --file -"), HasSubstr("--file"));
}

TEST_F(ScheduleCommandsTest, FilesAreVerifiedSimulatedAndDrawn) {
  for (const std::string form : {"csv", "grid"}) {
    ASSERT_EQ(Run("schedule show --kind zbv --devices 4 --micro-batches 8 --as " + form), 0) << err_;
    const std::string lists = out_;
    EXPECT_EQ(Run("schedule verify - --devices 4 --micro-batches 8", lists), 0) << err_;
    EXPECT_EQ(
        out_,
        "valid: contribution, compute actions only, 8 stages on 4 devices, 8 micro-batches, peak activations 4\n");
    EXPECT_EQ(Run("schedule simulate --file - -o json", lists), 0) << err_;
    EXPECT_EQ(Json::parse(out_, nullptr, false)["makespan"].get<double>(), 25.5);
    EXPECT_EQ(Run("schedule show --file - --as " + form, lists), 0) << err_;
    EXPECT_EQ(out_, lists);
    EXPECT_EQ(Run("schedule show --file -", lists), 0) << err_;
    const std::string from_file = out_;
    EXPECT_EQ(Run("schedule show --kind zbv --devices 4 --micro-batches 8"), 0) << err_;
    EXPECT_EQ(from_file, out_);
  }
}

TEST_F(ScheduleCommandsTest, FilesOfPyTorchAreReadWithNotices) {
  constexpr char kLists[] =
      "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD\r\n1RECV_F0,(1F0;1B0)OVERLAP_F_B,1SEND_B0\r\n";
  EXPECT_EQ(Run("schedule verify - -o json", kLists), 0) << err_;
  EXPECT_EQ(Json::parse(out_, nullptr, false)["min_credits"].get<int>(), 1);
  EXPECT_THAT(err_, HasSubstr("dropped 1 UNSHARD"));
}

TEST_F(ScheduleCommandsTest, DamagedFilesAreNamedErrors) {
  ASSERT_EQ(Run("schedule show --kind 1f1b --devices 3 --micro-batches 3 --as grid"), 0);
  const std::string grid = out_;
  ASSERT_EQ(Run("schedule show --kind 1f1b --devices 3 --micro-batches 3 --as csv"), 0);
  const std::string csv = out_;
  const auto error = [&](const std::string& text, const std::string& options = "") {
    EXPECT_EQ(Run("schedule verify - " + options, text), 1) << out_;
    EXPECT_EQ(out_, "");
    return err_;
  };
  EXPECT_THAT(error(""), HasSubstr("lanes"));
  EXPECT_THAT(error("nonsense"), HasSubstr("row of lane 0, cell 0: action: must be"));
  EXPECT_THAT(error(csv.substr(0, csv.size() - 2)), HasSubstr("row of lane 2, cell 5"));
  EXPECT_THAT(error(csv.substr(0, csv.size() - 4)), HasSubstr("schedule: completeness at lane 2"));
  // Whole rows of compute actions that are missing show only in the number of devices.
  EXPECT_THAT(error(csv.substr(0, csv.rfind("2F0")), "--devices 3"), HasSubstr("schedule: devices must be 3, got 2"));
  EXPECT_THAT(error(grid.substr(0, grid.rfind("2B2"))), HasSubstr("row"));
  EXPECT_THAT(error(grid.substr(0, grid.rfind("  5  "))), HasSubstr("schedule: completeness at lane 0"));
  EXPECT_THAT(error(csv, "--devices 4"), HasSubstr("schedule: devices must be 4, got 3"));
  EXPECT_THAT(error(csv, "--micro-batches 4"), HasSubstr("schedule: micro_batches must be 4, got 3"));
  EXPECT_THAT(error(csv, "--limit 2"), HasSubstr("schedule: peak at lane 0"));
  const std::string cycle = "0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1B0,1F1,1F2,1B1,1B2\n2F0,2F1,2B0,2F2,2B1,2B2\n";
  EXPECT_THAT(error(cycle), HasSubstr("schedule: deadlock at lane 1, position 1 (1B0)"));
  EXPECT_EQ(Run("schedule simulate --file -", cycle), 1);
  EXPECT_THAT(err_, HasSubstr("schedule: deadlock at lane 1, position 1 (1B0)"));
  EXPECT_EQ(Run("schedule show --file /nonexistent/lists.csv"), 2);
  EXPECT_THAT(err_, HasSubstr("/nonexistent/lists.csv"));
}

}  // namespace
}  // namespace penstock
