#include "engine/plan/size_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock {
namespace {

using ::testing::ElementsAre;

LayerProfile SizedLayer(double forward_ms, int64_t stash) {
  LayerProfile layer;
  layer.forward_seconds = forward_ms * 1e-3;
  layer.backward_seconds = 2 * forward_ms * 1e-3;
  layer.stash_bytes = stash;
  layer.output_bytes = stash / 2;
  layer.parameter_bytes = 77;
  layer.skip_bytes[{"", "x"}] = stash;
  return layer;
}

TEST(SizeProfile, IsAStraightLineBetweenMeasurements) {
  SizeProfile profile;
  profile.Add(2, {SizedLayer(3, 20)});
  profile.Add(10, {SizedLayer(7, 100)});
  EXPECT_DOUBLE_EQ(profile.At(2)[0].forward_seconds, 0.003);
  EXPECT_DOUBLE_EQ(profile.At(10)[0].forward_seconds, 0.007);
  const LayerProfile middle = profile.At(4)[0];  // a fixed part of 2 ms, and half a millisecond per row
  EXPECT_DOUBLE_EQ(middle.forward_seconds, 0.004);
  EXPECT_DOUBLE_EQ(middle.backward_seconds, 0.008);
  EXPECT_EQ(middle.stash_bytes, 40);
  EXPECT_EQ(middle.output_bytes, 20);
  EXPECT_EQ(middle.skip_bytes.at({"", "x"}), 40);
  EXPECT_EQ(middle.parameter_bytes, 77);
}

TEST(SizeProfile, GoesOnBeyondItsMeasurements) {
  SizeProfile profile;
  profile.Add(2, {SizedLayer(3, 20)});
  profile.Add(10, {SizedLayer(7, 100)});
  EXPECT_DOUBLE_EQ(profile.At(1)[0].forward_seconds, 0.0025);
  EXPECT_DOUBLE_EQ(profile.At(20)[0].forward_seconds, 0.012);
  SizeProfile noisy;  // the larger one was measured as the cheaper one
  noisy.Add(2, {SizedLayer(4, 20)});
  noisy.Add(10, {SizedLayer(3, 100)});
  EXPECT_LE(noisy.At(1)[0].forward_seconds, 0.0042);
  EXPECT_GT(noisy.At(40)[0].forward_seconds, 0);
}

TEST(SizeProfile, OneMeasurementCountsForEverySize) {
  const SizeProfile profile({SizedLayer(3, 20)});
  EXPECT_DOUBLE_EQ(profile.At(100)[0].forward_seconds, 0.003);
}

TEST(SizeProfile, MeasuresEndsAndMiddle) {
  EXPECT_THAT(SizesToMeasure(4, 4), ElementsAre(4));
  EXPECT_THAT(SizesToMeasure(4, 8), ElementsAre(4, 8));
  EXPECT_THAT(SizesToMeasure(1, 16), ElementsAre(1, 4, 16));
}

}  // namespace
}  // namespace penstock
