// Inference of a pipeline: a forward without a graph, beside training, on the weights of one finished step. An
// evaluation is one whose last stage computes the loss and metrics.
//
//   InferAsync, EvaluateAsync ──▶ gate ──▶ a run ──▶ all lanes to the end of their lists ──▶ outputs or loss, step
//                                  ▲         │
//                                  └─────────┘ the weights want to change first: the run gives way and starts
//                                              anew on the new ones

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "engine/base/guard.h"
#include "engine/base/status_macros.h"
#include "engine/exec/pipeline_impl.h"
#include "engine/exec/signature_check.h"
#include "engine/exec/straight_values.h"
#include "engine/plan/planner.h"

namespace penstock {

// What all runs of one call have.
struct PipelineImpl::InferenceParts {
  ScatteredBatch inputs;
  std::vector<int> wanted;  // outputs
  bool outputs_stay = false;
  // Of an evaluation, which has no outputs.
  ScatteredLoss loss;
  std::vector<std::unique_ptr<EvaluationMetric>> metrics;
  std::vector<std::string> metric_names;
  std::optional<LossSpec> own_loss;  // of the call

  ListsOfRun lists;
  std::shared_ptr<CancelToken> cancel;
  std::function<void(absl::StatusOr<RunOutcome>)> done;

  bool evaluates() const { return !loss.losses.empty(); }
};

// One call through all of its runs. It fails if a change of the weights has left them broken.
//
// Model:     at most one run at a time, from Start() until its last lane has left. Then it is run again if it gave way
//            before it was done, or else has its outcome.
// Owns:      itself, by the gate while it waits or is open there, and by its run.
// Threads:   as GateVisit; a run ends on the thread of its last lane.
class PipelineImpl::InferenceCall : public GateVisit, public std::enable_shared_from_this<InferenceCall> {
 public:
  InferenceCall(PipelineImpl* pipeline, InferenceParts parts, InferenceOrder order)
      : GateVisit(order), pipeline_(pipeline), parts_(std::move(parts)) {
    ticket_->order = order;
    ticket_->accepted_nanos = pipeline->clock_->NowNanos();
    const std::vector<int64_t>& rows = parts_.inputs.rows;
    const InferenceCosts& costs = pipeline->rank_.filling().inference_costs();
    ticket_->alone_nanos = costs.MinToEnd(StageIndex(0), rows.front(), static_cast<int>(rows.size()) - 1);
    ticket_->lane_nanos = costs.Work(rows) / LaneCount(pipeline->plan_);
  }

  void Start() override {
    if (absl::Status broken = pipeline_->health(); !broken.ok()) return Answer(broken);
    absl::Status started = Guarded("an inference", [this] { StartRun(); });
    if (started.ok()) return;
    LedRun none;  // it has not begun
    {
      absl::MutexLock lock(&mu_);
      std::swap(none, run_);
    }
    none = LedRun();
    Answer(started);
  }

  void GiveWay() override {
    if (ticket_->due) return;  // it ends soon
    std::shared_ptr<LocalCoordinator> leader;
    {
      absl::MutexLock lock(&mu_);
      gives_way_ = true;
      leader = run_.leader;
    }
    if (leader == nullptr) return;
    // Lanes of other ranks do not ask whether it is due.
    if (!pipeline_->ranks_.alone() && leader->BeDue(pipeline_->clock_->NowNanos())) {
      absl::MutexLock lock(&mu_);
      gives_way_ = false;
      return;
    }
    leader->GiveWay();
  }

