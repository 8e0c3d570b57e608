#include "engine/base/rank_message.h"

#include <string>

#include "absl/strings/numbers.h"
#include "engine/base/error.h"

namespace penstock {

absl::Status BadRankMessage(std::string_view field, std::string_view problem, std::string_view value) {
  const std::string text = std::string(field) + ": " + std::string(problem) + ", got " + std::string(value);
  return Error(absl::StatusCode::kInvalidArgument, "RANK_MESSAGE", text).With("field", field).With("value", value);
}

std::optional<Rank> RankNamedIn(const absl::Status& why) {
  int rank = 0;
  return absl::SimpleAtoi(ValuesOf(why)["rank"], &rank) ? std::optional(Rank(rank)) : std::nullopt;
}

absl::Status ToldBy(Rank rank, const absl::Status& why) {
  absl::Status told = why;
  if (ReasonOf(why) == "RANK_MESSAGE") {
    told = Error(absl::StatusCode::kAborted, "RANK_MESSAGE", std::string(why.message()));
    why.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) { told.SetPayload(url, payload); });
  }
  return RankNamedIn(why).has_value() ? told : WithValue(told, "rank", ToString(rank));
}

}  // namespace penstock
