// Where rank, size and leader come from: one row for each case.

#include "server/peer/rank_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"

namespace penstock {
namespace {

using Variables = std::map<std::string, std::string>;

absl::StatusOr<RankSettings> Read(const RankFlags& flags, const Variables& variables) {
  return ReadRankSettings(flags, [&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

struct Row {
  RankFlags flags;
  Variables variables;
  std::string settings;  // "RANK of SIZE at LEADER by SOURCE"
};

TEST(RankSettings, TheFirstSourceThatGivesARankWins) {
  const Row rows[] = {
      {{}, {}, "0 of 1 at  by "},
      {{}, {{"HOSTNAME", "node-3"}}, "0 of 1 at  by "},
      {{.world_size = "1"}, {}, "0 of 1 at  by "},
      {{.rank = "1", .world_size = "2", .leader = "10.0.0.1:8475"}, {}, "1 of 2 at 10.0.0.1:8475 by --rank"},
      {{.rank = "1", .world_size = "2", .leader = "a:1"},
       {{"PENSTOCK_RANK", "0"}, {"LWS_WORKER_INDEX", "0"}, {"SLURM_PROCID", "0"}},
       "1 of 2 at a:1 by --rank"},
      {{},
       {{"PENSTOCK_RANK", "2"}, {"PENSTOCK_WORLD_SIZE", "3"}, {"PENSTOCK_LEADER", "a:1"}},
       "2 of 3 at a:1 by PENSTOCK_RANK"},
      {{.leader = "a:1"}, {{"PENSTOCK_RANK", "2"}, {"PENSTOCK_WORLD_SIZE", "3"}}, "2 of 3 at a:1 by PENSTOCK_RANK"},
      {{}, {{"PENSTOCK_RANK", ""}, {"PENSTOCK_WORLD_SIZE", ""}}, "0 of 1 at  by "},
      {{},
       {{"LWS_WORKER_INDEX", "1"}, {"LWS_GROUP_SIZE", "4"}, {"LWS_LEADER_ADDRESS", "p-0.p.default"}},
       "1 of 4 at p-0.p.default:8475 by LWS_WORKER_INDEX"},
      {{.peer_listen = "0.0.0.0:99"},
       {{"LWS_WORKER_INDEX", "1"}, {"LWS_GROUP_SIZE", "4"}, {"LWS_LEADER_ADDRESS", "p-0.p.default"}},
       "1 of 4 at p-0.p.default:99 by LWS_WORKER_INDEX"},
      {{}, {{"LWS_WORKER_INDEX", "0"}, {"LWS_GROUP_SIZE", "1"}}, "0 of 1 at  by LWS_WORKER_INDEX"},
      {{.world_size = "4", .leader = "a"}, {{"JOB_COMPLETION_INDEX", "3"}}, "3 of 4 at a:8475 by JOB_COMPLETION_INDEX"},
      {{},
       {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "m"}, {"MASTER_PORT", "23456"}},
       "1 of 2 at m:23456 by RANK"},
      {{}, {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "fd00::1"}}, "1 of 2 at [fd00::1]:8475 by RANK"},
      {{.leader = "b:2"}, {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "m"}}, "1 of 2 at b:2 by RANK"},
      {{.leader = "[::1]"},
       {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}},
       "1 of 2 at [::1]:8475 by OMPI_COMM_WORLD_RANK"},
      {{},
       {{"OMPI_COMM_WORLD_RANK", "1"},
        {"OMPI_COMM_WORLD_SIZE", "2"},
        {"SLURM_PROCID", "0"},
        {"SLURM_NTASKS", "1"},
        {"PENSTOCK_LEADER", "a:1"}},
       "1 of 2 at a:1 by OMPI_COMM_WORLD_RANK"},
      {{},
       {{"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "8"}, {"PENSTOCK_LEADER", "n1:8475"}},
       "5 of 8 at n1:8475 by SLURM_PROCID"},
      {{}, {{"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "8"}, {"MASTER_ADDR", "n1"}}, "5 of 8 at n1:8475 by SLURM_PROCID"},
      {{.world_size = "3", .leader = "p-0:1"}, {{"HOSTNAME", "p-2"}}, "2 of 3 at p-0:1 by HOSTNAME"},
      {{.world_size = "3", .leader = "p-0:1"},
       {{"HOSTNAME", "p-2"}, {"PENSTOCK_POD_INDEX", "1"}},
       "1 of 3 at p-0:1 by PENSTOCK_POD_INDEX"},
  };
  for (const Row& row : rows) {
    const auto settings = Read(row.flags, row.variables);
    ASSERT_TRUE(settings.ok()) << settings.status() << "\nwanted " << row.settings;
    EXPECT_EQ(absl::StrCat(settings->rank.value(), " of ", settings->world_size, " at ", settings->leader, " by ",
                           settings->source),
              row.settings);
  }
}

TEST(RankSettings, TheOwnAddressHasADefault) {
  EXPECT_EQ(Read({}, {})->peer_listen, "0.0.0.0:8475");
  EXPECT_EQ(Read({}, {{"PENSTOCK_PEER_LISTEN", "a:1"}})->peer_listen, "a:1");
  EXPECT_EQ(Read({.peer_listen = "b:2"}, {{"PENSTOCK_PEER_LISTEN", "a:1"}})->peer_listen, "b:2");
}

TEST(RankSettings, AnErrorNamesTheSourceAndTheValue) {
  const Row rows[] = {
      {{.rank = "x", .world_size = "2", .leader = "a:1"}, {}, "--rank: must be a whole number in [0, 65536], got x"},
      {{.rank = "0", .world_size = "0"}, {}, "--world-size: must be a whole number in [1, 65536], got 0"},
      {{},
       {{"LWS_WORKER_INDEX", "-1"}, {"LWS_GROUP_SIZE", "2"}},
       "LWS_WORKER_INDEX: must be a whole number in [0, 65536], got -1"},
      {{},
       {{"SLURM_PROCID", "8"}, {"SLURM_NTASKS", "8"}},
       "SLURM_PROCID: must be below SLURM_NTASKS, which is 8, got 8"},
      {{.rank = "1"},
       {},
       "--rank: needs a size, which nothing gives: --world-size or PENSTOCK_WORLD_SIZE is missing, got 1"},
      // A source that comes later does not help an earlier one out.
      {{.rank = "1"},
       {{"WORLD_SIZE", "2"}, {"MASTER_ADDR", "m"}},
       "--rank: needs a size, which nothing gives: --world-size or PENSTOCK_WORLD_SIZE is missing, got 1"},
      {{},
       {{"JOB_COMPLETION_INDEX", "1"}},
       "JOB_COMPLETION_INDEX: needs a size, which nothing gives: --world-size or PENSTOCK_WORLD_SIZE is missing, got "
       "1"},
      {{},
       {{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}},
       "SLURM_PROCID: needs a leader, which nothing gives: --leader or PENSTOCK_LEADER is missing, got 1"},
      {{.world_size = "2"},
       {},
       "--world-size: needs a rank, which nothing gives: --rank or PENSTOCK_RANK is missing, got 2"},
      {{.world_size = "2"},
       {{"HOSTNAME", "penstock"}},
       "--world-size: needs a rank, which nothing gives: --rank or PENSTOCK_RANK is missing, got 2"},
      {{},
       {{"PENSTOCK_LEADER", "a:1"}},
       "PENSTOCK_LEADER: needs a rank and a size, which nothing gives: --rank is missing, got a:1"},
      {{.world_size = "3", .leader = "a:1"},
       {{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}},
       "SLURM_NTASKS: must be the same as --world-size, which is 3, got 2"},
      {{.world_size = "2", .leader = "p-0:1"},
       {{"HOSTNAME", "p-2"}},
       "HOSTNAME: must be below --world-size, which is 2, got 2"},
      {{.rank = "1", .world_size = "2", .leader = "a:"},
       {},
       "--leader: must have the leader's port, in [1, 65535], got a:"},
      {{.rank = "1", .world_size = "2", .leader = "a:0"},
       {},
       "--leader: must have the leader's port, in [1, 65535], got a:0"},
      {{.rank = "1", .world_size = "2", .leader = "a", .peer_listen = "b:0"},
       {},
       "--peer-listen: must have the leader's port, in [1, 65535], got 0"},
      {{},
       {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "m"}, {"MASTER_PORT", "x"}},
       "MASTER_PORT: must have the leader's port, in [1, 65535], got x"},
  };
  for (const Row& row : rows) {
    const auto settings = Read(row.flags, row.variables);
    ASSERT_FALSE(settings.ok()) << "wanted " << row.settings;
    EXPECT_EQ(ReasonOf(settings.status()), "FIELD_INVALID");
    EXPECT_EQ(settings.status().message(), row.settings);
  }
}

TEST(RankSettings, ALeaderHasANameOrNumbers) {
  const auto leader = [](const std::string& text) {
    return Read({.rank = "1", .world_size = "2", .leader = text}, {});
  };
  for (const char* good : {"a:1", "p-0.p_1.default.svc.:1", "3com.example:1", "127.0.0.1:1", "[fd00::1]:1", "n1:1"}) {
    ASSERT_TRUE(leader(good).ok()) << leader(good).status();
    EXPECT_EQ(leader(good)->leader, good);
  }
  for (const char* bad : {":1", "http://10.0.0.1:8475", "10.0.0.300:1", "10.0.0.1.5:1", "10.0.0:1", "8475", "[::1",
                          "[a]:1", "a b:1", "a/b", "a,b:1", "fd00:::1"}) {
    EXPECT_EQ(ReasonOf(leader(bad).status()), "FIELD_INVALID") << bad;
    EXPECT_EQ(leader(bad).status().message(),
              absl::StrCat("--leader: must be HOST or HOST:PORT, with a name or numbers, got ", bad));
  }
}

}  // namespace
}  // namespace penstock
