#include "server/identity/identity_map.h"

#include <gtest/gtest.h>

#include "engine/base/error.h"

namespace penstock::testing {
namespace {

absl::Status MapFault(const std::string& text) { return IdentityMap::Parse(text, "people.txt").status(); }

TEST(IdentityMap, HasALinePerIdentity) {
  const auto map = IdentityMap::Parse(
      "# who is who\n"
      "\n"
      "spiffe://example.org/trainer\ttrain  team-a-*   # nights\n"
      "  dash viewer *\r\n"
      "ops admin *",
      "people.txt");
  ASSERT_TRUE(map.ok()) << map.status();
  EXPECT_EQ(map->size(), 3u);
  const Identity* trainer = map->Find("spiffe://example.org/trainer");
  ASSERT_NE(trainer, nullptr);
  EXPECT_EQ(trainer->name, "spiffe://example.org/trainer");
  EXPECT_EQ(trainer->role, Role::kTrain);
  EXPECT_TRUE(trainer->Sees("team-a-1"));
  EXPECT_FALSE(trainer->Sees("team-b-1"));
  EXPECT_EQ(map->Find("dash")->role, Role::kViewer);
  EXPECT_EQ(map->Find("ops")->role, Role::kAdmin);
  EXPECT_EQ(map->Find("Ops"), nullptr);
}

TEST(IdentityMap, FaultsNameFileLineAndValue) {
  const absl::Status role = MapFault("ann train *\n# more\nbob trainer *\n");
  EXPECT_EQ(ReasonOf(role), "FIELD_INVALID");
  EXPECT_EQ(ValuesOf(role)["field"], "people.txt:3");
  EXPECT_EQ(ValuesOf(role)["value"], "trainer");
  EXPECT_EQ(ValuesOf(MapFault("ann train\n"))["value"], "2 words");
  EXPECT_EQ(ValuesOf(MapFault("ann train * *\n"))["value"], "4 words");
  EXPECT_EQ(ValuesOf(MapFault("a%n train *\n"))["value"], "a%n");
  EXPECT_EQ(ValuesOf(MapFault("ann train A*\n"))["value"], "A*");
}

TEST(IdentityMap, RefusesAnIdentityWithTwoLines) {
  const absl::Status twice = MapFault("ann train *\nann admin *\n");
  EXPECT_EQ(ValuesOf(twice)["field"], "people.txt:2");
  EXPECT_EQ(ValuesOf(twice)["value"], "ann");
}

TEST(IdentityMap, MayBeEmpty) { EXPECT_TRUE(MapFault("# nobody yet").ok()); }

}  // namespace
}  // namespace penstock::testing
