#include "engine/base/status_macros.h"

#include <memory>

#include "engine/base/check.h"
#include "gtest/gtest.h"

namespace penstock {
namespace {

absl::StatusOr<int> Half(int number) {
  if (number % 2 != 0) return absl::InvalidArgumentError("odd");
  return number / 2;
}

absl::StatusOr<int> Quarter(int number, int* reached) {
  PENSTOCK_ASSIGN_OR_RETURN(const int half, Half(number));
  *reached = 1;
  PENSTOCK_ASSIGN_OR_RETURN(const int quarter, Half(half));
  *reached = 2;
  return quarter;
}

absl::Status Check(int number, int* reached) {
  PENSTOCK_RETURN_IF_ERROR(Half(number).status());
  *reached = 1;
  return absl::OkStatus();
}

TEST(StatusMacrosTest, AssignOrReturnPassesValuesAndLeavesAtTheFirstError) {
  int reached = 0;
  EXPECT_EQ(Quarter(8, &reached).value(), 2);
  EXPECT_EQ(reached, 2);
  reached = 0;
  EXPECT_EQ(Quarter(6, &reached).status().message(), "odd");
  EXPECT_EQ(reached, 1);
  reached = 0;
  EXPECT_EQ(Quarter(3, &reached).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(reached, 0);
}

absl::StatusOr<std::unique_ptr<int>> MakeBox() { return std::make_unique<int>(5); }

absl::StatusOr<int> Unbox() {
  PENSTOCK_ASSIGN_OR_RETURN(std::unique_ptr<int> box, MakeBox());
  return *box;
}

TEST(StatusMacrosTest, AssignOrReturnMovesValuesThatCannotBeCopied) { EXPECT_EQ(Unbox().value(), 5); }

TEST(StatusMacrosTest, ReturnIfErrorLeavesOnlyOnError) {
  int reached = 0;
  EXPECT_TRUE(Check(2, &reached).ok());
  EXPECT_EQ(reached, 1);
  reached = 0;
  EXPECT_EQ(Check(1, &reached).message(), "odd");
  EXPECT_EQ(reached, 0);
}

TEST(CheckDeathTest, ABrokenInvariantEndsTheProcessAndNamesTheCondition) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const int answer = 41;
  PENSTOCK_CHECK(answer == 41);
  EXPECT_DEATH(PENSTOCK_CHECK(answer == 42), "status_macros_test.cc:[0-9]+: broken invariant: answer == 42");
}

}  // namespace
}  // namespace penstock
