#include "client/cli/rank_text.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/cli/command_fixture.h"

namespace penstock::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

v1::GroupInfo TwoOfThree() {
  v1::GroupInfo group;
  group.set_world_size(3);
  group.set_epoch(4);
  group.set_generation(7);
  group.set_reformings(1);
  for (int i = 0; i < 3; ++i) {
    v1::RankInfo* rank = group.add_ranks();
    rank->set_rank(i);
    rank->set_state(i == 2 ? v1::RANK_STATE_MISSING : v1::RANK_STATE_MEMBER);
    rank->mutable_since()->set_seconds(1000 + i);
    if (i == 2) rank->set_problem("rank 2 has not joined yet");
    if (i == 2) continue;
    rank->set_host(absl::StrCat("host-", i));
    rank->set_address(absl::StrCat("192.0.2.", i));
    rank->set_carrier("grpc");
    v1::DeviceInfo* device = rank->add_devices();
    device->set_name(i == 0 ? "cpu:0" : "1/cpu:0");
    device->set_memory_limit_bytes(int64_t{2} << 30);
  }
  group.mutable_ranks(1)->mutable_clock()->set_seconds(0.0015);
  group.mutable_ranks(1)->mutable_clock()->set_uncertainty_seconds(0.00025);
  v1::RankLink* link = group.add_links();
  link->set_to_rank(1);
  link->set_carrier("grpc");
  link->set_messages(5);
  link->set_bytes(3 << 20);
  return group;
}

TEST(RankTextTest, OneLinePerRank) {
  EXPECT_EQ(GroupLine(TwoOfThree()), "2 of 3 ranks, not complete, generation 7, re-formed 1 time");
  EXPECT_EQ(RanksText(TwoOfThree(), 1062, false),
            "RANK  STATE     FOR  HOST    CARRIER  DEVICES            PROBLEM\n"
            "   0  member   1:02  host-0  grpc     cpu:0 (2.0 GiB)    -\n"
            "   1  member   1:01  host-1  grpc     1/cpu:0 (2.0 GiB)  -\n"
            "   2  missing  1:00  -       -        -                  rank 2 has not joined yet\n");
  const std::string wide = RanksText(TwoOfThree(), 0, true);
  EXPECT_THAT(wide, HasSubstr("192.0.2.1"));
  EXPECT_THAT(wide, HasSubstr("1.500 ms, within 0.250 ms"));
  EXPECT_THAT(wide, HasSubstr(" 0:00 ")) << "a clock that is behind the daemon's";
}

TEST(RankTextTest, LinksAndWhatWentByThem) {
  const v1::GroupInfo before = TwoOfThree();
  v1::GroupInfo after = before;
  after.mutable_links(0)->set_bytes(5 << 20);
  EXPECT_EQ(LinksText({}, before, 0), "FROM  TO  CARRIER  MESSAGES    BYTES\n   0   1  grpc            5  3.0 MiB\n");
  EXPECT_THAT(LinksText(before, after, 2), HasSubstr("5.0 MiB     1.0 MiB\n"));
  EXPECT_THAT(LinksText(after, before, 2), HasSubstr(" 0 B\n")) << "its process is a new one";
  EXPECT_THAT(LinksText({}, after, 2), HasSubstr("5.0 MiB           -\n")) << "nobody knows since when";
  EXPECT_EQ(LinksText({}, {}, 1), "");
}

using RankCommandsTest = DaemonCommandFixture;

TEST_F(RankCommandsTest, StatusAndTopShowRanksOnlyWhereThereAreSome) {
  EXPECT_EQ(Run("status"), 0) << err_;
  EXPECT_THAT(out_, Not(HasSubstr("RANK")));
  EXPECT_EQ(Run("top --looks 1"), 0) << err_;
  EXPECT_THAT(out_, Not(HasSubstr("RANK")));
  daemon_.SetGroup(TwoOfThree());
  EXPECT_EQ(Run("status"), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("Group     2 of 3 ranks"));
  EXPECT_THAT(out_, HasSubstr("rank 2 has not joined yet"));
  EXPECT_THAT(out_, HasSubstr("FROM  TO"));
  EXPECT_EQ(Run("status -o json"), 0);
  const Json status = Json::parse(out_, nullptr, false);
  EXPECT_EQ(status["server"]["group"]["ranks"][2]["state"], "missing");
  EXPECT_EQ(Run("top --looks 1 --interval 2"), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("2 of 3 ranks"));
  EXPECT_THAT(out_, HasSubstr("2.0 KiB\n")) << "4 KiB between two looks, 2 s apart";
  EXPECT_EQ(Run("top --looks 1 -o json"), 0);
  EXPECT_EQ(Json::parse(out_, nullptr, false)["group"]["links"][0]["carrier"], "grpc");
}

}  // namespace
}  // namespace penstock::testing
