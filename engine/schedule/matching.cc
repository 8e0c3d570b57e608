#include "engine/schedule/matching.h"

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/schedule/failure.h"
#include "engine/schedule/skips.h"

namespace penstock {
namespace {

class MessageChecker {
 public:
  MessageChecker(const Schedule& schedule, const ActionIndex& index, const std::vector<SkipEdge>& skips,
                 MessageDirections directions)
      : schedule_(schedule),
        index_(index),
        directions_(directions),
        lane_of_(LaneOfEachStage(schedule)),
        crossing_(skips, lane_of_) {}

  absl::Status CheckNeighbours() const;
  absl::Status CheckSkipEdges() const;
  absl::Status CheckForeign() const;

 private:
  absl::Status CheckBothEnds(const Action& send, const Action& receive, bool expected) const;

  const Schedule& schedule_;
  const ActionIndex& index_;
  const MessageDirections directions_;
  const std::vector<int> lane_of_;
  const CrossingSkips crossing_;
};

absl::Status MessageChecker::CheckNeighbours() const {
  for (int stage = 0; stage < schedule_.stages; ++stage) {
    const int after = stage + 1;
    const bool edge = after < schedule_.stages && lane_of_[stage] != lane_of_[after];
    for (int i = 0; i < schedule_.micro_batches; ++i) {
      PENSTOCK_RETURN_IF_ERROR(CheckBothEnds({ActionKind::kSendForward, stage, i},
                                             {ActionKind::kReceiveForward, after, i}, edge && directions_.forward));
      PENSTOCK_RETURN_IF_ERROR(CheckBothEnds({ActionKind::kSendBackward, after, i},
                                             {ActionKind::kReceiveBackward, stage, i}, edge && directions_.backward));
    }
  }
  // Nothing is before the first stage.
  for (int i = 0; i < schedule_.micro_batches; ++i) {
    for (const Action& action : {Action{ActionKind::kReceiveForward, 0, i}, Action{ActionKind::kSendBackward, 0, i}}) {
      if (const std::optional<Place> place = index_.Find(action)) {
        return ScheduleFailure(schedule_, "matching", *place, action, "there is no stage before stage 0");
      }
    }
  }
  return absl::OkStatus();
}

absl::Status MessageChecker::CheckSkipEdges() const {
  for (const auto& [from, to] : crossing_.edges()) {
    for (int i = 0; i < schedule_.micro_batches; ++i) {
      PENSTOCK_RETURN_IF_ERROR(CheckBothEnds({ActionKind::kSendForward, from, i, to},
                                             {ActionKind::kReceiveForward, to, i, from}, directions_.forward));
      PENSTOCK_RETURN_IF_ERROR(CheckBothEnds({ActionKind::kSendBackward, to, i, from},
                                             {ActionKind::kReceiveBackward, from, i, to}, directions_.backward));
    }
  }
  return absl::OkStatus();
}

absl::Status MessageChecker::CheckForeign() const {
  for (size_t lane = 0; lane < schedule_.lanes.size(); ++lane) {
    for (size_t position = 0; position < schedule_.lanes[lane].size(); ++position) {
      const Action& action = schedule_.lanes[lane][position];
      if (action.peer < 0) continue;
      const SkipEdge edge = EdgeOf(action);
      if (std::binary_search(crossing_.edges().begin(), crossing_.edges().end(), edge)) continue;
      const std::string reason = lane_of_[edge.from] == lane_of_[edge.to]
                                     ? absl::StrCat("stage ", action.peer, " is on the same lane")
                                     : absl::StrCat("no skip leads from stage ", edge.from, " to stage ", edge.to);
      return ScheduleFailure(schedule_, "matching", {static_cast<int>(lane), static_cast<int>(position)}, action,
                             absl::StrCat(ToString(action), " has no edge: ", reason));
    }
  }
  return absl::OkStatus();
}

// One message: both ends or neither, as the edge asks for it. One end may lie beyond the last stage.
absl::Status MessageChecker::CheckBothEnds(const Action& send, const Action& receive, bool expected) const {
  const auto find = [&](const Action& action) {
    return action.stage < schedule_.stages ? index_.Find(action) : std::nullopt;
  };
  const std::optional<Place> send_at = find(send);
  const std::optional<Place> receive_at = find(receive);
  for (const auto& [action, place, partner, partner_at] :
       {std::tuple(send, send_at, receive, receive_at), std::tuple(receive, receive_at, send, send_at)}) {
    if (expected && !place) {
      // It should stand on the list of its stage's lane: shown just past the end.
      const int lane = lane_of_[action.stage];
      const Place end{lane, static_cast<int>(schedule_.lanes[lane].size())};
      return ScheduleFailure(
          schedule_, "matching", end, action,
          absl::StrCat(ToString(action), " is missing: ", ToString(partner),
                       partner_at ? " has no partner" : " is missing too"),
          {.culprits = {end}, .others = partner_at ? std::vector<Place>{*partner_at} : std::vector<Place>{}});
    }
    if (!expected && place) {
      const bool exists = partner.stage < schedule_.stages;
      return ScheduleFailure(schedule_, "matching", *place, action,
                             absl::StrCat(ToString(action), " has no edge: stage ", partner.stage,
                                          exists ? " is on the same lane" : " does not exist"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckMessages(const Schedule& schedule, const ActionIndex& index, const std::vector<SkipEdge>& skips,
                           MessageDirections directions) {
  const MessageChecker checker(schedule, index, skips, directions);
  PENSTOCK_RETURN_IF_ERROR(checker.CheckNeighbours());
  PENSTOCK_RETURN_IF_ERROR(checker.CheckSkipEdges());
  return checker.CheckForeign();
}

}  // namespace penstock
