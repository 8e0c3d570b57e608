// Inference of a pipeline: a forward without a graph, beside training, on the weights of one finished step.
//
//   InferAsync ──▶ gate ──▶ a run ──▶ all lanes to the end of their lists ──▶ outputs, and the step of the weights
//                   ▲         │
//                   └─────────┘ the weights want to change first: the run gives way and starts anew on the new ones

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "engine/base/guard.h"
#include "engine/base/status_macros.h"
#include "engine/exec/pipeline_impl.h"
#include "engine/exec/signature_check.h"

namespace penstock {

// One call through all of its runs. It fails if a change of the weights has left them broken.
//
// Model:     at most one run at a time, from Start() until its last lane has left. Then it is run again if it gave way
//            before it was done, or else has its outcome.
// Owns:      itself, by the gate while it waits or is open there, and by its run.
// Threads:   as GateVisit; a run ends on the thread of its last lane.
class PipelineImpl::InferenceCall : public GateVisit, public std::enable_shared_from_this<InferenceCall> {
 public:
  struct Parts {
    ScatteredBatch inputs;
    std::vector<int> wanted;
    ListsOfRun lists;
    std::shared_ptr<CancelToken> cancel;
    std::function<void(absl::StatusOr<ForwardOutcome>)> done;
  };
  InferenceCall(PipelineImpl* pipeline, Parts parts, int64_t sequence, int32_t priority)
      : GateVisit(sequence, priority), pipeline_(pipeline), parts_(std::move(parts)) {
    ticket_->sequence = sequence;
    ticket_->priority = priority;
    ticket_->accepted_nanos = pipeline->clock_->NowNanos();
    const std::vector<int64_t>& rows = parts_.inputs.rows;
    const InferenceCosts& costs = pipeline->rank_.filling().inference_costs();
    ticket_->alone_nanos = costs.MinToEnd(StageIndex(0), rows.front(), static_cast<int>(rows.size()) - 1);
    ticket_->lane_nanos = costs.Work(rows) / pipeline->rank_.lanes();
  }

  void Start() override {
    if (absl::Status broken = pipeline_->health(); !broken.ok()) return Answer(broken);
    if (absl::Status started = Guarded("an inference", [this] { StartRun(); }); !started.ok()) Answer(started);
  }

  void GiveWay() override {
    if (ticket_->due) return;
    std::shared_ptr<LocalCoordinator> leader;
    {
      absl::MutexLock lock(&mu_);
      gives_way_ = true;
      leader = run_.leader;
    }
    if (leader != nullptr) leader->GiveWay();
  }

 private:
  void StartRun() {
    RunSpec spec = pipeline_->NewSpec(SchedulePurpose::kForwardOnly, static_cast<int>(parts_.inputs.rows.size()));
    spec.rows = parts_.inputs.rows;
    spec.inference = true;
    spec.keep_outputs = true;
    const LedRun led = pipeline_->NewRun(std::move(spec), parts_.lists, parts_.cancel);
    led.run->inputs = parts_.inputs.micro_batches;
    led.run->ticket = ticket_;
    led.leader->WaitForTurn(&pipeline_->rank_.filling().turns(), ticket_);
    led.leader->OnEnd([self = shared_from_this()] { self->OnRunEnd(); });
    bool gives_way;
    {
      absl::MutexLock lock(&mu_);
      gives_way = gives_way_;
      run_ = led;
    }
    if (gives_way) led.leader->GiveWay();
    pipeline_->rank_.Start(led.run);
  }

  void OnRunEnd() {
    PipelineImpl& pipeline = *pipeline_;
    LedRun ended;  // whose end this is: goes with its last executor
    {
      absl::MutexLock lock(&mu_);
      std::swap(ended, run_);
      gives_way_ = false;
    }
    pipeline.rank_.End(*ended.run);
    if (ended.leader->MustRunAgain()) {
      ticket_->restarts.fetch_add(1, std::memory_order_relaxed);
      pipeline.gate_.Reenter(shared_from_this());
      return;
    }
    const int64_t step = pipeline.step_.load();  // can't change before Leave()
    Answer(Guarded("an inference", [&] { return pipeline.InferenceOutcome(ended, parts_.wanted, step); }));
  }

  void Answer(absl::StatusOr<ForwardOutcome> outcome) {
    PipelineImpl& pipeline = *pipeline_;
    Guarded("an inference", [&] {
      pipeline.rank_.filling().turns().Release(*ticket_, pipeline.clock_->NowNanos());
    }).IgnoreError();
    pipeline.gate_.Leave(shared_from_this());
    if (ticket_->due) pipeline.rank_.WakeAll();  // another may be due now
    Guarded("an inference", [&] { parts_.done(std::move(outcome)); }).IgnoreError();
    absl::MutexLock lock(&pipeline.inference_mu_);
    --pipeline.open_inferences_;
  }

  PipelineImpl* const pipeline_;
  const Parts parts_;
  const std::shared_ptr<InferenceTicket> ticket_ = std::make_shared<InferenceTicket>();

  absl::Mutex mu_;
  bool gives_way_ ABSL_GUARDED_BY(mu_) = false;
  LedRun run_ ABSL_GUARDED_BY(mu_);
};

void PipelineImpl::InferAsync(ForwardRequest request, std::function<void(absl::StatusOr<ForwardOutcome>)> done) {
  if (absl::Status broken = health(); !broken.ok()) return done(broken);
  absl::StatusOr<std::vector<int>> wanted = MatchNames(signature_.outputs, request.outputs, "outputs");
  if (!wanted.ok()) return done(wanted.status());
  absl::StatusOr<ScatteredBatch> scattered = ScatterInputs(request.inputs, request.micro_batches);
  if (!scattered.ok()) return done(scattered.status());
  absl::StatusOr<ListsOfRun> lists =
      rank_.Find(SchedulePurpose::kForwardOnly, static_cast<int>(scattered->rows.size()));
  if (!lists.ok()) return done(lists.status());
  auto call =
      std::make_shared<InferenceCall>(this,
                                      InferenceCall::Parts{.inputs = *std::move(scattered),
                                                           .wanted = *std::move(wanted),
                                                           .lists = *std::move(lists),
                                                           .cancel = std::move(request.cancel),
                                                           .done = std::move(done)},
                                      next_inference_.fetch_add(1, std::memory_order_relaxed), request.priority);
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

absl::StatusOr<ForwardOutcome> PipelineImpl::InferenceOutcome(const LedRun& led, const std::vector<int>& wanted,
                                                              int64_t step) const {
  PENSTOCK_RETURN_IF_ERROR(led.leader->Result());
  ForwardOutcome outcome;
  outcome.step = step;
  PENSTOCK_ASSIGN_OR_RETURN(outcome.outputs, GatherOutputs(*led.run, wanted));
  return outcome;
}

}  // namespace penstock
