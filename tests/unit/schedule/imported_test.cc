// Lists from elsewhere: what is taken, what is refused and how, and that they are run as they are.

#include "engine/schedule/imported.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/schedule/build.h"
#include "engine/schedule/generators.h"
#include "engine/schedule/torch_csv.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

// 1F1B on two lanes, but the second micro-batch's forward is taken before the first one's backward on lane 1 as well.
constexpr char kOwn[] = "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n";

std::shared_ptr<const ImportedSchedule> Imported(std::string_view text) {
  absl::StatusOr<ImportedSchedule> imported = ImportSchedule(text);
  EXPECT_TRUE(imported.ok()) << imported.status();
  return imported.ok() ? std::make_shared<const ImportedSchedule>(*std::move(imported)) : nullptr;
}

// The text must be refused for that reason with that value and sentence.
void ExpectRefused(std::string_view text, const std::string& reason, const std::string& value,
                   const std::string& sentence) {
  const absl::Status status = ImportSchedule(text).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
  EXPECT_EQ(ReasonOf(status), reason) << status;
  EXPECT_EQ(ValuesOf(status)["value"], value) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(sentence));
}

TEST(ImportedScheduleTest, TextAndCsvAreTakenAsTheyAre) {
  const auto csv = Imported(kOwn);
  EXPECT_EQ(csv->actions.kind, kImportedKind);
  EXPECT_EQ(csv->placement, Placement::kLooped);
  EXPECT_EQ(csv->chunks, 1);
  EXPECT_EQ(ToCsv(csv->actions), kOwn);
  const auto text = Imported(ToText(ZeroBubbleV(3, 4)));
  EXPECT_EQ(text->placement, Placement::kV);
  EXPECT_EQ(text->chunks, 2);
  EXPECT_EQ(text->actions.lanes, ZeroBubbleV(3, 4).lanes);
}

TEST(ImportedScheduleTest, WhatThePassesAddIsTakenOut) {
  const Schedule whole =
      *BuildSchedule({.kind = "interleaved-1f1b", .lanes = 2, .chunks = 2, .micro_batches = 3, .skips = {{0, 3}}});
  const auto imported = Imported(ToText(whole));
  EXPECT_EQ(imported->actions.lanes, InterleavedOneForwardOneBackward(2, 3, 2).lanes);
  // Built again, they are what they were: the messages of the skip too.
  const Schedule again = *BuildSchedule({.lanes = 2,
                                         .chunks = 2,
                                         .imported = imported,
                                         .micro_batches = 3,
                                         .planned_micro_batches = 3,
                                         .skips = {{0, 3}}});
  EXPECT_EQ(again.lanes, whole.lanes);
}

TEST(ImportedScheduleTest, TheOrderIsKept) {
  // I and W side by side stay two actions, which a kind's own would not everywhere.
  const std::string split = "0F0,0I0,0W0,0F1,0I1,0W1\n";
  const Schedule built = *BuildSchedule({.purpose = SchedulePurpose::kContribution,
                                         .costs = {.stages = {{.forward = 1, .backward = 1}}},
                                         .imported = Imported(split),
                                         .micro_batches = 2});
  EXPECT_EQ(ToCsv(built), split);
}

TEST(ImportedScheduleTest, RunsWithoutABackwardStandWhereTheListsDo) {
  const auto imported = Imported(ToCsv(ZeroBubbleV(2, 4)));
  const Schedule forward = *BuildSchedule({.purpose = SchedulePurpose::kForwardOnly,
                                           .lanes = 2,
                                           .chunks = 2,
                                           .imported = imported,
                                           .micro_batches = 9,  // more than the lists have: they are for training
                                           .planned_micro_batches = 4});
  EXPECT_EQ(LaneOfEachStage(forward), LanesOfStages(Placement::kV, 2, 2));
  EXPECT_EQ(forward.micro_batches, 9);
}

// Whatever micro-batches are left out at the end, the rest can be run.
TEST(ImportedScheduleTest, EveryKindsListsCanBeCutShort) {
  for (const ScheduleKind& kind : ScheduleKinds()) {
    if (!kind.trains) continue;
    for (int lanes = 1; lanes <= 4; ++lanes) {
      const int chunks = kind.usual_chunks;
      const int planned = MinMicroBatches(kind, lanes) + 3;
      ScheduleRequest request = {std::string(kind.name), lanes, planned, chunks};
      if (kind.name == "lag") request.lag = lanes;
      const auto imported = Imported(ToCsv(*Generate(request)));
      ASSERT_NE(imported, nullptr) << kind.name;
      for (int m = 1; m <= planned; ++m) {
        const auto built = BuildSchedule({.lanes = lanes,
                                          .chunks = chunks,
                                          .imported = imported,
                                          .micro_batches = m,
                                          .planned_micro_batches = planned,
                                          .recompute = RecomputeMode::kExceptLast});
        ASSERT_TRUE(built.ok()) << kind.name << " " << lanes << " " << m << built.status();
        EXPECT_EQ(built->micro_batches, m);
      }
    }
  }
}

TEST(ImportedScheduleTest, SizesMustBeThoseOfTheLists) {
  const auto imported = Imported(kOwn);
  const auto field = [&](int lanes, int chunks, int micro_batches) {
    const auto built =
        BuildSchedule({.lanes = lanes, .chunks = chunks, .imported = imported, .micro_batches = micro_batches});
    return built.ok() ? "accepted" : ValuesOf(built.status())["field"];
  };
  EXPECT_EQ(field(2, 1, 2), "accepted");
  EXPECT_EQ(field(2, 1, 3), "micro_batches");
  EXPECT_EQ(field(3, 1, 2), "lanes");
  EXPECT_EQ(field(1, 2, 2), "chunks");
}

TEST(ImportedScheduleTest, WhatCannotBeRunIsRefusedByName) {
  ExpectRefused("0F0,0B0\n1F0,oops\n", "FIELD_INVALID", "\"oops\"", "row of lane 1, cell 1");
  ExpectRefused("0F0,0F1,0B0,0B1\n1F0,1F1,1B0\n", "SPEC_INVALID", "", "1B1");       // torn off
  ExpectRefused("0F0,0B0\n1B0,1F0\n", "SPEC_INVALID", "", "1B0");                   // upside down
  ExpectRefused("1F0,0F0,0B0,1B0\n", "SPEC_INVALID", "", "deadlock");               // the second stage first
  ExpectRefused("0F0,0F0,0B0\n", "SPEC_INVALID", "", "0F0");                        // twice
  ExpectRefused("0F0,0F1\n1F0,1F1\n", "SPEC_INVALID", "forward only", "backward");  // inference
  ExpectRefused("0F0,0R0,0B0\n", "SPEC_INVALID", "0R0 on lane 0", "checkpoint mode");
  ExpectRefused("0F1,0F0,0B0,0B1\n", "SPEC_INVALID", "0F0 after 0F1", "ascending");
  ExpectRefused("0F0,2F0,2B0,0B0\n1F0,1B0\n", "SPEC_INVALID", "3 stages", "equally many");
  ExpectRefused("1F0,1B0\n0F0,0B0\n", "SPEC_INVALID", "stage 0 on lane 1", "in rounds");
  EXPECT_FALSE(ImportSchedule("").ok());
  EXPECT_FALSE(ImportSchedule("\n\n").ok());
}

}  // namespace
}  // namespace penstock
