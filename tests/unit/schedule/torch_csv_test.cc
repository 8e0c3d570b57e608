#include "engine/schedule/torch_csv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/schedule/build.h"
#include "engine/schedule/comm_pass.h"
#include "engine/schedule/generators.h"
#include "engine/schedule/verify.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(TorchCsvTest, ExpandsAnOverlappedPairInOrder) {
  const auto imported = ImportTorchCsv("0F0,(0F1;1B0)OVERLAP_F_B,\n1F0,,1W0\n");
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(ToCsv(imported->schedule), "0F0,0F1,1B0\n1F0,1W0\n");
  EXPECT_TRUE(imported->notices.empty());
}

TEST(TorchCsvTest, DropsShardingWithANotice) {
  const auto imported = ImportTorchCsv("0UNSHARD,0F0,0B0,0RESHARD,0REDUCE_GRAD\r\n1UNSHARD,1F0,1B0,,\r\n");
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->schedule.lanes, FillDrain(2, 1).lanes);
  EXPECT_THAT(imported->notices, ElementsAre("dropped 1 REDUCE_GRAD: parameters are not sharded here",
                                             "dropped 1 RESHARD: parameters are not sharded here",
                                             "dropped 2 UNSHARD: parameters are not sharded here"));
}

TEST(TorchCsvTest, ReadsWhatItWrites) {
  for (const Schedule& schedule : {OneForwardOneBackward(3, 5), InsertCommunication(FillDrain(3, 5))}) {
    const auto text = ExportTorchCsv(schedule);
    ASSERT_TRUE(text.ok()) << text.status();
    EXPECT_EQ(ImportTorchCsv(*text, schedule.kind)->schedule, schedule);
  }
}

TEST(TorchCsvTest, RefusesToWriteWhatPyTorchDoesNotKnow) {
  const auto recompute = ExportTorchCsv(InsertRecompute(FillDrain(2, 1), RecomputeMode::kAlways));
  EXPECT_EQ(ValuesOf(recompute.status())["value"], "0R0");
  const auto optimizer = ExportTorchCsv(*BuildSchedule({.kind = "gpipe", .lanes = 2}));
  EXPECT_EQ(ValuesOf(optimizer.status())["value"], "0OPT");
  const auto skip = ExportTorchCsv(InsertCommunication(FillDrain(3, 1), {{0, 2}}));
  EXPECT_EQ(ValuesOf(skip.status())["value"], "0SEND_F0@2");
}

TEST(TorchCsvTest, ReadsWhatItWritesOfSplitBackwardsAndChunks) {
  for (const Schedule& schedule :
       {ZeroBubbleV(3, 5), InsertCommunication(DualPipeV(2, 4)), InsertCommunication(InterleavedZeroBubble(2, 5, 3))}) {
    const auto text = ExportTorchCsv(schedule);
    ASSERT_TRUE(text.ok()) << text.status();
    EXPECT_EQ(ImportTorchCsv(*text, schedule.kind)->schedule, schedule);
  }
}

TEST(TorchCsvTest, AnErrorNamesItsLaneAndCell) {
  const auto damaged = ImportTorchCsv("0UNSHARD,0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,,(1F1;1Q0)OVERLAP_F_B\n");
  ASSERT_FALSE(damaged.ok());
  EXPECT_THAT(std::string(damaged.status().message()), HasSubstr("row of lane 1, cell 2: action: must be"));
  EXPECT_THAT(std::string(damaged.status().message()), HasSubstr("\"1Q0\""));
  EXPECT_EQ(ValuesOf(damaged.status())["lane"], "1");
  EXPECT_EQ(ValuesOf(damaged.status())["cell"], "2");
}

TEST(TorchCsvTest, AFileIsTextOrCsv) {
  const Schedule schedule = ZeroBubbleH1(2, 3);
  EXPECT_EQ(ReadSchedule(ToText(schedule))->schedule, schedule);
  EXPECT_EQ(ReadSchedule(ToCsv(schedule))->schedule.lanes, schedule.lanes);
  EXPECT_EQ(ReadSchedule(ToCsv(schedule))->schedule.kind, "imported");
  // Cut at any byte, it is refused, or it is whole lists of fewer actions that the verifier refuses.
  const VerifyOptions compute = {.purpose = SchedulePurpose::kContribution, .with_communication = false};
  for (const std::string& whole : {ToText(schedule), ToCsv(schedule)}) {
    const size_t last = whole.find_last_not_of('\n');
    for (size_t size = 0; size < last; ++size) {
      const auto read = ReadSchedule(whole.substr(0, size));
      if (!read.ok()) {
        EXPECT_FALSE(ReasonOf(read.status()).empty());
        continue;
      }
      if (read->schedule.lanes.size() == 1) {  // it may be whole for one lane: only a size tells
        const auto& list = read->schedule.lanes[0];
        const auto& first = schedule.lanes[0];
        EXPECT_TRUE(list.size() <= first.size() && std::equal(list.begin(), list.end(), first.begin()))
            << whole.substr(0, size);
        continue;
      }
      EXPECT_FALSE(Verify(read->schedule, compute).ok()) << whole.substr(0, size);
    }
  }
}

TEST(TorchCsvTest, RefusesOtherForms) {
  for (const char* cell : {"(0F5;7B2)OVERLAP_B_F", "(0F5)OVERLAP_F_B", "(0F5;7B2;1F0)OVERLAP_F_B", "(0F5;7B2",
                           "UNSHARD", "0UNSHARD1", "(0F5;)OVERLAP_F_B;"}) {
    const auto imported = ImportTorchCsv(cell);
    ASSERT_FALSE(imported.ok()) << cell;
    EXPECT_THAT(std::string(imported.status().message()), HasSubstr(cell));
  }
}

}  // namespace
}  // namespace penstock
