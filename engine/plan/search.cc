#include "engine/plan/search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/plan/lanes.h"
#include "engine/plan/planner.h"
#include "engine/plan/search_space.h"
#include "engine/plan/spec_error.h"
#include "engine/schedule/fuse_pass.h"
#include "engine/schedule/generators.h"
#include "engine/schedule/lower_bound.h"

namespace penstock {
namespace {

constexpr Ticks kNever = std::numeric_limits<Ticks>::max();
constexpr int kImproved = 3;          // of the best, those whose cuts are tried a layer away
constexpr int kRounds = 4;            // layers that one boundary may move in all
constexpr int kSplitSimulations = 3;  // that one schedule with halves takes: it is tried with fused halves too
constexpr int kAutoSimulations = 40;

// The layers' costs at one size of micro-batch, summed up from the first.
class Costs {
 public:
  explicit Costs(std::vector<LayerProfile> layers) : layers_(std::move(layers)), sums_(layers_.size() + 1) {
    for (size_t i = 0; i < layers_.size(); ++i) {
      const LayerProfile& layer = layers_[i];
      sums_[i + 1] = sums_[i];
      Sum& sum = sums_[i + 1];
      sum.forward += layer.forward_seconds;
      sum.backward += layer.backward_seconds;
      sum.input_gradient += layer.input_gradient_seconds;
      sum.weight_gradient += layer.weight_gradient_seconds;
      sum.parameters += layer.parameter_bytes;
      sum.stash += layer.stash_bytes;
    }
  }

  const std::vector<LayerProfile>& layers() const { return layers_; }
  bool halves() const { return sums_.back().input_gradient > 0 || sums_.back().weight_gradient > 0; }

  StageCosts Of(int begin, int end) const {
    const Sum& a = sums_[begin];
    const Sum& b = sums_[end];
    const Ticks backward = Nanoseconds(b.backward - a.backward);
    StageCosts costs;
    costs.forward = costs.recompute = Nanoseconds(b.forward - a.forward);
    costs.input_gradient = halves() ? Nanoseconds(b.input_gradient - a.input_gradient) : backward / 2;
    costs.weight_gradient = halves() ? Nanoseconds(b.weight_gradient - a.weight_gradient) : backward - backward / 2;
    costs.backward = backward;
    return costs;
  }

  StageBytes BytesOf(int begin, int end, double optimizer_ratio) const {
    StageBytes bytes;
    bytes.parameters = sums_[end].parameters - sums_[begin].parameters;
    bytes.optimizer = static_cast<int64_t>(static_cast<double>(bytes.parameters) * optimizer_ratio);
    bytes.stash = sums_[end].stash - sums_[begin].stash;
    bytes.input = begin == 0 ? 0 : layers_[begin - 1].output_bytes;
    return bytes;
  }

 private:
  struct Sum {
    double forward = 0;
    double backward = 0;
    double input_gradient = 0;
    double weight_gradient = 0;
    int64_t parameters = 0;
    int64_t stash = 0;
  };

  static Ticks Nanoseconds(double seconds) {
    return std::min<Ticks>(kMaxCost, std::llround(std::max(0.0, seconds) * 1e9));
  }

  std::vector<LayerProfile> layers_;
  std::vector<Sum> sums_;
};

std::vector<int> FirstLayersOf(const std::vector<int>& balance) {
  std::vector<int> first(balance.size(), 0);
  for (size_t s = 1; s < balance.size(); ++s) first[s] = first[s - 1] + balance[s - 1];
  return first;
}

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
  struct Found {
    PlanCandidate candidate;
    Ticks makespan = 0;
    int order = 0;
    bool by_cost = true;  // the cut is ours
  };

