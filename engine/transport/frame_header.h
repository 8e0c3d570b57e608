#pragma once

// The first part of every frame between ranks: whom it is from and for, and of which group.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/ids.h"

namespace penstock {

// A group of ranks as it was formed: another forming is another group. `key` is random; it was told over the control
// stream, so that a stranger on the port is told from a rank.
struct GroupIdentity {
  std::array<char, 16> key = {};
  Epoch epoch;              // of the leader's life
  uint32_t generation = 0;  // of the forming, within the epoch

  bool operator==(const GroupIdentity&) const = default;
};

// A pipeline as it was built: building it again is another channel.
struct ChannelName {
  std::string pipeline;
  Epoch epoch;

  auto operator<=>(const ChannelName&) const = default;
};

// Messages of one channel that are taken in the order in which they are sent, and share a credit that nothing else uses:
// those of a run for one receiver from one sender, of one kind.
struct StreamName {
  int64_t run = 0;
  int64_t number = 0;  // within the run

  auto operator<=>(const StreamName&) const = default;
};

enum class FrameKind : uint8_t {
  kMessage = 1,
  kTaken = 2,    // the receiver has no use any more for so many messages and bytes
  kRefused = 3,  // a message was not what it said; `content` has the error
  kGoodbye = 4,  // the sender closes its edges in order
  kProbe = 5,    // of no channel: its payload is read and dropped, and
  kEcho = 6,     // this goes back, with the probe's stream
};

struct FrameHeader {
  GroupIdentity group;
  Rank from;
  Rank to;
  FrameKind kind = FrameKind::kMessage;
  ChannelName channel;
  StreamName stream;          // of a message; of those that were taken
  int64_t payload_bytes = 0;  // of a message; of those that were taken
  int64_t messages = 0;       // taken
  std::string_view content;   // the rest: of a message, what tensor_message.h reads
};

std::string EncodeFrameHeader(const FrameHeader& header);

// Fails:     INVALID_ARGUMENT / RANK_MESSAGE naming the field. `content` points into the bytes.
absl::StatusOr<FrameHeader> DecodeFrameHeader(std::string_view bytes);

// An error as a refusal carries it: code, reason, message and named values.
std::string EncodeError(const absl::Status& status);
// The error in it, never OK; where the bytes make no sense, one that says so.
absl::Status DecodeError(std::string_view bytes);

}  // namespace penstock
