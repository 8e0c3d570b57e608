#include "engine/schedule/greedy.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "engine/schedule/lane_writer.h"

namespace penstock {
namespace {

constexpr Ticks kNever = std::numeric_limits<Ticks>::max();

struct Player {
  explicit Player(LaneWriter writer) : list(writer) {}

  LaneWriter list;
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
  Game(int lanes, int micro_batches, int live_limit, const ScheduleCosts& costs, GreedyRule rule)
      : live_limit_(live_limit), costs_(costs), rule_(rule), schedule_(EmptySchedule("auto", lanes, 1, micro_batches)) {
    for (int lane = 0; lane < lanes; ++lane) {
      players_.emplace_back(LaneWriter(&schedule_, Placement::kLooped, lane));
    }
    players_.front().activations.assign(micro_batches, 0);
  }

  Schedule Play() {
    for (;;) {
      int soonest = 0;
      Choice choice;
      for (int lane = 0; lane < static_cast<int>(players_.size()); ++lane) {
        const Choice own = ChoiceOf(players_[lane]);
        if (own.earliest() >= choice.earliest()) continue;
        soonest = lane;
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

  void Take(int lane, const Choice& choice) {
    const Ticks now = choice.earliest();
    const Ticks next = std::min(choice.forward, choice.input);
    if (next > now) {  // only a weight gradient can start now
      const Ticks wanted = (rule_.min_gap * costs_.stages[lane].weight_gradient + 1) / 2;
      if (next - now >= wanted) return WeightGradient(lane);
    }
    const bool input = rule_.input_first ? choice.input == next : choice.forward != next;
    return input ? InputGradient(lane, next) : Forward(lane, next);
  }

  void Forward(int lane, Ticks start) {
    Player& player = players_[lane];
    ++player.forwards;
    player.list.Forward();
    player.clock = start + costs_.stages[lane].forward;
    if (lane + 1 < static_cast<int>(players_.size())) {
      players_[lane + 1].activations.push_back(player.clock + costs_.HopBetween(lane, lane + 1));
    } else {
      player.gradients.push_back(player.clock);
    }
  }

  void InputGradient(int lane, Ticks start) {
    Player& player = players_[lane];
    ++player.inputs;
    player.list.InputGradient();
    player.clock = start + costs_.stages[lane].input_gradient;
    if (lane > 0) players_[lane - 1].gradients.push_back(player.clock + costs_.HopBetween(lane - 1, lane));
  }

  void WeightGradient(int lane) {
    Player& player = players_[lane];
    ++player.weights;
    player.list.WeightGradient();
    player.clock += costs_.stages[lane].weight_gradient;
  }

  const int live_limit_;
  const ScheduleCosts& costs_;
  const GreedyRule rule_;
  Schedule schedule_;
  std::vector<Player> players_;
};

}  // namespace

Schedule PlayGreedily(int lanes, int micro_batches, int live_limit, const ScheduleCosts& costs, GreedyRule rule) {
  return Game(lanes, micro_batches, live_limit, costs, rule).Play();
}

}  // namespace penstock
