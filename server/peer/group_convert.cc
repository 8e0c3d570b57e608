#include "server/peer/group_convert.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/transport/packed_bytes.h"

namespace penstock {
namespace {

std::string ToBytes(const std::array<char, 16>& from) { return std::string(from.data(), from.size()); }

absl::StatusOr<std::array<char, 16>> FromBytes(const std::string& bytes, const char* field) {
  std::array<char, 16> to;
  if (bytes.size() != to.size()) {
    return BadRankMessage(field, "must have 16 bytes", absl::StrCat(bytes.size(), " bytes"));
  }
  std::copy(bytes.begin(), bytes.end(), to.begin());
  return to;
}

}  // namespace

peer::v1::Hello ToProto(const RankDescription& rank) {
  peer::v1::Hello hello;
  hello.set_protocol(rank.protocol);
  hello.set_build(rank.build);
  hello.set_rank(rank.rank.value());
  hello.set_world_size(rank.world_size);
  hello.set_instance(ToBytes(rank.instance));
  hello.set_followed_epoch(rank.followed.value());
  hello.set_instructions(rank.instructions);
  for (const RankDevice& device : rank.devices) {
    peer::v1::RankDevice* to = hello.add_devices();
    to->set_name(device.name);
    to->set_memory_bytes(device.memory_bytes);
  }
  return hello;
}

peer::v1::GroupIdentity ToProto(const GroupIdentity& group) {
  peer::v1::GroupIdentity to;
  to.set_key(ToBytes(group.key));
  to.set_epoch(group.epoch.value());
  to.set_generation(group.generation);
  return to;
}

peer::v1::Form ToProto(const Group& group) {
  peer::v1::Form form;
  *form.mutable_group() = ToProto(group.identity);
  for (const auto& [rank, address] : group.carrier_addresses) {
    (*form.mutable_carrier_addresses())[rank.value()] = address;
  }
  return form;
}

absl::StatusOr<RankDescription> FromProto(const peer::v1::Hello& hello) {
  RankDescription rank;
  rank.protocol = hello.protocol();
  if (rank.protocol != kPeerProtocol) return rank;  // nobody knows what the other fields mean
  rank.build = hello.build();
  rank.rank = Rank(hello.rank());
  rank.world_size = hello.world_size();
  PENSTOCK_ASSIGN_OR_RETURN(rank.instance, FromBytes(hello.instance(), "hello.instance"));
  rank.followed = Epoch(hello.followed_epoch());
  rank.instructions = hello.instructions();
  for (const peer::v1::RankDevice& device : hello.devices()) {
    rank.devices.push_back({.name = device.name(), .memory_bytes = device.memory_bytes()});
  }
  return rank;
}

absl::StatusOr<GroupIdentity> FromProto(const peer::v1::GroupIdentity& group) {
  GroupIdentity to;
  PENSTOCK_ASSIGN_OR_RETURN(to.key, FromBytes(group.key(), "group.key"));
  to.epoch = Epoch(group.epoch());
  to.generation = group.generation();
  return to;
}

absl::StatusOr<Group> FromProto(const peer::v1::Form& form) {
  Group group;
  PENSTOCK_ASSIGN_OR_RETURN(group.identity, FromProto(form.group()));
  for (const auto& [rank, address] : form.carrier_addresses()) group.carrier_addresses[Rank(rank)] = address;
  return group;
}

}  // namespace penstock
