#include "engine/plan/search.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/plan/lanes.h"
#include "engine/plan/search_space.h"
#include "engine/plan/spec_error.h"
#include "engine/schedule/generators.h"

namespace penstock {
namespace {

constexpr Ticks kNever = std::numeric_limits<Ticks>::max();
constexpr int kImproved = 3;  // of the best, those whose cuts are tried a layer away
constexpr int kRounds = 4;    // layers that one boundary may move in all

// Makespans of one quantum are equal: no measurement is more exact, and rounding must not choose.
Ticks Quantum(Ticks best) { return static_cast<Ticks>(static_cast<double>(best) * kEqualMakespan) + 1; }

// One search: the choices in their order, what was found of them, and how much work that was.
class Search {
 public:
  Search(const PlanRequest& request, const SizeProfile& profile, const SearchBudget& budget)
      : request_(request), work_(request), profile_(profile), budget_(budget) {
    work_.limits.open = {};
  }

  absl::StatusOr<PlanSearch> Run();

 private:
  struct Choice {
    ScheduleSpec schedule;
    int order = 0;  // in the search space
    Ticks bound = 0;
  };
  struct Found : PredictedPlan {
    int order = 0;
    bool by_cost = true;  // the cut is ours
  };

  const LayerCosts& CostsAt(int64_t rows);
  absl::StatusOr<CostBalance> CutFor(const ScheduleSpec& schedule, const LayerCosts& costs, bool within_limits);
  Ticks BoundOfAll(const ScheduleSpec& schedule);
  // As PredictChoice.
  absl::StatusOr<std::optional<Found>> Evaluate(const ScheduleSpec& schedule, const CostBalance& cut, Ticks limit);
  // Keeps it if it is good enough; whether it fits, or nobody needs to know.
  bool Try(const Choice& choice);
  void Consider(const Choice& choice);
  void Improve(Found& found);
  void Rank();
  bool OutOfBudget(int64_t max_work) {
    const bool late = !found_.empty() && budget_.out_of_time && budget_.out_of_time();
    if (worked_ > max_work || late) result_.complete = false;
    return !result_.complete;
  }
  Ticks Cutoff() const;

