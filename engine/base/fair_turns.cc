#include "engine/base/fair_turns.h"

#include <algorithm>

namespace penstock {

FairTurns::Turn FairTurns::Add(const std::string& owner, int64_t cost) {
  int64_t& end = ends_[owner];
  const Turn turn = {.start = std::max(now_, end), .cost = cost};
  end = turn.start + cost;
  return turn;
}

void FairTurns::Withdraw(const std::string& owner, const Turn& turn) {
  const auto end = ends_.find(owner);
  if (end == ends_.end() || end->second != turn.start + turn.cost) return;
  end->second = turn.start;
  if (end->second <= now_) ends_.erase(end);
}

void FairTurns::Served(const Turn& turn) {
  if (turn.start <= now_) return;
  now_ = turn.start;
  std::erase_if(ends_, [this](const auto& entry) { return entry.second <= now_; });
}

}  // namespace penstock
