#include "client/lib/host_tensor.h"

#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "client/lib/request_id.h"
#include "engine/base/error.h"

namespace penstock {
namespace {

TEST(HostTensorTest, ValuesComeBackAlignedAndTyped) {
  const std::vector<int64_t> values = {1, -2, 3, 4, 5, 6};
  auto tensor = HostTensor::FromValues<int64_t>("x", {2, 3}, values);
  ASSERT_TRUE(tensor.ok());
  EXPECT_EQ(tensor->header().byte_size, 48);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor->bytes().data()) % 64, 0);
  auto read = tensor->Values<int64_t>();
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(std::vector<int64_t>(read->begin(), read->end()), values);
  EXPECT_EQ(ReasonOf(tensor->Values<float>().status()), "WRONG_TYPE");
}

TEST(HostTensorTest, CountMustMatchShape) {
  const std::vector<float> values(5);
  auto tensor = HostTensor::FromValues<float>("x", {2, 3}, values);
  EXPECT_EQ(ReasonOf(tensor.status()), "TENSOR_HEADER");
  EXPECT_EQ(ReasonOf(HostTensor::FromBytes({"x", DataType::kFp32, {2, 3}, 0}, "").status()), "TENSOR_HEADER");
}

TEST(HostTensorTest, SurvivesAMessage) {
  const std::vector<float> values = {1.5f, -2.0f};
  auto tensor = HostTensor::FromValues<float>("y", {2}, values);
  ASSERT_TRUE(tensor.ok());
  auto again = HostTensor::FromMessage(tensor->ToMessage());
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->header(), tensor->header());
  EXPECT_EQ(again->bytes(), tensor->bytes());
}

TEST(HostTensorTest, ScalarsAndEmptyTensorsAreLegal) {
  const std::vector<double> one = {3.0};
  EXPECT_TRUE(HostTensor::FromValues<double>("s", {}, one).ok());
  auto empty = HostTensor::FromValues<double>("e", {0, 4}, std::span<const double>());
  ASSERT_TRUE(empty.ok());
  EXPECT_EQ(empty->bytes().size(), 0);
}

TEST(RequestIdTest, IsARandomCanonicalUuid) {
  const std::regex pattern("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}");
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) {
    const std::string id = NewRequestId();
    EXPECT_TRUE(std::regex_match(id, pattern)) << id;
    EXPECT_TRUE(seen.insert(id).second);
  }
}

}  // namespace
}  // namespace penstock
