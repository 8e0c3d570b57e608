#pragma once

#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "engine/base/ids.h"

namespace penstock {

// What another rank has sent can't be so: INVALID_ARGUMENT / RANK_MESSAGE with `field` and `value`; `problem` reads
// "must be 0 or 1".
absl::Status BadRankMessage(std::string_view field, std::string_view problem, std::string_view value);

// The rank that an error is about, by its value `rank`: the one that is lost, the peer of an edge that has failed.
std::optional<Rank> RankNamedIn(const absl::Status& why);

// An error that a rank has told or made, for whoever waits for the work: about itself where it names no other. A message
// that can't be so is not the caller's fault: ABORTED / RANK_MESSAGE.
absl::Status ToldBy(Rank rank, const absl::Status& why);

}  // namespace penstock
