#include <functional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/ranks/rank_convert.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

LaneReport SomeLane() {
  LaneReport report{.lane = 3};
  for (size_t s = 0; s < report.state_nanos.size(); ++s) report.state_nanos[s] = static_cast<int64_t>(100 + s);
  for (size_t i = 0; i < report.phases.size(); ++i) {
    DurationHistogram durations(PhaseBuckets());
    for (size_t k = 0; k < i; ++k)
      durations.Observe(static_cast<int64_t>(k) * 40'000'000'000);  // also above all bounds
    report.phases[i] = durations.Snapshot();
  }
  for (size_t i = 0; i < report.memory_bytes.size(); ++i) report.memory_bytes[i] = 0.5 + static_cast<double>(i);
  return report;
}

void ExpectSame(const LaneReport& a, const LaneReport& b) {
  EXPECT_EQ(a.lane, b.lane);
  EXPECT_EQ(a.state_nanos, b.state_nanos);
  EXPECT_EQ(a.memory_bytes, b.memory_bytes);
  for (size_t i = 0; i < a.phases.size(); ++i) {
    EXPECT_EQ(a.phases[i].cumulative, b.phases[i].cumulative) << kPhaseNames[i];
    EXPECT_EQ(a.phases[i].sum_nanos, b.phases[i].sum_nanos) << kPhaseNames[i];
    EXPECT_EQ(a.phases[i].count(), b.phases[i].count()) << kPhaseNames[i];
  }
}

TEST(LaneReportConvert, WhatLanesDidComesBackFromTheMeasuresOfARun) {
  const Measures measures{.losses = {0.25}, .lanes = {SomeLane()}};
  const absl::StatusOr<Measures> back = FromProto(ToProto(measures));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->losses, measures.losses);
  ASSERT_EQ(back->lanes.size(), 1);
  ExpectSame(back->lanes[0], measures.lanes[0]);
}

TEST(LaneReportConvert, WhatLanesHoldComesBackFromTheFactsOfARank) {
  FactsOfRank facts{.shapes = {}, .parameters = {}, .parameter_count = 5, .lanes = {SomeLane()}};
  peer::v1::Facts message;
  ASSERT_TRUE(SetFacts(facts, &message).ok());
  const absl::StatusOr<FactsOfRank> back = FromProto(message);
  ASSERT_TRUE(back.ok()) << back.status();
  ASSERT_EQ(back->lanes.size(), 1);
  ExpectSame(back->lanes[0], facts.lanes[0]);
}

// Counters of the leader must not fall, whatever a rank says.
TEST(LaneReportConvert, ReportsOfLanesThatCantBeAreRefusedByName) {
  const auto refused = [](const std::function<void(peer::v1::LaneReport*)>& spoil) {
    peer::v1::Measures message = ToProto(Measures{.lanes = {SomeLane()}});
    spoil(message.mutable_lanes(0));
    return std::string(FromProto(message).status().message());
  };
  using Report = peer::v1::LaneReport;
  EXPECT_THAT(refused([](Report* to) { to->set_state_nanos(2, -1); }), HasSubstr("lanes.state_nanos"));
  EXPECT_THAT(refused([](Report* to) { to->add_state_nanos(1); }), HasSubstr("lanes.state_nanos"));
  EXPECT_THAT(refused([](Report* to) { to->add_memory_bytes(1); }), HasSubstr("lanes.memory_bytes"));
  EXPECT_THAT(refused([](Report* to) { to->mutable_phases(0)->set_phase(7); }), HasSubstr("lanes.phases.phase"));
  EXPECT_THAT(refused([](Report* to) { to->mutable_phases(0)->set_phase(-1); }), HasSubstr("lanes.phases.phase"));
  EXPECT_THAT(refused([](Report* to) { to->mutable_phases(0)->set_cumulative(16, 0); }),
              HasSubstr("lanes.phases.cumulative"));
  EXPECT_THAT(refused([](Report* to) { to->mutable_phases(0)->set_cumulative(0, -1); }),
              HasSubstr("lanes.phases.cumulative"));
  EXPECT_THAT(refused([](Report* to) { to->mutable_phases(0)->add_cumulative(99); }),
              HasSubstr("lanes.phases.cumulative"));
  EXPECT_THAT(refused([](Report* to) { to->mutable_phases(0)->set_sum_nanos(-1); }),
              HasSubstr("lanes.phases.cumulative"));
}

}  // namespace
}  // namespace penstock
