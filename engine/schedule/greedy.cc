#include "engine/schedule/greedy.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "engine/schedule/rank_writer.h"

namespace penstock {
namespace {

constexpr Ticks kNever = std::numeric_limits<Ticks>::max();

struct Player {
  explicit Player(RankWriter writer) : list(writer) {}

  RankWriter list;
  Ticks clock = 0;
  int forwards = 0, inputs = 0, weights = 0;  // done, or under way
  std::vector<Ticks> activations,
      gradients;  // when they arrive, per micro-batch, as far as their producers have started
};

// When each kind of action of a player could start.
struct Choice {
  Ticks forward = kNever;
  Ticks input = kNever;
  Ticks weight = kNever;

  Ticks earliest() const { return std::min({forward, input, weight}); }
};

class Game {
 public:
  Game(int ranks, int microbatches, int live_limit, const ScheduleCosts& costs, GreedyRule rule)
      : live_limit_(live_limit), costs_(costs), rule_(rule), schedule_(EmptySchedule("auto", ranks, 1, microbatches)) {
    for (int rank = 0; rank < ranks; ++rank) {
      players_.emplace_back(RankWriter(&schedule_, Placement::kLooped, rank));
    }
    players_.front().activations.assign(microbatches, 0);
  }

  Schedule Play() {
    for (;;) {
      int soonest = 0;
      Choice choice;
      for (int rank = 0; rank < static_cast<int>(players_.size()); ++rank) {
        const Choice own = ChoiceOf(players_[rank]);
        if (own.earliest() >= choice.earliest()) continue;
        soonest = rank;
        choice = own;
      }
      if (choice.earliest() == kNever) return std::move(schedule_);
      Take(soonest, choice);
    }
  }

 private:
  Choice ChoiceOf(const Player& player) const {
    Choice choice;
    if (player.forwards < static_cast<int>(player.activations.size()) &&
        player.forwards - player.weights < live_limit_) {
      choice.forward = std::max(player.clock, player.activations[player.forwards]);
    }
    if (player.inputs < static_cast<int>(player.gradients.size())) {
      choice.input = std::max(player.clock, player.gradients[player.inputs]);
    }
    if (player.weights < player.inputs) choice.weight = player.clock;
    return choice;
  }

  void Take(int rank, const Choice& choice) {
    const Ticks now = choice.earliest();
    const Ticks next = std::min(choice.forward, choice.input);
    if (next > now) {  // only a weight gradient can start now
      const Ticks wanted = (rule_.least_gap * costs_.stages[rank].weight_gradient + 1) / 2;
      if (next - now >= wanted) return WeightGradient(rank);
    }
    const bool input = rule_.input_first ? choice.input == next : choice.forward != next;
    return input ? InputGradient(rank, next) : Forward(rank, next);
  }

  void Forward(int rank, Ticks start) {
    Player& player = players_[rank];
    ++player.forwards;
    player.list.Forward();
    player.clock = start + costs_.stages[rank].forward;
    if (rank + 1 < static_cast<int>(players_.size())) {
      players_[rank + 1].activations.push_back(player.clock + costs_.hop);
    } else {
      player.gradients.push_back(player.clock);
    }
  }

  void InputGradient(int rank, Ticks start) {
    Player& player = players_[rank];
    ++player.inputs;
    player.list.InputGradient();
    player.clock = start + costs_.stages[rank].input_gradient;
    if (rank > 0) players_[rank - 1].gradients.push_back(player.clock + costs_.hop);
  }

  void WeightGradient(int rank) {
    Player& player = players_[rank];
    ++player.weights;
    player.list.WeightGradient();
    player.clock += costs_.stages[rank].weight_gradient;
  }

  const int live_limit_;
  const ScheduleCosts& costs_;
  const GreedyRule rule_;
  Schedule schedule_;
  std::vector<Player> players_;
};

}  // namespace

Schedule PlayGreedily(int ranks, int microbatches, int live_limit, const ScheduleCosts& costs, GreedyRule rule) {
  return Game(ranks, microbatches, live_limit, costs, rule).Play();
}

}  // namespace penstock
