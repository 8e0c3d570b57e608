#include "server/rpc/convert/field_values.h"

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/resource_id.h"
#include "engine/base/status_macros.h"
#include "engine/wire/tensor_header.h"

namespace penstock {
namespace {

constexpr std::string_view kPipelines = "pipelines/";
constexpr std::string_view kCheckpoints = "/checkpoints/";

}  // namespace

absl::Status InvalidName(std::string_view field, std::string_view problem, std::string_view value) {
  const std::string shown = Shortened(value);
  return Error(absl::StatusCode::kInvalidArgument, "NAME_INVALID",
               absl::StrCat(absl::string_view(field.data(), field.size()), ": ",
                            absl::string_view(problem.data(), problem.size()), ", got ", shown))
      .With("field", field)
      .With("value", shown);
}

absl::Duration AsDuration(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

absl::StatusOr<absl::Duration> CheckedDuration(const google::protobuf::Duration& duration, absl::Duration most,
                                               std::string_view field) {
  const bool normal = duration.nanos() >= 0 && duration.nanos() < 1'000'000'000 && duration.seconds() >= 0 &&
                      duration.seconds() <= 315'576'000'000;
  const absl::Duration value =
      absl::Seconds(normal ? duration.seconds() : 0) + absl::Nanoseconds(normal ? duration.nanos() : 0);
  if (!normal || value > most) {
    return InvalidField(field, "must be between 0 and " + absl::FormatDuration(most),
                        absl::StrCat(duration.seconds(), " s and ", duration.nanos(), " ns"));
  }
  return value;
}

absl::Status CheckIdentifier(std::string_view identifier, std::string_view field) {
  if (IsResourceId(identifier)) return absl::OkStatus();
  return InvalidName(field, "must be [a-z]([a-z0-9_-]{0,61}[a-z0-9])?", identifier);
}

absl::StatusOr<std::string> ParsePipelineName(std::string_view name, std::string_view field) {
  if (name.substr(0, kPipelines.size()) != kPipelines) {
    return InvalidName(field, "must be pipelines/{pipeline}", name);
  }
  const std::string_view identifier = name.substr(kPipelines.size());
  PENSTOCK_RETURN_IF_ERROR(CheckIdentifier(identifier, field));
  return std::string(identifier);
}

absl::StatusOr<CheckpointName> ParseCheckpointName(std::string_view name, std::string_view field) {
  const size_t middle = name.find(kCheckpoints);
  if (middle == std::string_view::npos) {
    return InvalidName(field, "must be pipelines/{pipeline}/checkpoints/{checkpoint}", name);
  }
  CheckpointName parsed;
  PENSTOCK_ASSIGN_OR_RETURN(parsed.pipeline, ParsePipelineName(name.substr(0, middle), field));
  parsed.checkpoint = std::string(name.substr(middle + kCheckpoints.size()));
  PENSTOCK_RETURN_IF_ERROR(CheckIdentifier(parsed.checkpoint, field));
  return parsed;
}

}  // namespace penstock
