#include "engine/exec/rank_host.h"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/rank_message.h"
#include "engine/base/status_macros.h"
#include "engine/device/copy_tensors.h"
#include "engine/device/torch_status.h"

namespace penstock {
namespace {

RankEngine::Parts WithPlan(RankEngine::Parts parts, const Plan* plan) {
  parts.plan = plan;
  return parts;
}

at::Tensor CopyOf(const at::Tensor& tensor) {
  const at::NoGradGuard no_graph;
  return tensor.is_cpu() ? tensor.clone() : ToHost(tensor);
}

absl::StatusOr<StatesOfStages> CopiesOf(const std::function<StatesOfStages()>& views) {
  StatesOfStages states;
  PENSTOCK_RETURN_IF_ERROR(RunTorch([&] {
    const at::NoGradGuard no_graph;
    states = views();
    for (StateOfStage& state : states) {
      for (NamedTensors* tensors : {&state.saved, &state.optimizer}) {
        for (NamedTensor& entry : *tensors) entry.tensor = CopyOf(entry.tensor);
      }
    }
  }));
  return states;
}

}  // namespace

RankHost::RankHost(Parts parts)
    : self_(parts.self),
      plan_(std::move(parts.plan)),
      ties_(std::move(parts.ties)),
      loss_spec_(std::move(parts.loss_spec)),
      loss_(std::move(parts.loss)),
      leader_(parts.leader),
      metrics_(std::move(parts.metrics)),
      lanes_(metrics_.get(), self_),
      engine_(WithPlan(std::move(parts.engine), &plan_)) {
  engine_.FreezeGroups(parts.optimizer.groups);
}

RankHost::~RankHost() {
  StopRuns();  // commands may wait for their lanes
  commands_.Close();
  StopRuns();
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(
      +[](int* running) { return *running == 0; }, &running_));
}

// Takes no memory.
void RankHost::OnEachRun(absl::FunctionRef<void(FollowingCoordinator&)> work) {
  int64_t last = 0;
  while (true) {
    std::shared_ptr<FollowingCoordinator> coordinator;
    {
      absl::MutexLock lock(&mu_);
      const auto next = open_.upper_bound(last);
      if (next == open_.end()) return;
      last = next->first;
      coordinator = next->second.coordinator;
    }
    work(*coordinator);
  }
}

void RankHost::StopRuns() {
  OnEachRun([](FollowingCoordinator& coordinator) { coordinator.Stop(); });
}

// --- Runs.

void RankHost::Start(RunOrder order) {
  commands_.Post([this, order = std::move(order)] {
    const absl::Status opened = Guarded("the start of a run", [&] { return Open(order); });
    if (opened.ok()) return;
    Guarded("what a rank tells", [&] { leader_->Failed(self_, order.spec.id, opened); }).IgnoreError();
    TellLeft(order.spec.id, /*before_the_end=*/true, Measures());
  });
}

// It must come there: the leader waits for it.
void RankHost::TellLeft(int64_t run, bool before_the_end, Measures measures) {
  absl::Status told =
      Guarded("what a rank tells", [&] { leader_->Left(self_, run, before_the_end, std::move(measures)); });
  if (told.ok()) return;
  told = Guarded("what a rank tells", [&] { leader_->Left(self_, run, /*before_the_end=*/true, Measures()); });
  if (!told.ok()) Guarded("what a rank tells", [&] { leader_->Lost(self_, told); }).IgnoreError();
}

absl::Status RankHost::Open(const RunOrder& order) {
  const int64_t id = order.spec.id;
  PENSTOCK_RETURN_IF_ERROR(CheckOpening(order.spec));
  PENSTOCK_ASSIGN_OR_RETURN(ListsOfRun lists, ListsOf(order.spec));
  OpenRun open;
  if (order.loss.has_value()) {
    PENSTOCK_ASSIGN_OR_RETURN(open.own_loss, MakeLoss(*order.loss));
  }
  if (!order.metrics.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(open.metrics, MakeMetrics(order.metrics, order.loss.value_or(loss_spec_)));
  }
  open.close = JobThread::Prepare([this, id] { CloseRun(id); });
  open.coordinator = NewCoordinator(order);
  open.run = engine_.Prepare(order.spec, std::move(lists), open.coordinator);
  open.run->ticket = open.coordinator->ticket();
  Expect(order, open);
  if (order.spec.Steps()) last_step_ = open.coordinator;
  if (order.spec.keep_graph) open.kept[order.spec.graph == 0 ? id : order.spec.graph];
  const std::shared_ptr<Run> run = open.run;
  {
    absl::MutexLock lock(&mu_);
    if (!lost_.ok()) return lost_;
    open_.emplace(id, std::move(open));
    lanes_.Open();
    ++running_;
    if (!run->spec.inference) ++training_;
  }
  // From here on nothing takes memory but the start itself: a Forward whose Backward does not start stays.
  const auto kept = graphs_.find(order.spec.graph);
  if (kept != graphs_.end()) run->passes = std::move(kept->second);
  const absl::Status started = Guarded("the start of a run", [&] { engine_.Start(run); });
  if (started.ok()) {
    if (kept != graphs_.end()) graphs_.erase(kept);
    return absl::OkStatus();
  }
  if (kept != graphs_.end()) kept->second = std::move(run->passes);
  absl::MutexLock lock(&mu_);
  open_.erase(id);
  lanes_.Close();
  --running_;
  if (!run->spec.inference) --training_;
  return started;
}

