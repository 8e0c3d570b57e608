#include "engine/schedule/dependencies.h"

#include <algorithm>

namespace penstock {
namespace {

// Roles that a stage plays once per micro-batch, in the order of ActionKind up to I; what follows moves up by one.
constexpr int kRoles = 8;

int Role(ActionKind kind) {
  const int number = static_cast<int>(kind);
  return number < static_cast<int>(ActionKind::kInputGradient) ? number : number - 1;
}

}  // namespace

ActionIndex::ActionIndex(const Schedule& schedule)
    : stages_(schedule.stages),
      microbatches_(schedule.microbatches),
      places_(int64_t{stages_} * (int64_t{microbatches_} * kRoles + 1), Place{.rank = -1}) {
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    for (size_t position = 0; position < schedule.ranks[rank].size(); ++position) {
      places_[Slot(schedule.ranks[rank][position])] = {static_cast<int>(rank), static_cast<int>(position)};
    }
  }
}

std::optional<Place> ActionIndex::Find(const Action& action) const {
  const Place place = places_[Slot(action)];
  if (place.rank < 0) return std::nullopt;
  return place;
}

int64_t ActionIndex::Slot(const Action& action) const {
  if (action.kind == ActionKind::kOptimizer) return int64_t{stages_} * microbatches_ * kRoles + action.stage;
  return (int64_t{action.stage} * microbatches_ + action.microbatch) * kRoles + Role(action.kind);
}

Dependencies::Dependencies(const Schedule& schedule, bool with_communication, int credits)
    : stages_(schedule.stages),
      with_communication_(with_communication),
      rank_of_(RankOfEachStage(schedule)),
      index_(schedule) {
  for (const auto& list : schedule.ranks) {
    has_forwards_ = has_forwards_ || std::any_of(list.begin(), list.end(), [](const Action& action) {
                      return action.kind == ActionKind::kForward;
                    });
  }
  if (credits > 0) AddCredits(schedule, credits);
}

void Dependencies::AddCredits(const Schedule& schedule, int credits) {
  // Per edge (sending stage, direction): its sends and its receives, each in list order.
  struct Edge {
    std::vector<Action> sends, receives;
  };
  std::vector<Edge> forward(stages_), backward(stages_);
  for (const auto& list : schedule.ranks) {
    for (const Action& action : list) {
      if (action.kind == ActionKind::kSendForward) forward[action.stage].sends.push_back(action);
      if (action.kind == ActionKind::kSendBackward) backward[action.stage].sends.push_back(action);
      if (action.kind == ActionKind::kReceiveForward && action.stage > 0) {
        forward[action.stage - 1].receives.push_back(action);
      }
      if (action.kind == ActionKind::kReceiveBackward && action.stage + 1 < stages_) {
        backward[action.stage + 1].receives.push_back(action);
      }
    }
  }
  for (const auto* edges : {&forward, &backward}) {
    for (const Edge& edge : *edges) {
      for (size_t k = credits; k < edge.sends.size() && k - credits < edge.receives.size(); ++k) {
        credit_of_[edge.sends[k]] = edge.receives[k - credits];
      }
    }
  }
}

void Dependencies::Of(const Action& action, std::vector<Action>* needed) const {
  const auto [kind, stage, microbatch, peer] = action;
  needed->clear();
  const auto need = [&, microbatch = microbatch](ActionKind needed_kind, int of_stage) {
    needed->push_back({needed_kind, of_stage, microbatch});
  };
  const auto crosses = [&](int a, int b) { return with_communication_ && rank_of_[a] != rank_of_[b]; };
  switch (kind) {
    case ActionKind::kForward:
      if (stage > 0 && crosses(stage, stage - 1)) need(ActionKind::kReceiveForward, stage);
      if (stage > 0 && !crosses(stage, stage - 1)) need(ActionKind::kForward, stage - 1);
      break;
    case ActionKind::kBackward:
    case ActionKind::kInputGradient:
      if (has_forwards_) need(ActionKind::kForward, stage);
      if (stage + 1 < stages_ && crosses(stage, stage + 1)) need(ActionKind::kReceiveBackward, stage);
      if (stage + 1 < stages_ && !crosses(stage, stage + 1)) need(ActionKind::kBackward, stage + 1);
      break;
    case ActionKind::kWeightGradient:
      need(ActionKind::kInputGradient, stage);
      break;
    case ActionKind::kRecompute:
      if (has_forwards_) need(ActionKind::kForward, stage);
      break;
    case ActionKind::kSendForward:
      need(ActionKind::kForward, stage);
      break;
    case ActionKind::kSendBackward:
      need(ActionKind::kBackward, stage);
      break;
    case ActionKind::kReceiveForward:
      if (stage > 0) need(ActionKind::kSendForward, stage - 1);
      break;
    case ActionKind::kReceiveBackward:
      if (stage + 1 < stages_) need(ActionKind::kSendBackward, stage + 1);
      break;
    case ActionKind::kOptimizer:
      break;
  }
  if (const auto credit = credit_of_.find(action); credit != credit_of_.end()) {
    needed->push_back(credit->second);
  }
}

ListWalk WalkLists(const Schedule& schedule, const Dependencies& dependencies) {
  ListWalk walk;
  walk.next.resize(schedule.ranks.size(), 0);
  std::vector<Action> needed;
  const auto done = [&](const Action& action) {
    const std::optional<Place> place = dependencies.Find(action);
    return place.has_value() && place->position < walk.next[place->rank];
  };
  bool progress = true;
  while (progress) {
    progress = false;
    for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
      const auto& list = schedule.ranks[rank];
      int& next = walk.next[rank];
      for (; next < static_cast<int>(list.size()); ++next) {
        dependencies.Of(list[next], &needed);
        if (!std::all_of(needed.begin(), needed.end(), done)) break;
        walk.order.push_back({static_cast<int>(rank), next});
        progress = true;
      }
    }
  }
  walk.finished = true;
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    walk.finished = walk.finished && walk.next[rank] == static_cast<int>(schedule.ranks[rank].size());
  }
  return walk;
}

bool HasCommunication(const Schedule& schedule) {
  for (const auto& list : schedule.ranks) {
    for (const Action& action : list) {
      if (IsCommunication(action.kind)) return true;
    }
  }
  return false;
}

}  // namespace penstock
