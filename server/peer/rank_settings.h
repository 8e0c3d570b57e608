#pragma once

// Which rank this process is, of how many, and who leads: from flags, or from what started it.

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/base/ids.h"

namespace penstock {

struct RankSettings {
  Rank rank;
  int world_size = 1;
  std::string leader;       // HOST:PORT; empty where the process is alone
  std::string peer_listen;  // HOST:PORT
  std::string source;       // what gave the rank: "--rank", "SLURM_PROCID"; empty: nothing did, the process is alone
};

// What the command line gives.
struct RankFlags {
  std::optional<std::string> rank = {};
  std::optional<std::string> world_size = {};
  std::optional<std::string> leader = {};
  std::optional<std::string> peer_listen = {};
};

// An environment variable; one that is empty counts as not set.
using VariableLookup = std::function<std::optional<std::string>(const std::string& name)>;

// Asks the sources in their order; the first that gives a rank wins. Size and leader are the first that it or a source
// before it gives. A leader without a port has the one of `peer_listen`.
//
//   flags             --rank                  --world-size            --leader
//   Penstock          PENSTOCK_RANK           PENSTOCK_WORLD_SIZE     PENSTOCK_LEADER
//   LeaderWorkerSet   LWS_WORKER_INDEX        LWS_GROUP_SIZE          LWS_LEADER_ADDRESS
//   indexed Job       JOB_COMPLETION_INDEX
//   PyTorchJob        RANK                    WORLD_SIZE              MASTER_ADDR, MASTER_PORT
//   Open MPI          OMPI_COMM_WORLD_RANK    OMPI_COMM_WORLD_SIZE
//   Slurm             SLURM_PROCID            SLURM_NTASKS
//   StatefulSet       PENSTOCK_POD_INDEX, else the number at the end of HOSTNAME; only where a size is given
//
// Where nothing is given the process is alone: rank 0 of 1.
//
// Fails:     INVALID_ARGUMENT / FIELD_INVALID naming the source and the value: no number, a rank beyond the size, two
//            sources with different sizes, a size or a leader without a rank, a rank without a size or a leader.
absl::StatusOr<RankSettings> ReadRankSettings(const RankFlags& flags, const VariableLookup& variable);

}  // namespace penstock
