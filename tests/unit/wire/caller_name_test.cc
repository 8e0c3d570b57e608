#include "engine/wire/caller_name.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/base/error.h"

namespace penstock {
namespace {

TEST(CheckCallerName, TakesTheNamesOfPeopleAndServices) {
  const std::vector<std::string> good_names = {"a", "trainer-7", "ana@example.org", "team:job_1.2",
                                               std::string(128, 'x')};
  for (const std::string& good : good_names) {
    EXPECT_TRUE(CheckCallerName(good, "caller").ok()) << good;
  }
}

TEST(CheckCallerName, NamesTheFieldAndTheValueThatItRefuses) {
  for (const std::string& bad : std::vector<std::string>{"", "two words", "Jürgen", std::string(129, 'x')}) {
    EXPECT_EQ(ReasonOf(CheckCallerName(bad, "caller")), "NAME_INVALID") << bad;
  }
  const absl::Status refused = CheckCallerName("Jürgen", "caller");
  EXPECT_EQ(refused.message(), "caller: must be 1 to 128 of a to z, A to Z, 0 to 9 and _ . @ : -, got Jürgen");
  EXPECT_EQ(ValuesOf(refused).at("field"), "caller");
  EXPECT_EQ(ValuesOf(refused).at("value"), "Jürgen");
}

}  // namespace
}  // namespace penstock
