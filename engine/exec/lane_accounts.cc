#include "engine/exec/lane_accounts.h"

#include <algorithm>
#include <cstdint>

namespace penstock {

void LaneAccounts::Count(const Action& action, Pass& pass) {
  int change = 0;
  if (action.kind == ActionKind::kForward) change = 1;
  if (AccumulatesGradient(action.kind) && inflight_ > 0) change = -1;  // 0: the forward was another run's
  inflight_ += change;
  CountStash(action, pass);
  if (change != 0) lane_->metrics->inflight_micro_batches.Add(change);
}

void LaneAccounts::CountStash(const Action& action, Pass& pass) {
  if (AccumulatesGradient(action.kind) && gradients_counted_ != action.stage) {
    gradients_counted_ = action.stage;
    lane_->CountGradients();
  }
  int64_t bytes = ByteSize(pass.stash);
  if (pass.graph || pass.split != nullptr) {
    size_t chunk = 0;
    while (lane_->stages[chunk]->index() != action.stage) ++chunk;
    const double rows = run_->spec.rows.empty() ? 1 : static_cast<double>(run_->spec.rows[action.micro_batch]);
    bytes = std::max(bytes, static_cast<int64_t>(lane_->stash_bytes_of_row[chunk] * rows));
  }
  if (bytes != pass.counted.bytes()) pass.counted = MemoryShare(lane_->metrics->memory, MemoryKind::kStash, bytes);
}

void LaneAccounts::Close() { lane_->metrics->inflight_micro_batches.Add(-inflight_); }

void Lane::CountGradients() {
  int64_t bytes = 0;
  for (const Stage* stage : stages) bytes += stage->GradientBytes();
  (*metrics->memory)[MemoryKind::kGradients].Set(static_cast<double>(bytes));
  int64_t undo = 0;
  for (const Stage* stage : stages) undo += stage->UndoBytes();
  (*metrics->memory)[MemoryKind::kUndo].Set(static_cast<double>(undo));
}

}  // namespace penstock
