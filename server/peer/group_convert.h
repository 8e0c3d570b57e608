#pragma once

// The messages of the control stream as values of ours, and back.

#include "absl/status/statusor.h"
#include "penstock/peer/v1/group.pb.h"
#include "server/peer/group.h"

namespace penstock {

peer::v1::Hello ToProto(const RankDescription& rank);
peer::v1::GroupIdentity ToProto(const GroupIdentity& group);
peer::v1::Form ToProto(const Group& group);

// Fails:     INVALID_ARGUMENT / RANK_MESSAGE naming the field and the value.
absl::StatusOr<RankDescription> FromProto(const peer::v1::Hello& hello);
absl::StatusOr<GroupIdentity> FromProto(const peer::v1::GroupIdentity& group);
absl::StatusOr<Group> FromProto(const peer::v1::Form& form);

}  // namespace penstock