  const Costs& CostsAt(int64_t rows);
  absl::StatusOr<CostBalance> CutFor(const ScheduleSpec& schedule, const Costs& costs, bool within_limits);
  Ticks BoundOfAll(const ScheduleSpec& schedule);
  // Nothing if it takes `limit` or longer. Fails where there is no such schedule, or with PLAN_DOES_NOT_FIT.
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
  std::map<int64_t, Costs> costs_;
  std::map<std::tuple<int64_t, int, bool>, CostBalance> cuts_;  // by rows, stages, recomputation
  std::vector<Found> found_;
  std::vector<Ticks> best_;  // makespans, ascending, at most kMaxCandidates
  int64_t worked_ = 0;
  PlanSearch result_;
};

const Costs& Search::CostsAt(int64_t rows) {
  auto found = costs_.find(rows);
  if (found == costs_.end()) found = costs_.emplace(rows, Costs(profile_.At(rows))).first;
  return found->second;
}

Ticks Search::Cutoff() const { return best_.size() < kMaxCandidates ? kNever : best_.back(); }

absl::StatusOr<CostBalance> Search::CutFor(const ScheduleSpec& schedule, const Costs& costs, bool within_limits) {
  work_.schedule = schedule;
  if (!given_.empty()) {
    PENSTOCK_RETURN_IF_ERROR(GivenCut(work_).status());
    return CostBalance{.balance = given_, .limits_decide = false};
  }
  PENSTOCK_ASSIGN_OR_RETURN(const int stages, StagesByCost(work_));
  if (within_limits) return BalanceByCost(work_, costs.layers(), stages, true);
  const std::tuple key(MicroBatchRows(request_.limits, schedule.micro_batches), stages,
                       schedule.checkpoint != CheckpointMode::kNever);
  const auto known = cuts_.find(key);
  if (known != cuts_.end()) return known->second;
  PENSTOCK_ASSIGN_OR_RETURN(CostBalance cut, BalanceByCost(work_, costs.layers(), stages, false));
  cuts_[key] = cut;
  return cut;
}

Ticks Search::BoundOfAll(const ScheduleSpec& schedule) {
  const Costs& costs = CostsAt(MicroBatchRows(request_.limits, schedule.micro_batches));
  const StageCosts all = costs.Of(0, static_cast<int>(costs.layers().size()));
  const Ticks backward = std::min(*all.backward, all.input_gradient + all.weight_gradient);
  const int lanes = static_cast<int>(std::max<size_t>(1, std::min(request_.devices.size(), request_.layers.size())));
  return schedule.micro_batches * (all.forward + backward) / lanes;
}

absl::StatusOr<std::optional<Search::Found>> Search::Evaluate(const ScheduleSpec& schedule, const CostBalance& cut,
                                                              Ticks limit) {
  const int stages = static_cast<int>(cut.balance.size());
  const int64_t rows = MicroBatchRows(request_.limits, schedule.micro_batches);
  const Costs& costs = CostsAt(rows);
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<int> lane_of, LanesOfStages(schedule, stages));
  const std::vector<int> first = FirstLayersOf(cut.balance);
  const std::vector<SkipRoute> skips = RoutesOf(request_, costs.layers(), first);
  ScheduleCosts times;
  std::vector<StageBytes> bytes;
  int64_t max_bytes = 0;
  for (int s = 0; s < stages; ++s) {
    times.stages.push_back(costs.Of(first[s], first[s] + cut.balance[s]));
    bytes.push_back(costs.BytesOf(first[s], first[s] + cut.balance[s], request_.optimizer_state_ratio));
    max_bytes = std::max(max_bytes, bytes.back().input);
  }
  if (request_.bytes_per_second > 0) {
    times.hop = std::llround(static_cast<double>(max_bytes) / request_.bytes_per_second * 1e9);
  }
  const BuildRequest build = BuildRequestOf(schedule, stages);
  const ScheduleRequest generated = {.kind = build.kind,
                                     .lanes = build.lanes,
                                     .micro_batches = build.micro_batches,
                                     .chunks = build.chunks,
                                     .lag = build.lag,
                                     .live_limit = build.live_limit,
                                     .costs = times,
                                     .imported = build.imported};
  PENSTOCK_ASSIGN_OR_RETURN(const ScheduleKind kind, KindOf(generated));
  if (absl::Status possible = CheckRequest(generated); !possible.ok()) return OfSpecSchedule(possible);
  if (LowerBound(generated, times, build.recompute) >= limit) return std::optional<Found>();
  worked_ += int64_t{3} * stages * schedule.micro_batches *
             (schedule.kind == "auto" ? kAutoSimulations
              : kind.splits           ? kSplitSimulations
                                      : 1);
  PENSTOCK_ASSIGN_OR_RETURN(Schedule lists, Generate(generated));
  PENSTOCK_ASSIGN_OR_RETURN(lists, FuseWhereItPays(std::move(lists), times));
  lists = InsertRecompute(std::move(lists), build.recompute);
  PENSTOCK_ASSIGN_OR_RETURN(const Simulation simulation, Simulate(lists, times));
  if (simulation.makespan >= limit) return std::optional<Found>();

  Found found;
  found.makespan = simulation.makespan;
  PlanCandidate& candidate = found.candidate;
  candidate.schedule = schedule;
  candidate.micro_batch_rows = rows;
  candidate.cut = cut;
  candidate.makespan_seconds = static_cast<double>(simulation.makespan) * 1e-9;
  Ticks busy = 0;
  for (const LaneTimes& lane : simulation.times) busy += lane.busy;
  if (simulation.makespan > 0) {
    candidate.bubble = 1 - static_cast<double>(busy) / (static_cast<double>(simulation.makespan) *
                                                        static_cast<double>(simulation.times.size()));
  }
  candidate.messages = MessageCount(lane_of, skips, schedule.micro_batches);
  std::vector<DeviceStage> places;
  for (int s = 0; s < stages; ++s) places.push_back({first[s], ""});
  if (given_.empty()) {
    PENSTOCK_RETURN_IF_ERROR(PlaceOnLanes(work_, places));
  } else {
    PENSTOCK_ASSIGN_OR_RETURN(const Cut given, GivenCut(work_));
    places = given.stages;
  }
  std::vector<std::string> device_of(simulation.times.size());
  for (int s = 0; s < stages; ++s) device_of[lane_of[s]] = places[s].device;
  candidate.memory = NeedOfDevices(device_of, LaneMemory(lists, simulation, bytes, skips), request_.devices);
  PENSTOCK_RETURN_IF_ERROR(CheckNeeds(candidate.memory));
  return std::optional<Found>(std::move(found));
}