 private:
  void StartRun() {
    RunSpec spec = pipeline_->NewSpec(SchedulePurpose::kForwardOnly, static_cast<int>(parts_.inputs.rows.size()));
    spec.rows = parts_.inputs.rows;
    spec.inference = true;
    spec.keep_outputs = !parts_.evaluates();
    LedRun led = pipeline_->NewRun(std::move(spec), parts_.lists, parts_.cancel);
    led.run->inputs = InputsByStage(pipeline_->plan_, parts_.inputs.micro_batches);
    led.run->losses = parts_.loss.losses;
    led.run->results_stay = parts_.outputs_stay;
    for (const auto& metric : parts_.metrics) led.run->metrics.push_back(metric.get());
    led.run->ticket = ticket_;
    led.run->metric_names = parts_.metric_names;
    led.run->own_loss = parts_.own_loss;
    led.leader->WaitForTurn(&pipeline_->rank_.filling().turns(), ticket_);
    led.open = pipeline_->ranks_.Lead(led.run, led.leader);
    led.leader->OnEnd([self = shared_from_this()] { self->OnRunEnd(); });
    const std::shared_ptr<Run> run = led.run;
    const std::shared_ptr<LocalCoordinator> leader = led.leader;
    bool gives_way;
    {
      absl::MutexLock lock(&mu_);
      gives_way = gives_way_;
      run_ = std::move(led);
      began_nanos_ = pipeline_->clock_->NowNanos();
    }
    if (gives_way) leader->GiveWay();
    pipeline_->ranks_.Start(run);
  }

  void OnRunEnd() {
    PipelineImpl& pipeline = *pipeline_;
    LedRun ended;  // whose end this is: goes with its last executor
    double seconds = 0;
    {
      absl::MutexLock lock(&mu_);
      std::swap(ended, run_);
      gives_way_ = false;
      seconds = static_cast<double>(pipeline.clock_->NowNanos() - began_nanos_) * 1e-9;
    }
    const absl::Status closed = Guarded("the end of a run", [&] { pipeline.ranks_.End(*ended.run); });
    if (!closed.ok()) ended.leader->Fail(closed);
    ended.open.reset();  // before the pipeline may go
    if (ended.leader->MustRunAgain()) {
      pipeline.gate_.Reenter(shared_from_this());
      return;
    }
    // The weights can't change before Leave().
    Answer(Guarded("an inference", [&] { return pipeline.InferenceOutcome(ended, parts_, seconds); }));
  }

  void Answer(absl::StatusOr<RunOutcome> outcome) {
    PipelineImpl& pipeline = *pipeline_;
    Guarded("an inference", [&] {
      pipeline.rank_.filling().turns().Release(*ticket_, pipeline.clock_->NowNanos(), pipeline.ranks_.alone());
    }).IgnoreError();
    pipeline.gate_.Leave(shared_from_this());
    if (ticket_->due) pipeline.rank_.WakeAll();  // another may be due now
    Guarded("an inference", [&] { parts_.done(std::move(outcome)); }).IgnoreError();
    absl::MutexLock lock(&pipeline.inference_mu_);
    --pipeline.open_inferences_;
  }

  PipelineImpl* const pipeline_;
  const InferenceParts parts_;
  const std::shared_ptr<InferenceTicket> ticket_ = std::make_shared<InferenceTicket>();

