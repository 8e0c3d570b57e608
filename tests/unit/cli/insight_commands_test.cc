#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <isa-l/igzip_lib.h>

#include <array>
#include <filesystem>

#include "client/cli/message_json.h"
#include "tests/unit/cli/command_fixture.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::RichStatus;
using ::testing::StartsWith;

using InsightCommandsTest = testing::DaemonCommandFixture;

TEST_F(InsightCommandsTest, ATraceBecomesAFile) {
  const std::string path = ::testing::TempDir() + "/penstock_trace.json";
  EXPECT_EQ(Run("trace gpt -O " + path), 0) << err_;
  EXPECT_EQ(Contents(path), "{\"traceEvents\":[]}");
  EXPECT_THAT(out_, IsEmpty());
  EXPECT_THAT(err_, HasSubstr("wrote 12 steps, 1.5 s of 2 lanes, 3,456 records, to " + path +
                              "; open it in ui.perfetto.dev or chrome://tracing"));
  EXPECT_THAT(err_, HasSubstr("older records were overwritten, 789 of them; penstockd --trace-ring-events keeps more"));
}

TEST_F(InsightCommandsTest, ATraceOfTheNextStepsGoesToStdout) {
  EXPECT_EQ(Run("trace gpt --steps 3 --format perfetto --to -"), 0) << err_;
  EXPECT_EQ(out_, "perfetto");
  EXPECT_THAT(err_, HasSubstr("recording the next 3 steps of gpt; Ctrl-C gives up"));
  EXPECT_THAT(err_, HasSubstr("wrote 3 steps"));
  EXPECT_THAT(err_, Not(HasSubstr("overwritten")));
}

TEST_F(InsightCommandsTest, ATraceWhoseNameSaysSoIsCompressed) {
  const std::string path = ::testing::TempDir() + "/penstock_trace.json.gz";
  EXPECT_EQ(Run("trace gpt -O " + path), 0) << err_;
  const std::string bytes = Contents(path);
  EXPECT_THAT(bytes, StartsWith("\x1f\x8b"));
  inflate_state state;
  isal_inflate_init(&state);
  state.crc_flag = ISAL_GZIP;
  std::array<uint8_t, 4096> plain;
  std::string packed = bytes;
  state.next_in = reinterpret_cast<uint8_t*>(packed.data());
  state.avail_in = static_cast<uint32_t>(packed.size());
  state.next_out = plain.data();
  state.avail_out = plain.size();
  ASSERT_EQ(isal_inflate(&state), ISAL_DECOMP_OK);
  EXPECT_EQ(state.block_state, ISAL_BLOCK_FINISH);
  EXPECT_EQ(std::string(plain.begin(), plain.begin() + state.total_out), "{\"traceEvents\":[]}");
}

TEST_F(InsightCommandsTest, ABrokenTraceLeavesNoFile) {
  const std::string path = ::testing::TempDir() + "/penstock_broken_trace.json";
  std::filesystem::remove(path);
  daemon_.Fail("ExportTrace", RichStatus(grpc::StatusCode::OUT_OF_RANGE, "STEP_NOT_RETAINED",
                                         "step: is not in the trace ring any more (--trace-ring-events), got 3"));
  EXPECT_EQ(Run("trace gpt --first-step 3 -O " + path), 1);
  EXPECT_THAT(err_, HasSubstr("STEP_NOT_RETAINED"));
  EXPECT_FALSE(std::filesystem::exists(path));
  // One that breaks off is not begun anew: half of it was written.
  daemon_.Fail("ExportTrace.piece", RichStatus(grpc::StatusCode::UNAVAILABLE, "DRAINING", "the server is closing"));
  EXPECT_EQ(Run("trace gpt -O " + path), 4);
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_NE(Run("trace gpt -O /nowhere/trace.json"), 0);
  EXPECT_THAT(err_, HasSubstr("/nowhere/trace.json"));
}

TEST_F(InsightCommandsTest, WrongTraceOptionsAreRefused) {
  EXPECT_EQ(Run("trace gpt"), 2);
  EXPECT_EQ(Run("trace gpt -O x --format svg"), 2);
  EXPECT_EQ(Run("trace gpt -O x --steps 0"), 2);
  EXPECT_EQ(Run("trace gpt -O x --steps 2 --first-step 1"), 2);
  EXPECT_EQ(Run("trace gpt -O x --last-step 1"), 2);
}

