#pragma once

// The messages of the control stream as values of ours, and back.

#include "absl/status/statusor.h"
#include "penstock/peer/v1/group.pb.h"
#include "server/peer/group.h"
#include "server/peer/message_part.h"

namespace penstock {

peer::v1::Hello ToProto(const RankDescription& rank);
peer::v1::GroupIdentity ToProto(const GroupIdentity& group);
peer::v1::Form ToProto(const Group& group);
peer::v1::Pong ToProto(const RankPong& pong);

// Fails:     INVALID_ARGUMENT / RANK_MESSAGE naming the field and the value.
absl::StatusOr<RankDescription> FromProto(const peer::v1::Hello& hello);
absl::StatusOr<GroupIdentity> FromProto(const peer::v1::GroupIdentity& group);
absl::StatusOr<Group> FromProto(const peer::v1::Form& form);
// As it says; Membership::Ponged() judges it.
RankPong FromProto(const peer::v1::Pong& pong);

peer::v1::Part ToProto(MessagePart part);
MessagePart FromProto(const peer::v1::Part& part);

}  // namespace penstock
