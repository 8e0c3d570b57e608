#include "engine/base/option_map.h"

#include <cmath>
#include <limits>

#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(OptionTextTest, ShowsEachTypeAsAClientWouldWriteIt) {
  EXPECT_EQ(OptionText(true), "true");
  EXPECT_EQ(OptionText(int64_t{-3}), "-3");
  EXPECT_EQ(OptionText(0.5), "0.5");
  EXPECT_EQ(OptionText(1e3), "1000.0") << "no int64";
  EXPECT_EQ(OptionText(1e300), "1e+300");
  EXPECT_EQ(OptionText(1 - 1e-10), "0.9999999999");
  EXPECT_EQ(OptionText(std::string("gelu")), "gelu");
}

TEST(OptionReaderTest, AnswersWhatIsSetAndTheDefaultOtherwise) {
  const OptionMap options = {{"width", int64_t{64}}, {"rate", 0.1}, {"bias", false}, {"scale", int64_t{2}}};
  OptionReader reader(options, "options");
  EXPECT_EQ(reader.Int("width", 256, 1, 65536), 64);
  EXPECT_EQ(reader.Int("blocks", 8, 1, 100), 8);
  EXPECT_EQ(reader.Double("rate", 0.0, 0.0, 1.0), 0.1);
  EXPECT_EQ(reader.Double("scale", 1.0, 0.0, 10.0), 2.0) << "whole numbers are numbers";
  EXPECT_FALSE(reader.Bool("bias", true));
  EXPECT_TRUE(reader.Bool("tied", true));
  EXPECT_TRUE(reader.Has("width"));
  EXPECT_FALSE(reader.Has("blocks"));
  EXPECT_TRUE(reader.Finish().ok());
}

TEST(OptionReaderTest, LimitsBelongToTheRange) {
  const OptionMap options = {{"low", int64_t{1}}, {"high", int64_t{9}}, {"zero", 0.0}, {"one", 1.0}};
  OptionReader reader(options, "options");
  reader.Int("low", 5, 1, 9);
  reader.Int("high", 5, 1, 9);
  reader.Double("zero", 0.5, 0.0, 1.0);
  reader.Double("one", 0.5, 0.0, 1.0);
  EXPECT_TRUE(reader.Finish().ok());
}

TEST(OptionReaderTest, AnUnknownNameIsRefusedByNameAndTheKnownOnesAreListed) {
  const OptionMap options = {{"widht", int64_t{64}}};
  OptionReader reader(options, "model.options");
  reader.Int("width", 256, 1, 65536);
  reader.Bool("bias", true);
  const absl::Status status = reader.Finish();
  EXPECT_EQ(ReasonOf(status), "SPEC_INVALID");
  EXPECT_EQ(ValuesOf(status).at("field"), "model.options[widht]");
  EXPECT_EQ(ValuesOf(status).at("value"), "64");
  EXPECT_THAT(std::string(status.message()), HasSubstr("bias, width"));
}

TEST(OptionReaderTest, TheFirstFaultIsKept) {
  const OptionMap options = {{"blocks", int64_t{0}}, {"width", int64_t{-1}}};
  OptionReader reader(options, "options");
  EXPECT_EQ(reader.Int("blocks", 8, 1, 100), 8) << "a fault answers the default";
  reader.Int("width", 256, 1, 65536);
  EXPECT_EQ(ValuesOf(reader.Finish()).at("field"), "options[blocks]");
}

TEST(OptionReaderTest, ABoundIsShownAsItIs) {
  const OptionMap options = {{"beta1", int64_t{1}}};
  OptionReader reader(options, "options");
  reader.Double("beta1", 0.9, 0, 1 - 1e-9);
  EXPECT_EQ(std::string(reader.Finish().message()), "options[beta1]: must lie in [0, 0.999999999], got 1");
}

struct Fault {
  OptionValue value;
  std::string problem;
};

class NumberFaultTest : public ::testing::TestWithParam<Fault> {};

TEST_P(NumberFaultTest, IsRefusedWithFieldAndValue) {
  const OptionMap options = {{"rate", GetParam().value}};
  OptionReader reader(options, "options");
  EXPECT_EQ(reader.Double("rate", 0.25, 0.0, 1.0), 0.25);
  const absl::Status status = reader.Finish();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("options[rate]"), HasSubstr(GetParam().problem),
                                                   HasSubstr(OptionText(GetParam().value))));
}

INSTANTIATE_TEST_SUITE_P(Numbers, NumberFaultTest,
                         ::testing::Values(Fault{std::string("much"), "must be a number"},
                                           Fault{true, "must be a number"}, Fault{1.5, "must lie in [0, 1]"},
                                           Fault{-0.1, "must lie in [0, 1]"}, Fault{int64_t{2}, "must lie in [0, 1]"},
                                           Fault{std::nan(""), "must lie in [0, 1]"},
                                           Fault{std::numeric_limits<double>::infinity(), "must lie in [0, 1]"}));

TEST(OptionReaderTest, WholeNumbersAndFlagsTakeNoOtherType) {
  for (const OptionValue& value : {OptionValue(1.0), OptionValue(std::string("1")), OptionValue(true)}) {
    const OptionMap options = {{"blocks", value}};
    OptionReader reader(options, "options");
    reader.Int("blocks", 8, 0, 100);
    EXPECT_EQ(std::string(reader.Finish().message()),
              "options[blocks]: must be a whole number, without a point or an exponent, got " + OptionText(value));
  }
  const OptionMap options = {{"bias", int64_t{1}}};
  OptionReader reader(options, "options");
  reader.Bool("bias", false);
  EXPECT_THAT(std::string(reader.Finish().message()), HasSubstr("must be true or false"));
}

}  // namespace
}  // namespace penstock
