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

// The send that a receive matches; its stage may not exist.
Action SendOf(const Action& receive) {
  const bool forward = receive.kind == ActionKind::kReceiveForward;
  const ActionKind kind = forward ? ActionKind::kSendForward : ActionKind::kSendBackward;
  if (receive.peer >= 0) return {kind, receive.peer, receive.micro_batch, receive.stage};
  return {kind, receive.stage + (forward ? -1 : 1), receive.micro_batch};
}

}  // namespace

ActionIndex::ActionIndex(const Schedule& schedule)
    : stages_(schedule.stages),
      micro_batches_(schedule.micro_batches),
      places_(int64_t{stages_} * (int64_t{micro_batches_} * kRoles + 1), Place{.lane = -1}) {
  for (size_t lane = 0; lane < schedule.lanes.size(); ++lane) {
    for (size_t position = 0; position < schedule.lanes[lane].size(); ++position) {
      const Action& action = schedule.lanes[lane][position];
      Place& place = action.peer < 0 ? places_[Slot(action)] : peer_places_[action];
      place = {static_cast<int>(lane), static_cast<int>(position)};
    }
  }
}

std::optional<Place> ActionIndex::Find(const Action& action) const {
  if (action.peer >= 0) {
    const auto found = peer_places_.find(action);
    return found == peer_places_.end() ? std::nullopt : std::optional<Place>(found->second);
  }
  const Place place = places_[Slot(action)];
  if (place.lane < 0) return std::nullopt;
  return place;
}

int64_t ActionIndex::Slot(const Action& action) const {
  if (action.kind == ActionKind::kOptimizer) return int64_t{stages_} * micro_batches_ * kRoles + action.stage;
  return (int64_t{action.stage} * micro_batches_ + action.micro_batch) * kRoles + Role(action.kind);
}

Dependencies::Dependencies(const Schedule& schedule, bool with_communication, int credits)
    : stages_(schedule.stages),
      with_communication_(with_communication),
      lane_of_(LaneOfEachStage(schedule)),
      index_(schedule),
      skips_(SkipsInLists(schedule), lane_of_) {
  for (const auto& list : schedule.lanes) {
    has_forwards_ = has_forwards_ || std::any_of(list.begin(), list.end(), [](const Action& action) {
                      return action.kind == ActionKind::kForward;
                    });
  }
  if (credits > 0) AddCredits(schedule, credits);
}

void Dependencies::AddCredits(const Schedule& schedule, int credits) {
  // Per edge, named by its send of micro-batch 0: its sends and its receives, each in list order.
  struct Edge {
    std::vector<Action> sends, receives;
  };
  absl::flat_hash_map<Action, Edge> edges;
  const auto edge_of = [&](Action send) -> Edge& {
    send.micro_batch = 0;
    return edges[send];
  };
  for (const auto& list : schedule.lanes) {
    for (const Action& action : list) {
      if (IsSend(action.kind)) edge_of(action).sends.push_back(action);
      if (IsReceive(action.kind)) edge_of(SendOf(action)).receives.push_back(action);
    }
  }
  for (const auto& [name, edge] : edges) {
    for (size_t k = credits; k < edge.sends.size() && k - credits < edge.receives.size(); ++k) {
      credit_of_[edge.sends[k]] = edge.receives[k - credits];
    }
  }
}

void Dependencies::Of(const Action& action, std::vector<Action>* needed) const {
  const ActionKindInfo& info = InfoOf(action.kind);
  const bool forward = info.phase == StepPhase::kForward;
  const int stage = action.stage;
  needed->clear();
  const auto need = [&](ActionKind kind, int of_stage) { needed->push_back({kind, of_stage, action.micro_batch}); };
  if (info.role == ActionRole::kReceive) {
    if (const Action send = SendOf(action); send.stage >= 0 && send.stage < stages_) needed->push_back(send);
  }
  // Where the lists have no forwards, an earlier run has done those that a backward reads.
  const bool read_earlier = !has_forwards_ && !forward && info.reads == ActionKind::kForward;
  if (info.reads && !read_earlier) need(*info.reads, stage);
  if (info.receives) {
    const int neighbour = stage + (forward ? -1 : 1);
    if (neighbour >= 0 && neighbour < stages_) {
      const bool crosses = with_communication_ && lane_of_[stage] != lane_of_[neighbour];
      crosses ? need(*info.receives, stage) : need(forward ? ActionKind::kForward : ActionKind::kBackward, neighbour);
    }
    if (with_communication_) {
      for (const int peer : forward ? skips_.SourcesOf(stage) : skips_.DestinationsOf(stage)) {
        needed->push_back({*info.receives, stage, action.micro_batch, peer});
      }
    }
  }
  if (const auto credit = credit_of_.find(action); credit != credit_of_.end()) {
    needed->push_back(credit->second);
  }
}

ListWalk WalkLists(const Schedule& schedule, const Dependencies& dependencies) {
  ListWalk walk;
  walk.next.resize(schedule.lanes.size(), 0);
  std::vector<Action> needed;
  const auto done = [&](const Action& action) {
    const std::optional<Place> place = dependencies.Find(action);
    return place.has_value() && place->position < walk.next[place->lane];
  };
  bool progress = true;
  while (progress) {
    progress = false;
    for (size_t lane = 0; lane < schedule.lanes.size(); ++lane) {
      const auto& list = schedule.lanes[lane];
      int& next = walk.next[lane];
      for (; next < static_cast<int>(list.size()); ++next) {
        dependencies.Of(list[next], &needed);
        if (!std::all_of(needed.begin(), needed.end(), done)) break;
        walk.order.push_back({static_cast<int>(lane), next});
        progress = true;
      }
    }
  }
  walk.finished = true;
  for (size_t lane = 0; lane < schedule.lanes.size(); ++lane) {
    walk.finished = walk.finished && walk.next[lane] == static_cast<int>(schedule.lanes[lane].size());
  }
  return walk;
}

bool HasCommunication(const Schedule& schedule) {
  for (const auto& list : schedule.lanes) {
    for (const Action& action : list) {
      if (IsCommunication(action.kind)) return true;
    }
  }
  return false;
}

}  // namespace penstock