  absl::Mutex mu_;
  bool gives_way_ ABSL_GUARDED_BY(mu_) = false;
  LedRun run_ ABSL_GUARDED_BY(mu_);
  int64_t began_nanos_ ABSL_GUARDED_BY(mu_) = 0;
};

void PipelineImpl::StartInference(InferenceParts parts, int32_t priority, int64_t turn) {
  absl::StatusOr<ListsOfRun> lists =
      rank_.Find(SchedulePurpose::kForwardOnly, static_cast<int>(parts.inputs.rows.size()));
  if (!lists.ok()) return parts.done(lists.status());
  parts.lists = *std::move(lists);
  const int64_t sequence = next_inference_.fetch_add(1, std::memory_order_relaxed);
  auto call = std::make_shared<InferenceCall>(this, std::move(parts),
                                              InferenceOrder{.priority = priority, .turn = turn, .sequence = sequence});
  {
    absl::MutexLock lock(&inference_mu_);
    ++open_inferences_;
  }
  // One that has not entered is none; one that has counts until it is answered.
  absl::Cleanup forget = [this] {
    absl::MutexLock lock(&inference_mu_);
    --open_inferences_;
  };
  gate_.Enter(std::move(call));
  std::move(forget).Cancel();
}

void PipelineImpl::InferAsync(ForwardRequest request, std::function<void(absl::StatusOr<ForwardOutcome>)> done) {
  if (absl::Status broken = health(); !broken.ok()) return done(broken);
  absl::StatusOr<std::vector<int>> wanted = MatchNames(signature_.outputs, request.outputs, "outputs");
  if (!wanted.ok()) return done(wanted.status());
  absl::StatusOr<ScatteredBatch> scattered = ScatterInputs(request.inputs, request.micro_batches);
  if (!scattered.ok()) return done(scattered.status());
  InferenceParts parts;
  parts.inputs = *std::move(scattered);
  parts.wanted = *std::move(wanted);
  parts.outputs_stay = request.outputs_stay;
  parts.cancel = std::move(request.cancel);
  parts.done = [done = std::move(done)](absl::StatusOr<RunOutcome> outcome) {
    if (!outcome.ok()) return done(outcome.status());
    done(ForwardOutcome{.outputs = std::move(outcome->outputs), .graph = nullptr, .step = outcome->step});
  };
  StartInference(std::move(parts), request.priority, request.turn);
}

void PipelineImpl::EvaluateAsync(EvaluationRequest request, std::function<void(absl::StatusOr<RunOutcome>)> done) {
  if (absl::Status broken = health(); !broken.ok()) return done(broken);
  ContributionRequest& batch = request.batch;
  if (const auto rows = CheckInputs(batch.inputs, /*needs_rows=*/true); !rows.ok()) return done(rows.status());
  absl::StatusOr<ScatteredBatch> scattered = ScatterInputs(batch.inputs, batch.micro_batches);
  if (!scattered.ok()) return done(scattered.status());
  InferenceParts parts;
  parts.inputs = *std::move(scattered);
  absl::Status status = ScatterTarget(batch, parts.inputs, parts.loss);
  if (!status.ok()) return done(std::move(status));
  auto metrics = MakeMetrics(request.metrics, batch.loss.value_or(spec_.loss));
  if (!metrics.ok()) return done(metrics.status());
  parts.metrics = *std::move(metrics);
  parts.metric_names = std::move(request.metrics);
  parts.own_loss = batch.loss;
  parts.cancel = std::move(batch.cancel);
  parts.done = std::move(done);
  StartInference(std::move(parts), request.priority, request.turn);
}

absl::StatusOr<RunOutcome> PipelineImpl::InferenceOutcome(const LedRun& led, const InferenceParts& parts,
                                                          double seconds) const {
  PENSTOCK_RETURN_IF_ERROR(led.leader->Result());
  RunOutcome outcome;
  outcome.step = step_.load();
  outcome.state = state_.load();
  outcome.rows = TotalRows(parts.inputs.rows);
  outcome.micro_batches = static_cast<int>(parts.inputs.rows.size());
  outcome.seconds = seconds;
  if (parts.evaluates()) {
    Measure(*led.run, parts, outcome);
  } else {
    PENSTOCK_ASSIGN_OR_RETURN(outcome.outputs, GatherOutputs(*led.run, parts.wanted));
  }
  return outcome;
}

// In the order of the micro-batches, whichever lane or schedule computed them.
void PipelineImpl::Measure(const Run& run, const InferenceParts& parts, RunOutcome& outcome) const {
  double loss = 0;
  for (double value : run.LossValues()) loss += value;
  outcome.loss = parts.loss.counted == 0 ? 0 : loss;
  outcome.counted = parts.loss.counted;
  for (size_t k = 0; k < parts.metrics.size(); ++k) {
    MetricSum sum;
    for (const std::vector<MetricSum>& of_micro_batch : run.metric_sums) {
      sum.sum += of_micro_batch[k].sum;
      sum.counted += of_micro_batch[k].counted;
    }
    outcome.metric_elements = sum.counted;  // the metrics of one loss count the same elements
    outcome.metrics[parts.metric_names[k]] = sum.counted == 0 ? 0 : sum.sum / static_cast<double>(sum.counted);
  }
}

}  // namespace penstock
