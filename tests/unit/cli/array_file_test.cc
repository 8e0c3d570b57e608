// Arrays of files, and the order of their rows. What numpy writes is read in tests/integration/test_training_on_files.py.

#include "client/cli/array_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "client/cli/data_batches.h"
#include "client/cli/row_order.h"
#include "client/cli/safetensors_file.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int64_t> Copy(std::span<const int64_t> rows) { return {rows.begin(), rows.end()}; }

TEST(RowOrderTest, AnEpochHasEachRowOnceAndLeavesOutWhatIsTooFew) {
  RowOrder order(10, 4, 1);
  std::vector<int64_t> all;
  for (int64_t number : {0, 1}) {
    const std::vector<int64_t> rows = Copy(order.BatchOf(number));
    EXPECT_EQ(rows.size(), 4);
    all.insert(all.end(), rows.begin(), rows.end());
  }
  std::sort(all.begin(), all.end());
  EXPECT_EQ(std::unique(all.begin(), all.end()), all.end());
  EXPECT_GE(all.front(), 0);
  EXPECT_LT(all.back(), 10);
}

TEST(RowOrderTest, DependsOnTheNumberAndTheSeedAlone) {
  RowOrder order(100, 50, 1);
  const std::vector<int64_t> first = Copy(order.BatchOf(0));
  const std::vector<int64_t> third = Copy(order.BatchOf(2));  // of the next epoch
  EXPECT_NE(first, third);
  EXPECT_EQ(Copy(order.BatchOf(0)), first);
  EXPECT_EQ(Copy(RowOrder(100, 50, 1).BatchOf(2)), third);
  EXPECT_NE(Copy(RowOrder(100, 50, 2).BatchOf(0)), first);
  std::vector<int64_t> sorted = first;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_NE(sorted, first);
}

TEST(RowOrderTest, OneRowIsAnEpoch) {
  RowOrder order(1, 1, 1);
  EXPECT_THAT(Copy(order.BatchOf(0)), ElementsAre(0));
  EXPECT_THAT(Copy(order.BatchOf(int64_t{1} << 53)), ElementsAre(0));
}

class ArrayFileTest : public ::testing::Test {
 protected:
  // Of "x" [5, 2] 0, 1, ... 9 and "y" [5] 0, 10, ... 40, behind it.
  ArrayFileTest() {
    std::vector<float> x(10);
    std::iota(x.begin(), x.end(), 0.0F);
    const std::vector<int64_t> y = {0, 10, 20, 30, 40};
    std::vector<HostTensor> tensors;
    tensors.push_back(*HostTensor::FromValues<float>("x", {5, 2}, x));
    tensors.push_back(*HostTensor::FromValues<int64_t>("y", {5}, y));
    std::ofstream(path_) << WriteSafetensors(tensors, {});
  }

  v1::ModelSignature Signature(const std::string& input, const std::string& target) {
    v1::ModelSignature signature;
    signature.add_inputs()->set_name(input);
    if (!target.empty()) signature.add_targets()->set_name(target);
    return signature;
  }

  const std::string path_ = ::testing::TempDir() + "/penstock_arrays.safetensors";
};

TEST_F(ArrayFileTest, GivesRowsInTheOrderAskedFor) {
  const auto file = ArrayFile::Open(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(file->names(), ElementsAre("x", "y"));
  const auto x = file->Array("x");
  ASSERT_TRUE(x.ok()) << x.status();
  EXPECT_EQ(x->rows(), 5);
  const std::vector<int64_t> rows = {4, 0, 4};
  const auto tensor = x->Rows("input", rows);
  ASSERT_TRUE(tensor.ok()) << tensor.status();
  EXPECT_EQ(tensor->name(), "input");
  EXPECT_THAT(tensor->header().shape, ElementsAre(3, 2));
  EXPECT_THAT(*tensor->Values<float>(), ElementsAre(8, 9, 0, 1, 8, 9));
}

TEST_F(ArrayFileTest, AFileThatBecomesShorterIsAnError) {
  const auto file = ArrayFile::Open(path_);
  ASSERT_TRUE(file.ok());
  const auto y = file->Array("y");
  ASSERT_TRUE(y.ok());
  std::filesystem::resize_file(path_, std::filesystem::file_size(path_) - 1);
  const std::vector<int64_t> rows = {3, 4};
  const auto tensor = y->Rows("y", rows);
  EXPECT_THAT(std::string(tensor.status().message()), HasSubstr(path_ + ": cannot be read (it has become shorter"));
}

TEST_F(ArrayFileTest, TheSignatureNamesTheArrays) {
  const auto file = ArrayFile::Open(path_);
  ASSERT_TRUE(file.ok());
  auto data = DataRows::Create(*file, Signature("x", "y"), "");
  ASSERT_TRUE(data.ok()) << data.status();
  const BatchSource batches = BatchesInOrder(*std::move(data), 3);
  const auto last = batches(1);
  ASSERT_TRUE(last.ok());
  EXPECT_THAT(*last->inputs[0].Values<float>(), ElementsAre(6, 7, 8, 9));
  EXPECT_THAT(*last->target->Values<int64_t>(), ElementsAre(30, 40));

  const auto alone = DataRows::Create(*file, Signature("x", ""), "");
  ASSERT_TRUE(alone.ok());
  const std::vector<int64_t> rows = {1};
  EXPECT_FALSE(alone->BatchOf(rows)->target.has_value()) << "the model computes its loss itself";

  const auto named = DataRows::Create(*file, Signature("x", "targets"), "y");
  ASSERT_TRUE(named.ok());
  EXPECT_EQ(named->BatchOf(rows)->target->name(), "targets");
  EXPECT_THAT(std::string(DataRows::Create(*file, Signature("x", "z"), "").status().message()),
              HasSubstr("has no array z, which the pipeline takes; it has x, y"));
}

}  // namespace
}  // namespace penstock