  const PlanRequest& request_;
  PlanRequest work_;  // the same, with one choice after the other
  const SizeProfile& profile_;
  const SearchBudget& budget_;
  std::vector<int> given_;  // layers per stage, where the specification says so
  std::map<int64_t, LayerCosts> costs_;
  // By rows, stages, recomputation, and, where links count, the schedule.
  std::map<std::tuple<int64_t, int, bool, std::string>, CostBalance> cuts_;
  std::vector<Found> found_;
  std::vector<Ticks> best_;  // makespans, ascending, at most kMaxCandidates
  int64_t worked_ = 0;
  PlanSearch result_;
};

const LayerCosts& Search::CostsAt(int64_t rows) {
  auto found = costs_.find(rows);
  if (found == costs_.end()) found = costs_.emplace(rows, LayerCosts(profile_.At(rows))).first;
  return found->second;
}

// What takes as long as the last of the best, but for a quantum, may need less than it.
Ticks Search::Cutoff() const { return best_.size() < kMaxCandidates ? kNever : best_.back() + Quantum(best_.front()); }

absl::StatusOr<CostBalance> Search::CutFor(const ScheduleSpec& schedule, const LayerCosts& costs, bool within_limits) {
  work_.schedule = schedule;
  if (!given_.empty()) {
    PENSTOCK_RETURN_IF_ERROR(GivenCut(work_).status());
    return CostBalance{.balance = given_, .limits_decide = false};
  }
  PENSTOCK_ASSIGN_OR_RETURN(const int stages, StagesByCost(work_));
  if (within_limits) return BalanceByCost(work_, costs.layers(), stages, true);
  const std::tuple key(MicroBatchRows(request_.limits, schedule.micro_batches), stages,
                       schedule.checkpoint != CheckpointMode::kNever,
                       request_.links.empty() ? std::string() : DescribeSchedule(schedule));
  const auto known = cuts_.find(key);
  if (known != cuts_.end()) return known->second;
  PENSTOCK_ASSIGN_OR_RETURN(CostBalance cut, BalanceByCost(work_, costs.layers(), stages, false));
  cuts_[key] = cut;
  return cut;
}

Ticks Search::BoundOfAll(const ScheduleSpec& schedule) {
  const LayerCosts& costs = CostsAt(MicroBatchRows(request_.limits, schedule.micro_batches));
  const StageCosts all = costs.Of(0, static_cast<int>(costs.layers().size()));
  const Ticks backward = std::min(*all.backward, all.input_gradient + all.weight_gradient);
  const int lanes = static_cast<int>(std::max<size_t>(1, std::min(request_.devices.size(), request_.layers.size())));
  return schedule.micro_batches * (all.forward + backward) / lanes;
}

absl::StatusOr<std::optional<Search::Found>> Search::Evaluate(const ScheduleSpec& schedule, const CostBalance& cut,
                                                              Ticks limit) {
  work_.schedule = schedule;
  const int64_t rows = MicroBatchRows(request_.limits, schedule.micro_batches);
  const PlanChoice choice = {work_, CostsAt(rows), rows, cut, !given_.empty()};
  PENSTOCK_ASSIGN_OR_RETURN(std::optional<PredictedPlan> predicted, PredictChoice(choice, limit, worked_));
  if (!predicted.has_value()) return std::optional<Found>();
  return std::optional<Found>(Found{*std::move(predicted)});
}

bool Search::Try(const Choice& choice) {
  work_.schedule = choice.schedule;
  const auto refuse = [&](const absl::Status& why) { result_.refused.push_back({choice.schedule, why}); };
  const LayerCosts& costs = CostsAt(MicroBatchRows(request_.limits, choice.schedule.micro_batches));
  absl::StatusOr<CostBalance> cut = CutFor(choice.schedule, costs, /*within_limits=*/false);
  if (!cut.ok()) {
    refuse(cut.status());
    return true;
  }
  absl::StatusOr<std::optional<Found>> found = Evaluate(choice.schedule, *cut, Cutoff());
  bool fits = found.ok() || ReasonOf(found.status()) != "PLAN_DOES_NOT_FIT";
  if (!fits && given_.empty()) {
    cut = CutFor(choice.schedule, costs, /*within_limits=*/true);
    if (cut.ok() && cut->limits_decide) {
      absl::StatusOr<std::optional<Found>> limited = Evaluate(choice.schedule, *cut, Cutoff());
      if (limited.ok()) found = std::move(limited);
    }
    fits = found.ok();
  }
  if (!found.ok()) {
    refuse(found.status());
    return fits;
  }
  if (!found->has_value()) {
    ++result_.skipped;
    return true;
  }
  (*found)->order = choice.order;
  (*found)->by_cost = given_.empty();
  best_.insert(std::upper_bound(best_.begin(), best_.end(), (*found)->makespan), (*found)->makespan);
  if (best_.size() > kMaxCandidates) best_.pop_back();
  found_.push_back(**std::move(found));
  return true;
}

void Search::Consider(const Choice& choice) {
  ++result_.considered;
  if (choice.bound >= Cutoff()) {
    ++result_.skipped;
    return;
  }
  if (request_.limits.open.kind) {
    const absl::StatusOr<ScheduleKind> kind = FindScheduleKind(choice.schedule.kind);
    const LayerCosts& costs = CostsAt(MicroBatchRows(request_.limits, choice.schedule.micro_batches));
    if (kind.ok() && kind->splits && !costs.halves()) {
      result_.refused.push_back(
          {choice.schedule,
           RefuseSpec("spec.schedule.kind", "splits backwards, whose halves were not measured", choice.schedule.kind)});
      return;
    }
  }
  if (Try(choice) || !request_.limits.open.checkpoint) return;
  // Recomputation costs time, so it is tried only where memory is short.
  for (CheckpointMode mode : {CheckpointMode::kSkipAdjacent, CheckpointMode::kExceptLast, CheckpointMode::kAlways}) {
    Choice recomputing = choice;
    recomputing.schedule.checkpoint = mode;
    ++result_.considered;
    Try(recomputing);
  }
}

// Moves one boundary by one layer as long as that makes the step shorter.
void Search::Improve(Found& found) {
  const int64_t max_work = worked_ + budget_.max_work / 8;
  for (int round = 0; round < kRounds; ++round) {
    std::optional<Found> better;
    for (size_t s = 0; s + 1 < found.candidate.cut.balance.size(); ++s) {
      for (const int step : {-1, 1}) {
        if (worked_ > max_work || OutOfBudget(std::numeric_limits<int64_t>::max())) break;
        CostBalance cut = found.candidate.cut;
        cut.balance[s] += step;
        cut.balance[s + 1] -= step;
        if (cut.balance[s] < 1 || cut.balance[s + 1] < 1) continue;
        const Ticks limit = better.has_value() ? better->makespan : found.makespan;
        absl::StatusOr<std::optional<Found>> moved = Evaluate(found.candidate.schedule, cut, limit);
        if (moved.ok() && moved->has_value()) better = **std::move(moved);
      }
    }
    if (!better.has_value()) return;
    better->order = found.order;
    better->candidate.cut.moved = true;
    found = *std::move(better);
  }
}

void Search::Rank() {
  if (found_.empty()) return;
  const auto shorter = [](const Found& a, const Found& b) { return a.makespan < b.makespan; };
  const Ticks best = std::min_element(found_.begin(), found_.end(), shorter)->makespan;
  const Ticks quantum = Quantum(best);
  std::stable_sort(found_.begin(), found_.end(), [&](const Found& a, const Found& b) {
    const auto key = [&](const Found& f) {
      return std::tuple((f.makespan - best) / quantum, f.candidate.peak_bytes(), f.candidate.messages, f.order);
    };
    return key(a) < key(b);
  });
}

absl::StatusOr<PlanSearch> Search::Run() {
  PENSTOCK_RETURN_IF_ERROR(CheckLimits(request_.limits));
  work_.schedule = request_.schedule;
  PENSTOCK_ASSIGN_OR_RETURN(const Cut given, GivenCut(work_));
  for (size_t s = 0; s < given.stages.size(); ++s) {
    const int end =
        s + 1 < given.stages.size() ? given.stages[s + 1].first_layer : static_cast<int>(request_.layers.size());
    given_.push_back(end - given.stages[s].first_layer);
  }
  const int lanes = !given_.empty() ? static_cast<int>(given_.size()) / request_.schedule.chunks
                    : request_.cut.stages > 0
                        ? request_.cut.stages / request_.schedule.chunks
                        : static_cast<int>(std::min(request_.devices.size(), request_.layers.size()));
  std::vector<Choice> choices;
  for (ScheduleSpec& schedule : SearchSpace(request_, std::max(1, lanes))) {
    Choice choice{std::move(schedule), static_cast<int>(choices.size())};
    choice.bound = given_.empty() && request_.cut.stages == 0 ? BoundOfAll(choice.schedule) : 0;
    choices.push_back(std::move(choice));
  }
  std::stable_sort(choices.begin(), choices.end(), [](const Choice& a, const Choice& b) { return a.bound < b.bound; });
  for (const Choice& choice : choices) {
    if (OutOfBudget(budget_.max_work)) break;
    Consider(choice);
  }
  Rank();
  if (found_.size() > kMaxCandidates) found_.resize(kMaxCandidates);
  if (request_.cut.method == CutSpec::Method::kExact && request_.cut.cost == CutSpec::Cost::kTime) {
    for (size_t i = 0; i < std::min<size_t>(kImproved, found_.size()); ++i) {
      if (found_[i].by_cost) Improve(found_[i]);
    }
    Rank();
  }
  for (Found& found : found_) result_.candidates.push_back(std::move(found.candidate));
  return std::move(result_);
}

}  // namespace

absl::StatusOr<PlanSearch> SearchPlans(const PlanRequest& request, const SizeProfile& profile,
                                       const SearchBudget& budget) {
  if (profile.measured()) return Search(request, profile, budget).Run();
  PlanRequest closed = request;  // without costs there is nothing to choose by
  closed.limits.open = {};
  return Search(closed, profile, budget).Run();
}

}  // namespace penstock
