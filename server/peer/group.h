#pragma once

// A group of ranks: who they are, and how their carriers find each other.

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/base/ids.h"
#include "engine/observe/group_figures.h"
#include "engine/transport/frame_header.h"

namespace penstock {

// Of the messages between ranks; raised when their meaning changes.
inline constexpr uint32_t kPeerProtocol = 2;

// What a rank lends to the group.
struct RankDevice {
  std::string name;
  int64_t memory_bytes = 0;  // 0: not limited
};

// A process that wants to be a rank, as it says of itself.
struct RankDescription {
  uint32_t protocol = kPeerProtocol;
  std::string build;
  Rank rank;
  int world_size = 1;
  std::array<char, 16> instance = {};  // random, the same for the life of the process
  Epoch followed;                      // the highest of a leader; 0: it has followed none
  std::string instructions;            // of the processor, that results depend on
  std::string carrier;                 // of tensors: ucx, grpc
  std::vector<RankDevice> devices;
  std::string host;     // what the system calls the host
  std::string address;  // of the host, as the leader sees it
};

// Where a generation ends and no rank is lost.
inline constexpr Rank kNobody(-1);

// One forming of a group. The addresses are those of carriers that were opened for it.
struct Group {
  GroupIdentity identity;
  std::map<Rank, std::string> carrier_addresses;  // of all ranks
};

// What a member answers to a ping.
struct RankPong {
  int64_t leader_nanos = 0;              // of the ping, as it said
  int64_t rank_nanos = 0;                // when it came, by the member's clock
  std::map<Rank, LinkFigures> received;  // from others, in the life of its process
};

// 16 bytes that nobody can guess.
std::array<char, 16> RandomKey();

}  // namespace penstock