// Against what is here. Numbers of runs may come in any order: each training call and each inference takes one by itself,
// and is told by itself.
absl::Status RankHost::CheckOpening(const RunSpec& spec) const {
  if (spec.id <= 0 || CoordinatorOf(spec.id) != nullptr) {
    return BadRankMessage("start.run", "must be above 0, and not open", absl::StrCat(spec.id));
  }
  if (spec.graph == 0) return absl::OkStatus();
  const auto kept = graphs_.find(spec.graph);
  if (kept == graphs_.end()) {
    return BadRankMessage("start.graph", "must be a Forward whose passes are here", absl::StrCat(spec.graph));
  }
  const size_t micro_batches = kept->second.front().size();
  if (micro_batches == static_cast<size_t>(spec.micro_batches)) return absl::OkStatus();
  return BadRankMessage("start.micro_batches", absl::StrCat("must be ", micro_batches, ", as of its Forward"),
                        absl::StrCat(spec.micro_batches));
}

// A Forward is checkpointed as its Backward will need it.
absl::StatusOr<ListsOfRun> RankHost::ListsOf(const RunSpec& spec) {
  PENSTOCK_ASSIGN_OR_RETURN(ListsOfRun lists, engine_.Find(spec.purpose, spec.micro_batches));
  if (spec.purpose == SchedulePurpose::kForwardOnly && spec.keep_graph) {
    PENSTOCK_ASSIGN_OR_RETURN(const ListsOfRun backward,
                              engine_.Find(SchedulePurpose::kBackwardOnly, spec.micro_batches));
    lists.checkpointed = backward.checkpointed;
  }
  return lists;
}

std::shared_ptr<FollowingCoordinator> RankHost::NewCoordinator(const RunOrder& order) {
  const RunSpec& spec = order.spec;
  const int64_t id = spec.id;
  std::shared_ptr<InferenceTicket> ticket;
  if (spec.inference) {
    ticket = std::make_shared<InferenceTicket>();
    ticket->order = order.order;
  }
  std::vector<int> stages;
  for (int s = 0; s < static_cast<int>(plan_.stages.size()); ++s) {
    if (engine_.HasStage(s)) stages.push_back(s);
  }
  return std::make_shared<FollowingCoordinator>(
      engine_.lanes(), std::move(stages), spec.Steps() ? ties_ : TiedGradients(), std::move(ticket),
      FollowingCoordinator::Hooks{
          .wake = [this] { engine_.WakeAll(); },
          .failed = [this, id](const absl::Status& why) { leader_->Failed(self_, id, why); },
          .has_ties = [this, id](TiedGradients own) { leader_->HasTies(self_, id, std::move(own)); },
          .has_norms =
              [this, id](std::vector<NormsOfStage> norms) {
                std::shared_ptr<Run> run;
                {
                  absl::MutexLock lock(&mu_);
                  run = open_.at(id).run;
                }
                leader_->HasNorms(self_, id, std::move(norms), MeasuresOf(*run));
              },
          .left = [this, id](bool before_the_end) { OnLeft(id, before_the_end); }});
}

// What comes from the leader, and who measures.
void RankHost::Expect(const RunOrder& order, OpenRun& open) const {
  Run& run = *open.run;
  run.led_here = false;
  run.targets = order.targets;
  if (engine_.HasStage(0)) run.inputs.front().resize(run.micro_batches());
  if (engine_.HasStage(static_cast<int>(plan_.stages.size()) - 1)) {
    run.output_gradients.resize(run.micro_batches());
    const Loss* loss = open.own_loss != nullptr ? open.own_loss.get() : loss_.get();
    for (const double share : order.shares) {
      run.losses.push_back({.loss = loss, .target = {}, .weights = {}, .share = share, .output = order.output});
    }
    for (const auto& metric : open.metrics) run.metrics.push_back(metric.get());
  }
}

