#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string_view>

#include "engine/base/ids.h"

namespace penstock {

enum class CarrierKind { kUcx, kGrpc };
inline constexpr std::array<std::string_view, 2> kCarrierNames = {"ucx", "grpc"};

// Why a message between ranks was dropped: no header of ours; the key of another group; another forming of this group;
// of a run that has ended.
enum class PeerDrop { kMalformed, kStranger, kStale, kUnwanted };
inline constexpr std::array<std::string_view, 4> kPeerDropNames = {"malformed", "stranger", "stale", "unwanted"};

// Messages with tensors that have come from one rank to another, and their bytes.
struct LinkFigures {
  int64_t messages = 0;
  int64_t bytes = 0;
};

// What has come to this rank from others, by all carriers that it had.
struct PeerFigures {
  std::map<Rank, LinkFigures> from;  // of all that were its peers
  std::array<int64_t, kPeerDropNames.size()> dropped{};
};

// The group of ranks at one instant, as one of them sees it. A process that is alone is a group of one.
struct GroupFigures {
  int expected = 1;  // ranks of the world
  int present = 1;   // that take part
  uint32_t epoch = 0;
  uint32_t generation = 0;  // of the forming, within the epoch
  int64_t reformings = 0;   // how often it was complete again
  int64_t refused = 0;      // processes that wanted to join, and were not let in
  std::array<PeerFigures, kCarrierNames.size()> received{};
};

}  // namespace penstock