TEST_F(InsightCommandsTest, AMeasuredScheduleIsDrawnBesideItsPlan) {
  EXPECT_EQ(Run("schedule show --pipeline gpt --measured"), 0) << err_;
  EXPECT_THAT(out_, StartsWith("gpt: 1f1b, 2 lanes, 2 stages, 2 micro-batches\n"
                               "planned   9.000 ms, bubble 33.3 %\n"
                               "measured  10.900 ms, bubble 35.0 %, step 7, +21.1 % of the plan\n"));
  EXPECT_THAT(out_, HasSubstr("planned, in ms\nlane 0 |"));
  EXPECT_THAT(out_, HasSubstr("measured, in ms\nlane 0 |"));
  EXPECT_THAT(out_, HasSubstr("[F0"));
  EXPECT_THAT(out_, Not(HasSubstr("makespan"))) << "the heading tells it, and a bubble by all lanes";
  EXPECT_THAT(out_, HasSubstr("largest deviations\n"));
  EXPECT_THAT(out_, HasSubstr("1B0"));
  EXPECT_THAT(out_, HasSubstr("+11.0 %"));
}

TEST_F(InsightCommandsTest, APlanNeedsNoStep) {
  EXPECT_EQ(Run("schedule show --pipeline gpt --micro-batches 2"), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("planned, in ms\n"));
  EXPECT_THAT(out_, HasSubstr("planned   9.000 ms, bubble 33.3 %"));
  EXPECT_THAT(out_, Not(HasSubstr("measured")));
}

TEST_F(InsightCommandsTest, OtherForms) {
  EXPECT_EQ(Run("schedule show --pipeline gpt --measured --step 5 --as csv"), 0) << err_;
  EXPECT_THAT(out_, StartsWith("action,lane,planned_start_ms,planned_end_ms,measured_start_ms,measured_end_ms\n"
                               "0F0,0,0.000,1.000,0.000,1.100\n"));
  EXPECT_EQ(Run("schedule show --pipeline gpt --as csv"), 0);
  EXPECT_THAT(out_, StartsWith("action,lane,planned_start_ms,planned_end_ms\n0F0,0,0.000,1.000\n"));
  EXPECT_EQ(Run("schedule show --pipeline gpt --measured --as svg"), 0);
  EXPECT_THAT(out_, StartsWith("<svg"));
  EXPECT_THAT(out_, HasSubstr("<title>1B0: 2.2 to 5.4</title>"));
  EXPECT_EQ(Run("schedule show --pipeline gpt --measured --as text"), 0);
  EXPECT_THAT(out_, HasSubstr("LONGER BY"));
  EXPECT_EQ(Run("schedule show --pipeline gpt --measured --as deviations"), 0);
  EXPECT_THAT(out_, HasSubstr("wait before it"));
  EXPECT_EQ(Run("schedule show --pipeline gpt --measured -o json"), 0);
  const Json json = Json::parse(out_, nullptr, false);
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["actions"].size(), 8) << "all pages";
  EXPECT_EQ(json["step"], 7);
  EXPECT_EQ(json["deviations"][0]["kind"], "duration");
}

TEST_F(InsightCommandsTest, WrongScheduleOptionsAreRefused) {
  EXPECT_EQ(Run("schedule show --pipeline gpt --kind 1f1b"), 2);
  EXPECT_EQ(Run("schedule show --pipeline gpt --step 3"), 2);
  EXPECT_EQ(Run("schedule show --pipeline gpt --as grid"), 2);
  EXPECT_EQ(Run("schedule show --pipeline gpt --as deviations"), 2);
  EXPECT_THAT(err_, HasSubstr("--measured"));
  EXPECT_EQ(Run("schedule show --pipeline gpt --measured --micro-batches 4"), 2);
  EXPECT_EQ(Run("schedule show --measured"), 2);
  EXPECT_EQ(Run("schedule show --kind 1f1b --devices 2 --micro-batches 2 --as text"), 2);
  EXPECT_EQ(Run("schedule show --kind 1f1b --devices 2 --micro-batches 2"), 0) << "offline as ever: " << err_;
}

}  // namespace
}  // namespace penstock