bool Search::Try(const Choice& choice) {
  work_.schedule = choice.schedule;
  const auto refuse = [&](const absl::Status& why) { result_.refused.push_back({choice.schedule, why}); };
  const Costs& costs = CostsAt(MicroBatchRows(request_.limits, choice.schedule.micro_batches));
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
    const Costs& costs = CostsAt(MicroBatchRows(request_.limits, choice.schedule.micro_batches));
    if (kind.ok() && kind->splits && !costs.halves()) {
      result_.refused.push_back(
          {choice.schedule,
           RefuseSpec("spec.schedule.kind", "splits backwards, whose halves were not measured", choice.schedule.kind)});
      return;
    }
  }
  if (Try(choice) || !request_.limits.open.checkpoint) return;
  // Recomputation costs time, so nobody asks for it who has the memory.
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
        work_.schedule = found.candidate.schedule;
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
  std::stable_sort(found_.begin(), found_.end(), [](const Found& a, const Found& b) {
    const auto key = [](const Found& f) {
      return std::tuple(f.makespan, f.candidate.peak_bytes(), f.candidate.messages, f.order);
    };
    return key(a) < key(b);
  });
  if (found_.empty()) return;
  const auto equal_below = static_cast<Ticks>(static_cast<double>(found_.front().makespan) * (1 + kEqualMakespan));
  const auto end = std::find_if(found_.begin(), found_.end(), [&](const Found& f) { return f.makespan > equal_below; });
  std::stable_sort(found_.begin(), end, [](const Found& a, const Found& b) {
    const auto key = [](const Found& f) { return std::tuple(f.candidate.peak_bytes(), f.candidate.messages, f.order); };
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

int64_t PlanCandidate::peak_bytes() const {
  int64_t peak = 0;
  for (const DeviceNeed& need : memory) peak = std::max(peak, need.buffers.total());
  return peak;
}

absl::Status PlanSearch::WhyNone() const {
  const RefusedPlan* least = nullptr;
  int64_t min_bytes = 0;
  for (const RefusedPlan& one : refused) {
    if (ReasonOf(one.why) != "PLAN_DOES_NOT_FIT") continue;
    const int64_t bytes = std::stoll(ValuesOf(one.why)["value"]);
    if (least != nullptr && bytes >= min_bytes) continue;
    least = &one;
    min_bytes = bytes;
  }
  if (least == nullptr && !refused.empty()) least = &refused.front();
  if (least != nullptr) return least->why;
  return RefuseSpec("spec.schedule", "nothing is left to choose from", "nothing");
}

std::string PlanSearch::Reason() const {
  const PlanCandidate& best = candidates.front();
  std::string text = absl::StrCat(
      "Of ", considered, " schedules considered, ", DescribeSchedule(best.schedule),
      best.rehearsed_seconds ? ", was the fastest of those that were run: " : ", is predicted to be the best: ",
      absl::StrFormat("%.3f ms", best.rehearsed_seconds.value_or(best.makespan_seconds) * 1e3));
  if (best.micro_batch_rows > 0) absl::StrAppend(&text, " with ", best.micro_batch_rows, " rows per micro-batch");
  if (candidates.size() > 1) {
    const PlanCandidate& next = candidates[1];
    absl::StrAppend(&text, "; next is ", DescribeSchedule(next.schedule),
                    absl::StrFormat(" with %.3f ms", next.rehearsed_seconds.value_or(next.makespan_seconds) * 1e3),
                    best.rehearsed_seconds && !next.rehearsed_seconds ? ", predicted" : "");
  }
  return text + ".";
}

std::string DescribeSchedule(const ScheduleSpec& schedule) {
  std::string text = schedule.kind;
  if (schedule.chunks > 1) absl::StrAppend(&text, " with ", schedule.chunks, " chunks");
  if (schedule.lag.has_value()) absl::StrAppend(&text, " with lag ", *schedule.lag);
  if (schedule.live_limit.has_value()) absl::StrAppend(&text, " with live limit ", *schedule.live_limit);
  return absl::StrCat(text, ", ", schedule.micro_batches,
                      schedule.micro_batches == 1 ? " micro-batch" : " micro-batches", ", checkpoint ",
                      std::string(CheckpointModeName(schedule.checkpoint)));
}

absl::StatusOr<PlanSearch> SearchPlans(const PlanRequest& request, const SizeProfile& profile,
                                       const SearchBudget& budget) {
  if (profile.measured()) return Search(request, profile, budget).Run();
  PlanRequest closed = request;  // without costs there is nothing to choose by
  closed.limits.open = {};
  return Search(closed, profile, budget).Run();
}

}  // namespace penstock
