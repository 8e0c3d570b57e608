#pragma once

// A group of ranks at one instant, as its leader knows it: what operators see.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/base/ids.h"
#include "engine/observe/group_figures.h"
#include "server/peer/group.h"
#include "server/peer/peer_clock.h"

namespace penstock {

struct RankView {
  RankDescription description = {};  // as it joined last; only the number of one that never has
  bool member = false;
  absl::Time since = {};                      // when it became a member, or was lost
  absl::Status problem = absl::OkStatus();    // why it is none
  std::optional<ClockOffset> clock = {};      // against the leader's; of members that have answered
  std::map<Rank, LinkFigures> received = {};  // from others, in the life of its process; as it said last
};

struct GroupView {
  bool complete = false;
  bool draining = false;  // the leader is: the others lend their devices until it ends
  Epoch epoch;
  uint32_t generation = 0;         // of the present forming, or the last one
  int64_t reformings = 0;          // how often it was complete again
  std::map<Rank, RankView> ranks;  // of the whole world
};

}  // namespace penstock
