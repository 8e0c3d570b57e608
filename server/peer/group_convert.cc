#include "server/peer/group_convert.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/rank_message.h"
#include "engine/base/status_macros.h"

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

constexpr size_t kMaximumNameBytes = 255;  // of a host, as DNS has it

// A name that people will read.
absl::Status CheckName(const std::string& name, const char* field) {
  const bool printable = std::all_of(name.begin(), name.end(), [](unsigned char c) { return absl::ascii_isprint(c); });
  if (printable && name.size() <= kMaximumNameBytes) return absl::OkStatus();
  return BadRankMessage(field, absl::StrCat("must be printable, and at most ", kMaximumNameBytes, " bytes"),
                        absl::StrCat(name.size(), " bytes"));
}

// As a rank's own flags allow it: "cuda:0".
absl::Status CheckDevice(const peer::v1::RankDevice& device) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(device.name(), absl::MaxSplits(':', 1));
  const bool word = !parts.first.empty() && std::all_of(parts.first.begin(), parts.first.end(), absl::ascii_islower);
  const bool number = !parts.second.empty() && parts.second.size() <= 6 &&
                      (parts.second == "0" || parts.second[0] != '0') &&
                      std::all_of(parts.second.begin(), parts.second.end(), absl::ascii_isdigit);
  if (!word || !number || device.name().size() > kMaximumNameBytes) {
    return BadRankMessage("hello.devices.name", "must be a kind and a number, as cuda:0",
                          absl::CHexEscape(device.name().substr(0, kMaximumNameBytes)));
  }
  if (device.memory_bytes() >= 0) return absl::OkStatus();
  return BadRankMessage("hello.devices.memory_bytes", "must not be negative", absl::StrCat(device.memory_bytes()));
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
  hello.set_carrier(rank.carrier);
  for (const RankDevice& device : rank.devices) {
    peer::v1::RankDevice* to = hello.add_devices();
    to->set_name(device.name);
    to->set_memory_bytes(device.memory_bytes);
  }
  hello.set_host(rank.host);
  return hello;
}

peer::v1::Pong ToProto(const RankPong& pong) {
  peer::v1::Pong to;
  to.set_leader_nanos(pong.leader_nanos);
  to.set_rank_nanos(pong.rank_nanos);
  for (const auto& [from, traffic] : pong.received) {
    peer::v1::Pong::Received* one = to.add_received();
    one->set_from(from.value());
    one->set_messages(traffic.messages);
    one->set_bytes(traffic.bytes);
  }
  return to;
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
  rank.rank = Rank(-1);
  if (rank.protocol != kPeerProtocol) return rank;  // nobody knows what the other fields mean
  rank.build = hello.build();
  rank.rank = Rank(hello.rank());
  rank.world_size = hello.world_size();
  PENSTOCK_ASSIGN_OR_RETURN(rank.instance, FromBytes(hello.instance(), "hello.instance"));
  rank.followed = Epoch(hello.followed_epoch());
  rank.instructions = hello.instructions();
  rank.carrier = hello.carrier();
  std::set<std::string> names;
  for (const peer::v1::RankDevice& device : hello.devices()) {
    PENSTOCK_RETURN_IF_ERROR(CheckDevice(device));
    if (!names.insert(device.name()).second) {
      return BadRankMessage("hello.devices.name", "must stand once", device.name());
    }
    rank.devices.push_back({.name = device.name(), .memory_bytes = device.memory_bytes()});
  }
  PENSTOCK_RETURN_IF_ERROR(CheckName(hello.build(), "hello.build"));
  PENSTOCK_RETURN_IF_ERROR(CheckName(hello.instructions(), "hello.instructions"));
  PENSTOCK_RETURN_IF_ERROR(CheckName(hello.host(), "hello.host"));
  PENSTOCK_RETURN_IF_ERROR(CheckName(hello.carrier(), "hello.carrier"));
  rank.host = hello.host();
  return rank;
}

RankPong FromProto(const peer::v1::Pong& pong) {
  RankPong to{.leader_nanos = pong.leader_nanos(), .rank_nanos = pong.rank_nanos(), .received = {}};
  for (const peer::v1::Pong::Received& one : pong.received()) {
    to.received[Rank(one.from())] = {.messages = one.messages(), .bytes = one.bytes()};
  }
  return to;
}

absl::StatusOr<GroupIdentity> FromProto(const peer::v1::GroupIdentity& group) {
  GroupIdentity to;
  PENSTOCK_ASSIGN_OR_RETURN(to.key, FromBytes(group.key(), "group.key"));
  to.epoch = Epoch(group.epoch());
  to.generation = group.generation();
  return to;
}

peer::v1::Part ToProto(MessagePart part) {
  peer::v1::Part to;
  to.set_head_bytes(static_cast<uint64_t>(part.head_bytes));
  to.set_data(std::move(part.data));
  to.set_last(part.last);
  return to;
}

MessagePart FromProto(const peer::v1::Part& part) {
  return {.head_bytes = static_cast<int64_t>(part.head_bytes()), .data = part.data(), .last = part.last()};
}

absl::StatusOr<Group> FromProto(const peer::v1::Form& form) {
  Group group;
  PENSTOCK_ASSIGN_OR_RETURN(group.identity, FromProto(form.group()));
  for (const auto& [rank, address] : form.carrier_addresses()) group.carrier_addresses[Rank(rank)] = address;
  return group;
}

}  // namespace penstock
