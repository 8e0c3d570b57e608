#include "server/peer/peer_clock.h"

#include <cstdlib>

#include "gtest/gtest.h"

namespace penstock {
namespace {

TEST(PeerClock, TheQuickestRoundTripCounts) {
  PeerClock clock;
  EXPECT_FALSE(clock.Offset().has_value());
  clock.Add(1000, 9100, 1400);
  EXPECT_EQ(clock.Offset()->nanos, 7900);
  EXPECT_EQ(clock.Offset()->uncertainty_nanos, 200);
  clock.Add(2000, 10'030, 2040);
  EXPECT_EQ(clock.Offset()->nanos, 8010);
  EXPECT_EQ(clock.Offset()->uncertainty_nanos, 20);
  clock.Add(3000, 20'000, 4000);
  EXPECT_EQ(clock.Offset()->nanos, 8010);
}

// Wherever within the round trip the peer read its clock.
TEST(PeerClock, TheTrueOffsetIsWithinTheUncertainty) {
  constexpr int64_t kTrue = -123'456;
  for (int64_t round_trip : {0, 1, 2, 7, 1000}) {
    for (int64_t read = 0; read <= round_trip; ++read) {
      PeerClock clock;
      clock.Add(500, 500 + read + kTrue, 500 + round_trip);
      EXPECT_LE(std::abs(clock.Offset()->nanos - kTrue), clock.Offset()->uncertainty_nanos)
          << round_trip << " " << read;
      EXPECT_LE(clock.Offset()->uncertainty_nanos, (round_trip + 1) / 2);
    }
  }
}

TEST(PeerClock, DoubtGrowsWithAge) {
  PeerClock clock;
  clock.Add(0, 5000, 20);
  clock.Add(39'999'000, 40'004'000, 40'000'000);
  EXPECT_EQ(clock.Offset()->nanos, 4500) << "500 are less than 10 and what may drift in 40 milliseconds";
  EXPECT_EQ(clock.Offset()->uncertainty_nanos, 500);
  clock.Add(60'000'000, 60'005'000, 60'002'000);
  EXPECT_EQ(clock.Offset()->nanos, 4000) << "1,000 are less than 500 and what may drift in 20 milliseconds";
}

TEST(PeerClock, OldAnswersAreForgotten) {
  PeerClock clock;
  clock.Add(0, 0, 0);
  for (size_t i = 0; i < PeerClock::kSamples; ++i) clock.Add(1000, 1150, 1100);
  EXPECT_EQ(clock.Offset()->nanos, 100);
  EXPECT_EQ(clock.Offset()->uncertainty_nanos, 50);
}

}  // namespace
}  // namespace penstock
