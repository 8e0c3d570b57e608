#pragma once

// Fields that many messages have: resource names and durations.

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "google/protobuf/duration.pb.h"

namespace penstock {

// INVALID_ARGUMENT / NAME_INVALID "FIELD: PROBLEM, got VALUE".
absl::Status InvalidName(std::string_view field, std::string_view problem, std::string_view value);

// A duration field as it is, in or out of any range; a missing field is 0.
absl::Duration AsDuration(const google::protobuf::Duration& duration);

// A duration field within [0, most]; a missing field is 0.
//
// Fails:     INVALID_ARGUMENT / FIELD_INVALID naming the field: negative, too long, not normalized.
absl::StatusOr<absl::Duration> CheckedDuration(const google::protobuf::Duration& duration, absl::Duration most,
                                               std::string_view field);

// Resource names. A pipeline's identifier is [a-z]([a-z0-9_-]{0,61}[a-z0-9])?, and so is a checkpoint's.
//
// Fails:     INVALID_ARGUMENT / NAME_INVALID naming the field and the value.
absl::Status CheckIdentifier(std::string_view identifier, std::string_view field);
// "pipelines/{pipeline}" to the identifier.
absl::StatusOr<std::string> ParsePipelineName(std::string_view name, std::string_view field);
struct CheckpointName {
  std::string pipeline;
  std::string checkpoint;
};
// "pipelines/{pipeline}/checkpoints/{checkpoint}" to its parts.
absl::StatusOr<CheckpointName> ParseCheckpointName(std::string_view name, std::string_view field);

}  // namespace penstock
