#include "client/cli/tensor_cast.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename T>
HostTensor Of(const std::vector<T>& values) {
  return *HostTensor::FromValues<T>("x", {static_cast<int64_t>(values.size())}, values);
}

TEST(TensorCastTest, Float64IsRoundedToFloat32) {
  const HostTensor cast = *CastTo(DataType::kFp32, Of<double>({0.1, -2, HUGE_VAL, 1e-60}));
  EXPECT_THAT(*cast.Values<float>(), ElementsAre(0.1F, -2, HUGE_VALF, 0));
  EXPECT_EQ(cast.header().shape, std::vector<int64_t>{4});
  EXPECT_EQ(cast.name(), "x");
  EXPECT_TRUE(std::isnan((*CastTo(DataType::kFp32, Of<double>({NAN}))->Values<float>())[0]));
  EXPECT_THAT(std::string(CastTo(DataType::kFp32, Of<double>({1, 1e39})).status().message()),
              HasSubstr("x: must be of FP32, has 1e+39"));
}

TEST(TensorCastTest, IntegersGoWhereAllOfTheirValuesAre) {
  EXPECT_THAT(*CastTo(DataType::kInt64, Of<int32_t>({-1, 7}))->Values<int64_t>(), ElementsAre(-1, 7));
  EXPECT_THAT(*CastTo(DataType::kInt64, Of<uint8_t>({200}))->Values<int64_t>(), ElementsAre(200));
  EXPECT_THAT(*CastTo(DataType::kInt32, Of<int64_t>({-2147483648}))->Values<int32_t>(), ElementsAre(-2147483648));
  EXPECT_THAT(std::string(CastTo(DataType::kInt32, Of<int64_t>({0, 2147483648})).status().message()),
              HasSubstr("x: must be of INT32, has 2147483648"));
  EXPECT_FALSE(CastTo(DataType::kInt64, Of<uint64_t>({std::numeric_limits<uint64_t>::max()})).ok());
}

TEST(TensorCastTest, WhatWouldLoseSomethingStaysForTheDaemonToRefuse) {
  EXPECT_EQ(CastTo(DataType::kInt64, Of<float>({1}))->header().type, DataType::kFp32);
  EXPECT_EQ(CastTo(DataType::kFp32, Of<int64_t>({1}))->header().type, DataType::kInt64);
  EXPECT_EQ(CastTo(DataType::kBf16, Of<float>({1}))->header().type, DataType::kFp32);
  EXPECT_EQ(CastTo(DataType::kUnspecified, Of<double>({1}))->header().type, DataType::kFp64) << "any type";
}

}  // namespace
}  // namespace penstock