Measures RankHost::MeasuresOf(const Run& run) const {
  if (!engine_.HasStage(static_cast<int>(plan_.stages.size()) - 1)) return {};
  return {.losses = run.LossValues(), .metric_sums = run.metric_sums};
}

// Throws nothing.
void RankHost::OnLeft(int64_t id, bool before_the_end) {
  std::shared_ptr<Run> run;
  {
    absl::MutexLock lock(&mu_);
    run = open_.at(id).run;
  }
  JobThread::Prepared close;
  {
    absl::MutexLock lock(&mu_);
    OpenRun& open = open_.at(id);
    open.left = true;
    if (open.ended) close = std::move(open.close);
  }
  const auto guarded = [&](absl::FunctionRef<void()> part) {
    const absl::Status done = Guarded("the end of a run", part);
    if (!done.ok()) Guarded("what a rank tells", [&] { leader_->Failed(self_, id, done); }).IgnoreError();
  };
  Measures measures;
  guarded([&] {
    if (!run->spec.Steps()) measures = MeasuresOf(*run);  // of a step they went with the norms
    absl::MutexLock lock(&mu_);
    measures.lanes = lanes_.Take();
  });
  {
    absl::MutexLock lock(&mu_);
    lanes_.Close();
  }
  if (!close.empty()) commands_.Post(std::move(close));
  TellLeft(id, before_the_end, std::move(measures));
  absl::MutexLock lock(&mu_);
  if (!run->spec.inference) --training_;
  --running_;  // last: the destructor goes on
}

std::shared_ptr<FollowingCoordinator> RankHost::CoordinatorOf(int64_t run) const {
  absl::MutexLock lock(&mu_);
  const auto found = open_.find(run);
  return found == open_.end() ? nullptr : found->second.coordinator;
}

void RankHost::Stop(int64_t run) {
  commands_.Post([this, run] {
    if (const auto coordinator = CoordinatorOf(run)) coordinator->Stop();
  });
}

void RankHost::PutTies(int64_t run, TiedGradients ties) {
  commands_.Post([this, run, ties = std::move(ties)] {
    const auto coordinator = CoordinatorOf(run);
    if (coordinator == nullptr) return;
    if (absl::Status lie = coordinator->PutTies(ties); !lie.ok()) coordinator->Fail(std::move(lie));
  });
}

void RankHost::Grant(int64_t run, StepDecision decision) {
  commands_.Post([this, run, decision] {
    const auto coordinator = CoordinatorOf(run);
    if (coordinator == nullptr) return;
    if (absl::Status lie = coordinator->Grant(decision); !lie.ok()) coordinator->Fail(std::move(lie));
  });
}

void RankHost::BeDue(int64_t run) {
  commands_.Post([this, run] {
    if (const auto coordinator = CoordinatorOf(run)) coordinator->PutDue();
  });
}

void RankHost::End(int64_t run) {
  commands_.Post([this, run] {
    std::shared_ptr<FollowingCoordinator> early;
    {
      absl::MutexLock lock(&mu_);
      const auto found = open_.find(run);
      if (found != open_.end()) {
        found->second.ended = true;
        if (!found->second.left) early = found->second.coordinator;
      }
    }
    if (early == nullptr) return CloseRun(run);
    early->Stop();  // the leader has given this rank up
  });
}

void RankHost::CloseRun(int64_t run) {
  OpenRun ended;  // goes without the lock
  {
    absl::MutexLock lock(&mu_);
    const auto found = open_.find(run);
    if (found == open_.end()) return engine_.transport().Close(run);  // what has come for one that did not start
    ended = std::move(found->second);
    open_.erase(found);
  }
  if (ended.run->ticket != nullptr) engine_.filling().turns().Release(*ended.run->ticket, engine_.NowNanos());
  engine_.End(*ended.run);
  if (ended.kept.empty() || ended.forgotten) return;
  ended.kept.begin()->second = std::move(ended.run->passes);
  graphs_.merge(ended.kept);
}

void RankHost::ForgetGraph(int64_t run) {
  commands_.Post([this, run] {
    graphs_.erase(run);
    absl::MutexLock lock(&mu_);
    for (auto& [id, open] : open_) open.forgotten = open.forgotten || id == run || open.run->spec.graph == run;
  });
}

