#pragma once

// Which action needs which, and in what order lists can run. Verifier and simulator share it, so they can't disagree.

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/schedule/schedule.h"
#include "engine/schedule/skips.h"

namespace penstock {

// A cell of the lists.
struct Place {
  int lane = 0;
  int position = 0;

  bool operator==(const Place&) const = default;
};

// Finds the place of an action in constant time.
//
// Model:     one slot per stage, micro-batch and role; B and I share a role, as a stage has one or the other. Of an
//            action that occurs twice it knows the last. The few messages that name a peer stand in a table of their
//            own, so that they cost nothing where there are no skips.
// Lifecycle: the schedule must pass CheckShape (failure.h) and stay unchanged while the index is used.
class ActionIndex {
 public:
  explicit ActionIndex(const Schedule& schedule);

  // Where the action stands; for B and I, where either of them stands.
  std::optional<Place> Find(const Action& action) const;

 private:
  int64_t Slot(const Action& action) const;  // of an action without a peer

  const int stages_;
  const int micro_batches_;
  std::vector<Place> places_;  // lane -1: absent
  absl::flat_hash_map<Action, Place> peer_places_;
};

// What each action needs before it may start.
//
// Model:     F needs the F of the stage before; B and I their own F and the B or I of the stage after; W its own I;
//            R its own F; a send its producer; a receive its send. Between stages of different lanes the need goes
//            through the receive if the lists hold communication, else directly. F also needs the receive of each skip
//            that ends at its stage, B and I that of each skip that begins there; the skips are those that the lists
//            name. Without communication the chain of stages implies them. With credits, send number k of an edge also
//            needs receive number k - credits; a skip is an edge of its own. Backwards of a list without forwards need
//            none: those ran before. OPT needs nothing here: it stands last in its list.
// Lifecycle: as ActionIndex.
class Dependencies {
 public:
  // `credits` 0: no bound.
  Dependencies(const Schedule& schedule, bool with_communication, int credits = 0);

  // Replaces `needed` with what the action needs. Actions that no lane performs may be among them.
  void Of(const Action& action, std::vector<Action>* needed) const;

  std::optional<Place> Find(const Action& action) const { return index_.Find(action); }

 private:
  void AddCredits(const Schedule& schedule, int credits);

  const int stages_;
  const bool with_communication_;
  const std::vector<int> lane_of_;
  const ActionIndex index_;
  const CrossingSkips skips_;
  bool has_forwards_ = false;
  absl::flat_hash_map<Action, Action> credit_of_;  // send to the receive that frees its place
};

// How far the lists run if every lane performs its actions in order, each as soon as its needs are met.
struct ListWalk {
  std::vector<Place> order;  // everything that ran, needs before needers
  std::vector<int> next;     // per lane, the position that did not run; the list's size if all of it ran
  bool finished = false;
};

ListWalk WalkLists(const Schedule& schedule, const Dependencies& dependencies);

// Whether any list holds a send or a receive.
bool HasCommunication(const Schedule& schedule);

}  // namespace penstock
