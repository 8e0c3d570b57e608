#include "engine/base/rank_message.h"

#include <string>

#include "engine/base/error.h"

namespace penstock {

absl::Status BadRankMessage(std::string_view field, std::string_view problem, std::string_view value) {
  const std::string text = std::string(field) + ": " + std::string(problem) + ", got " + std::string(value);
  return Error(absl::StatusCode::kInvalidArgument, "RANK_MESSAGE", text).With("field", field).With("value", value);
}

}  // namespace penstock