void RankHost::FailRuns(const absl::Status& why) {
  if (absl::IsUnavailable(why)) {
    absl::MutexLock lock(&mu_);
    if (lost_.ok()) lost_ = why;
  }
  OnEachRun([&](FollowingCoordinator& coordinator) { coordinator.Fail(why); });
}

// --- Stages.

// Where the leader has given this rank up, lanes of a run that has ended may still be there for a moment.
void RankHost::Change(std::function<void()> work) {
  commands_.Post([this, work = std::move(work)] {
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(
          +[](int* training) { return *training == 0; }, &training_));
    }
    work();
  });
}

void RankHost::EndContribution(bool keep, MicroBatchIndex first) {
  Change([this, keep, first] { engine_.EndContribution(keep, first); });
}

void RankHost::DiscardGradients() {
  Change([this] {
    engine_.DiscardGradients();
    last_step_.reset();
  });
}

void RankHost::RestoreTiedGradients() {
  Change([this] {
    if (last_step_ != nullptr) engine_.RestoreTiedGradients(last_step_->ties());
  });
}

void RankHost::SetIdle(StageState state) {
  commands_.Post([this, state] { engine_.SetIdle(state); });
}

template <typename Result, typename Work>
void RankHost::Answer(Done<Result> done, Work work) {
  Change([done = std::move(done), work = std::move(work)] {
    Result result = Guarded("a rank's answer", work);
    done(std::move(result));
  });
}

void RankHost::Undo(Done<absl::Status> done) {
  Answer<absl::Status>(std::move(done), [this] { return engine_.Undo(); });
}

void RankHost::ReadFacts(Done<absl::StatusOr<FactsOfRank>> done) {
  Answer<absl::StatusOr<FactsOfRank>>(std::move(done), [this]() -> absl::StatusOr<FactsOfRank> {
    FactsOfRank facts = engine_.Facts();
    absl::MutexLock lock(&mu_);
    facts.lanes = lanes_.Take();
    return facts;
  });
}

void RankHost::ReadState(bool with_optimizer, Done<absl::StatusOr<StatesOfStages>> done) {
  Answer<absl::StatusOr<StatesOfStages>>(
      std::move(done), [this, with_optimizer] { return CopiesOf([&] { return engine_.States(with_optimizer); }); });
}

void RankHost::WriteState(NamedTensors state, Done<absl::Status> done) {
  Answer<absl::Status>(std::move(done), [this, state = std::move(state)] { return engine_.TakeState(state); });
}

void RankHost::ReadTies(Done<absl::StatusOr<TiedGradients>> done) {
  Answer<absl::StatusOr<TiedGradients>>(std::move(done), [this]() -> absl::StatusOr<TiedGradients> {
    TiedGradients own = ties_;
    PENSTOCK_RETURN_IF_ERROR(RunTorch([&] {
      engine_.ShareTiedGradients(own);
      for (auto& of_group : own) {
        for (at::Tensor& gradient : of_group) gradient = gradient.defined() ? CopyOf(gradient) : gradient;
      }
    }));
    return own;
  });
}

void RankHost::ReadGradients(TiedGradients ties, Done<absl::StatusOr<StatesOfStages>> done) {
  Answer<absl::StatusOr<StatesOfStages>>(std::move(done), [this, ties = std::move(ties)] {
    return CopiesOf([&] {
      TiedGradients all = ties;
      engine_.ShareTiedGradients(all);
      return engine_.GradientsOfStages(all);
    });
  });
}

void RankHost::ReadAccumulated(Done<absl::StatusOr<NamedTensors>> done) {
  Answer<absl::StatusOr<NamedTensors>>(std::move(done), [this]() -> absl::StatusOr<NamedTensors> {
    PENSTOCK_ASSIGN_OR_RETURN(NamedTensors accumulated, engine_.Accumulated());
    PENSTOCK_RETURN_IF_ERROR(RunTorch([&] {
      for (NamedTensor& entry : accumulated) entry.tensor = CopyOf(entry.tensor);
    }));
    return accumulated;
  });
}

void RankHost::WriteAccumulated(NamedTensors accumulated, Done<absl::StatusOr<int64_t>> done) {
  Answer<absl::StatusOr<int64_t>>(
      std::move(done), [this, accumulated = std::move(accumulated)] { return engine_.TakeAccumulated(accumulated); });
}

void RankHost::UpdateOptimizer(OptimizerSpec spec, Done<absl::Status> done) {
  Answer<absl::Status>(std::move(done), [this, spec = std::move(spec)] { return engine_.UpdateOptimizer(spec); });
}

}  // namespace penstock
