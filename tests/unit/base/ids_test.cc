#include "engine/base/ids.h"

#include <sstream>
#include <type_traits>

#include "absl/hash/hash.h"
#include "gtest/gtest.h"

namespace penstock {
namespace {

template <typename A, typename B>
concept Addable = requires(A a, B b) {
  a + b;
};
template <typename A, typename B>
concept Comparable = requires(A a, B b) {
  a == b;
};

TEST(IdsTest, CompareByValueWithinOneKind) {
  EXPECT_EQ(StageIndex(2), StageIndex(2));
  EXPECT_NE(StageIndex(2), StageIndex(3));
  EXPECT_LT(LayerIndex(-1), LayerIndex(0));
  EXPECT_EQ(StageIndex().value(), 0);
}

TEST(IdsTest, OneKindIsNoOtherAndNoInteger) {
  static_assert(!std::is_convertible_v<int, StageIndex>);
  static_assert(!std::is_convertible_v<StageIndex, int>);
  static_assert(!std::is_convertible_v<StageIndex, LayerIndex>);
  static_assert(!std::is_constructible_v<StageIndex, LayerIndex>);
  static_assert(!Comparable<StageIndex, LayerIndex>);
  static_assert(!Addable<StageIndex, StageIndex>);
  static_assert(!Addable<StageIndex, int>);
}

TEST(IdsTest, PrintAsTheirNumber) {
  std::ostringstream out;
  out << MicroBatchIndex(7) << ' ' << StepId(int64_t{1} << 40);
  EXPECT_EQ(out.str(), "7 1099511627776");
  EXPECT_EQ(ToString(Epoch(4294967295u)), "4294967295");
}

TEST(IdsTest, HashAgreesWithEquality) {
  EXPECT_EQ(absl::HashOf(StageIndex(7)), absl::HashOf(StageIndex(7)));
  EXPECT_NE(absl::HashOf(StageIndex(7)), absl::HashOf(StageIndex(8)));
}

}  // namespace
}  // namespace penstock
