#include "engine/serve/training_queue.h"

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/serve/call_runner.h"

namespace penstock {

TrainingQueue::TrainingQueue(QueueBounds::Limits limits, Origin origin)
    : token_prefix_(std::move(origin.token_prefix)),
      bounds_("training", limits),
      state_(std::move(origin.state)),
      sequence_(origin.sequence),
      ended_sequence_(origin.sequence),
      step_(origin.step),
      version_(origin.version),
      at_boundary_(origin.at_boundary) {}

std::string TrainingQueue::TokenOf(const std::string& prefix, int64_t version) {
  return absl::StrCat(prefix, "-", version);
}

TrainingState TrainingQueue::Foreseen(int64_t now) const {
  TrainingState state = state_;
  const auto apply = [&state, now](const Call& call) {
    if (state.Check(*call.training, call.party(), now).ok()) state.Apply(*call.training, call.party(), now);
  };
  if (Runs()) apply(*running_);
  for (const CallPointer& call : waiting_) apply(*call);
  return state;
}

absl::Status TrainingQueue::WrongToken(const Call& call) const {
  if (call.context.expected_state.empty() || call.context.expected_state == token()) return absl::OkStatus();
  return Error(absl::StatusCode::kFailedPrecondition, "STATE_MISMATCH",
               "the training state is not the expected one: another call came first")
      .With("field", "expected_state")
      .With("value", Shortened(call.context.expected_state));
}

absl::Status TrainingQueue::CheckNew(const Call& call, int64_t now) const {
  PENSTOCK_RETURN_IF_ERROR(bounds_.Check(call.context.caller, call.inputs.inline_bytes()));
  PENSTOCK_RETURN_IF_ERROR(Foreseen(now).Check(*call.training, call.party(), now));
  return idle() ? WrongToken(call) : absl::OkStatus();
}

void TrainingQueue::Add(const CallPointer& call) {
  waiting_.push_back(call);
  absl::Cleanup undo = [this] { waiting_.pop_back(); };
  bounds_.Add(call->context.caller, call->inputs.inline_bytes());
  std::move(undo).Cancel();
  call->accepted.sequence = ++sequence_;
}

void TrainingQueue::Remove(const CallPointer& call) {
  bounds_.Remove(call->context.caller, call->inputs.inline_bytes());
  std::erase(waiting_, call);
}

CallPointer TrainingQueue::Start() {
  running_ = waiting_.front();
  Remove(running_);
  running_->guarded_.Enter(Call::Phase::kRunning);
  return running_;
}

absl::Status TrainingQueue::CheckTurn(const Call& call, int64_t now) const {
  PENSTOCK_RETURN_IF_ERROR(state_.Check(*call.training, call.party(), now));
  PENSTOCK_RETURN_IF_ERROR(WrongToken(call));
  const auto* backward = call.As<BackwardCall>();
  if (backward == nullptr || !backward->input_gradients) return absl::OkStatus();
  if (!call.inputs.pin(call.graph_pin).graph().ok()) return absl::OkStatus();  // its own error comes first
  // Gradients that the forward did not prepare for are refused before anything is added.
  const auto reaches = [&](const OpenGraph& graph) { return graph.id == backward->graph.id && graph.to_inputs; };
  if (std::any_of(graphs_.begin(), graphs_.end(), reaches)) return absl::OkStatus();
  return InvalidField("input_gradients", "must have been asked of the forward too", "true");
}

int64_t TrainingQueue::ForwardOf(const Call& call) const {
  const auto* backward = call.As<BackwardCall>();
  if (backward == nullptr) return 0;
  for (const OpenGraph& graph : graphs_) {
    if (graph.id == backward->graph.id) return graph.sequence;
  }
  return 0;
}

bool TrainingQueue::graphs_open() const {
  return std::any_of(graphs_.begin(), graphs_.end(), [](const OpenGraph& graph) { return !graph.graph.expired(); });
}

std::vector<HandleId> TrainingQueue::TakeGraphs() {
  std::vector<HandleId> taken;
  for (const OpenGraph& graph : graphs_) taken.push_back(graph.id);
  graphs_.clear();
  return taken;
}

bool TrainingQueue::Rename(const HandleId& from, const HandleId& to) {
  for (OpenGraph& graph : graphs_) {
    if (graph.id != from) continue;
    graph.id = to;
    return !graph.graph.expired();
  }
  return false;
}

std::vector<HandleId> TrainingQueue::Note(const Call& call, const Executed& executed, int64_t now) {
  const auto* contribution = call.As<ContributionCall>();
  const auto* backward = call.As<BackwardCall>();
  const absl::Duration lease = contribution != nullptr ? contribution->accumulation_lease
                               : backward != nullptr   ? backward->accumulation_lease
                                                       : absl::ZeroDuration();
  state_.Apply(*call.training, call.party(), now, lease);

  std::vector<HandleId> stale;
  if (executed.run.step != step_ || executed.replaced_state) {
    for (const OpenGraph& graph : graphs_) stale.push_back(graph.id);
    graphs_.clear();
  }
  step_ = executed.run.step;
  const bool steps = call.As<TrainStepCall>() != nullptr || call.training == TrainingCall::kApply;
  const bool replaces = call.As<RestoreCall>() != nullptr || call.As<WriteCall>() != nullptr;
  // A skipped step leaves the step's number, and so graphs that can still be used.
  if (steps || replaces || Discards(*call.training)) at_boundary_ = graphs_.empty();
  if (call.training == TrainingCall::kContribution || call.training == TrainingCall::kForward) at_boundary_ = false;
  if (const auto* forward = call.As<ForwardCall>()) {
    graphs_.push_back(
        {call.accepted.graph->id, call.accepted.sequence, forward->request.input_gradients, executed.graph});
    return stale;  // it changes nothing
  }
  if (backward != nullptr && !backward->retain_graph) {
    for (OpenGraph& graph : graphs_) {
      if (graph.id == backward->graph.id) graph.graph.reset();
    }
  }
  if (call.As<ReadCall>() != nullptr || call.As<CompactCall>() != nullptr) return stale;
  if (call.As<UpdateCall>() != nullptr) return stale;  // the state is the same
  if (call.As<SaveCall>() != nullptr || call.As<CopyCall>() != nullptr) return stale;
  if (const auto* removed = call.As<DeleteCall>()) {
    if (removed->id == saved_checkpoint_) {
      saved_version_ = -1;
      saved_checkpoint_.clear();
    }
    return stale;
  }
  version_ = call.accepted.sequence;
  if (steps || executed.replaced_state) ++weights_version_;
  if (call.As<RestoreCall>() != nullptr) {
    saved_version_ = weights_version_;
    saved_checkpoint_ = executed.checkpoint->id;
  }
  return stale;
}

void TrainingQueue::NoteSaved(int64_t weights_version, const std::string& checkpoint) {
  saved_version_ = weights_version;
  saved_checkpoint_ = checkpoint;
}

void TrainingQueue::Reconcile(const Call& call, bool accumulating, int64_t now) {
  state_.Reconcile(accumulating, call.party(), now);
  ended_sequence_ = call.accepted.sequence;
}

std::optional<TrainingParty> TrainingQueue::Expired(int64_t now) const {
  if (!state_.expires_at().has_value() || now < *state_.expires_at()) return std::nullopt;
  const TrainingParty& holder = *state_.holder();
  // A call of the holder that came in time goes on with what there is, or ends it.
  const auto of_holder = [&holder](const CallPointer& call) {
    return call->party() == holder && call->training != TrainingCall::kForward &&
           call->training != TrainingCall::kRead && call->training != TrainingCall::kReadGradients;
  };
  if (std::any_of(waiting_.begin(), waiting_.end(), of_holder) || (Runs() && of_holder(running_))) return std::nullopt;
  return holder;
}

}  // namespace penstock
