#include "engine/serve/inference_queue.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "engine/base/caller_share.h"

namespace penstock {

absl::Status InferenceQueue::CheckNew(const Call& call) const {
  return bounds_.Check(call.context.caller, call.inputs.inline_bytes());
}

void InferenceQueue::Add(const CallPointer& call) {
  waiting_.push_back(call);
  absl::Cleanup undo = [&] {
    waiting_.pop_back();
    Unready(call);
  };
  if (call->guarded_.inputs_ready) SetReady(call);
  bounds_.Add(call->context.caller, call->inputs.inline_bytes());
  std::move(undo).Cancel();
}

void InferenceQueue::SetReady(const CallPointer& call) {
  const auto turns = turns_.try_emplace(call->priority()).first;
  absl::Cleanup undo = [&] {
    if (turns->second.idle()) turns_.erase(turns);
  };
  const auto caller = callers_.try_emplace(call->context.caller).first;
  absl::Cleanup forget = [&] { ForgetIfIdle(caller); };
  if (!call->batch_key.empty()) ready_rows_[call->batch_key] += call->rows;
  absl::Cleanup uncount = [&] { UncountRows(*call); };
  turns->second.Add(call);
  std::move(uncount).Cancel();
  std::move(forget).Cancel();
  std::move(undo).Cancel();
  ++caller->second.calls;
  ++ready_;
  if (!call->batch_key.empty()) ++ready_batched_;
}

void InferenceQueue::UncountRows(const Call& call) {
  const auto rows = ready_rows_.find(call.batch_key);
  if (rows != ready_rows_.end() && (rows->second -= call.rows) <= 0) ready_rows_.erase(rows);
}

void InferenceQueue::LeaveReady(const Call& call) {
  --ready_;
  if (!call.batch_key.empty()) --ready_batched_;
  UncountRows(call);
}

void InferenceQueue::Remove(const CallPointer& call) {
  if (!Unready(call)) return Leave(call);
  // It is there no more, and is not absent: nobody waits for its rows.
  if (gather_answered_ > 0 && call->batch_key == gather_key_) gather_rows_ -= call->rows;
  Leave(call);
}

bool InferenceQueue::Unready(const CallPointer& call) {
  const auto turns = turns_.find(call->priority());
  if (turns == turns_.end() || !turns->second.Remove(call)) return false;
  LeaveReady(*call);
  if (turns->second.idle()) turns_.erase(turns);
  const auto caller = callers_.find(call->context.caller);
  --caller->second.calls;
  ForgetIfIdle(caller);
  return true;
}

void InferenceQueue::ForgetIfIdle(Callers::iterator caller) {
  if (caller->second.calls == 0) callers_.erase(caller);
}

void InferenceQueue::Leave(const CallPointer& call) {
  bounds_.Remove(call->context.caller, call->inputs.inline_bytes());
  std::erase(waiting_, call);
}

BatchPointer InferenceQueue::Start() {
  const auto batch = std::make_shared<InferenceBatch>();
  const CallPointer first = Next();
  batch->merges = Merges(*first);
  // What may fail comes first.
  batch->calls.reserve(batch->merges ? std::clamp<int64_t>(batching_.max_rows, 1, ready_) : 1);
  running_.insert(batch);
  batch->number = ++started_;
  Take(first, *batch);
  if (!batch->merges) return batch;
  if (first->batch_key == gather_key_) EndGathering(first->rows + ReadyRows(gather_key_));
  batch->holds_place = true;
  ++batches_;
  int64_t rows = first->rows;
  const CallerTurns& turns = turns_.at(first->priority());
  const auto fits = [&](const Call& call) {
    return call.batch_key == first->batch_key && call.rows <= batching_.max_rows - rows;
  };
  while (rows < batching_.max_rows) {
    const CallPointer next = turns.Next(fits);
    if (next == nullptr) break;
    rows += next->rows;
    Take(next, *batch);
  }
  return batch;
}

void InferenceQueue::Take(const CallPointer& call, InferenceBatch& batch) {
  batch.calls.push_back(call);
  turns_.at(call->priority()).Start(call);
  LeaveReady(*call);
  Leave(call);
  CountRun(*call, batch.number, 1);
  call->guarded_.Enter(Call::Phase::kRunning);
}

void InferenceQueue::CountRun(const Call& call, int64_t number, int change) {
  Caller& caller = callers_.find(call.context.caller)->second;
  if (std::exchange(caller.counted, change * number) == change * number) return;  // by another of its calls
  caller.runs += change;
  if (call.priority() > 0) caller.urgent += change;
}

void InferenceQueue::LeaveStages(InferenceBatch& batch, int64_t now_nanos) {
  Reached(now_nanos);
  GivePlaceBack(batch);
  if (batch.merges) Gather(batch);
}

void InferenceQueue::GivePlaceBack(InferenceBatch& batch) {
  if (std::exchange(batch.holds_place, false)) --batches_;
}

void InferenceQueue::EndRun(const BatchPointer& batch, int64_t now_nanos) {
  Reached(now_nanos);
  told_nanos_ = now_nanos;
  GivePlaceBack(*batch);
  running_.erase(batch);
  for (const CallPointer& call : batch->calls) {
    const auto turns = turns_.find(call->priority());
    turns->second.End(call);
    if (turns->second.idle()) turns_.erase(turns);
    CountRun(*call, batch->number, -1);
    const auto caller = callers_.find(call->context.caller);
    --caller->second.calls;
    ForgetIfIdle(caller);
  }
}

void InferenceQueue::SetBatching(BatchLimits batching) {
  batching_ = batching;
  gather_answered_ = 0;
  futile_ = 0;
  skip_ = 0;
}

int64_t InferenceQueue::running() const {
  int64_t calls = 0;
  for (const BatchPointer& batch : running_) calls += std::ssize(batch->calls);
  return calls;
}

int64_t InferenceQueue::ReadyRows(const std::string& key) const {
  const auto rows = ready_rows_.find(key);
  return rows == ready_rows_.end() ? 0 : rows->second;
}

// Takes no memory: the batch's calls must be told, whatever else fails.
void InferenceQueue::Gather(const InferenceBatch& batch) {
  constexpr int64_t kShareOfRun = 4;
  constexpr int64_t kShortest = 500'000;  // a timer may be as late as that, and what is late keeps both sides waiting
  gather_answered_ = 0;
  if (batching_.max_delay_nanos.has_value() || batching_.places != 1) return;
  if (skip_ > 0) {
    --skip_;
    return;
  }
  const int64_t wait = (now_nanos_ - std::max(batch.calls.front()->started_nanos, told_nanos_)) / kShareOfRun;
  if (wait < kShortest) return;
  gather_key_.swap(batch.calls.front()->batch_key);  // which nobody asks for any more
  for (const CallPointer& call : batch.calls) gather_answered_ += call->rows;
  gather_rows_ = ReadyRows(gather_key_) + gather_answered_;
  gather_until_nanos_ = now_nanos_ + wait;
}

// A batch starts, of so many rows that were ready.
void InferenceQueue::EndGathering(int64_t rows) {
  constexpr int kMostFutile = 6;
  const int64_t answered = std::exchange(gather_answered_, 0);
  const int64_t absent = gather_rows_ - rows;
  const bool waited = absent <= 0 || now_nanos_ >= gather_until_nanos_;
  if (answered == 0 || !waited) return;  // it says nothing of those who are absent
  futile_ = 2 * absent > answered ? std::min(futile_ + 1, kMostFutile) : 0;
  skip_ = futile_ == 0 ? 0 : int64_t{1} << futile_;
}

int64_t InferenceQueue::DueNanos(const Call& call) const {
  if (batching_.max_delay_nanos.has_value()) return call.accepted_nanos + *batching_.max_delay_nanos;
  return gather_answered_ > 0 && call.batch_key == gather_key_ ? gather_until_nanos_ : 0;
}

bool InferenceQueue::IsEnough(const std::string& key, int64_t rows) const {
  if (rows >= batching_.max_rows) return true;
  if (batching_.max_delay_nanos.has_value()) return false;
  return gather_answered_ == 0 || key != gather_key_ || rows >= gather_rows_;
}

bool InferenceQueue::IsDue(const Call& call) const {
  if (hurry_ || batching_.max_delay_nanos == 0 || DueNanos(call) <= now_nanos_) return true;
  return IsEnough(call.batch_key, ReadyRows(call.batch_key));
}

bool InferenceQueue::MayMerge(const Call& call) const { return batches_ < batching_.places && IsDue(call); }

// Takes no memory: who waits for the queue asks it whenever its lock is given back.
bool InferenceQueue::SomeMayMerge() const {
  if (batches_ >= batching_.places) return false;
  const auto merges = [this](const CallPointer& call) { return call->guarded_.inputs_ready && Merges(*call); };
  const auto earliest = std::find_if(waiting_.begin(), waiting_.end(), merges);
  if (earliest != waiting_.end() && IsDue(**earliest)) return true;
  return std::any_of(ready_rows_.begin(), ready_rows_.end(),
                     [this](const auto& key) { return IsEnough(key.first, key.second); });
}

int64_t InferenceQueue::due_nanos() const {
  if (paused_ || batching_.max_delay_nanos == 0 || batches_ >= batching_.places || ready_batched_ == 0 || !may_run())
    return kNever;
  for (const CallPointer& call : waiting_) {
    if (!call->guarded_.inputs_ready || !Merges(*call)) continue;
    if (const int64_t due = DueNanos(*call); due > now_nanos_) return due;
  }
  return kNever;  // whatever still waits, waits for something else
}

// Takes no memory, as SomeMayMerge().
CallPointer InferenceQueue::Next() const {
  if (turns_.empty()) return nullptr;
  if (merging() && ready_batched_ == ready_ && !SomeMayMerge()) return nullptr;
  if (!may_run()) return nullptr;
  const int64_t quarter = Quarter();
  // Where there is a place, only what has a priority may have to leave it to others.
  if (has_place() && turns_.begin()->first <= 0) {
    for (const auto& [priority, turns] : turns_) {
      CallPointer next = turns.Next([&](const Call& call) { return !Merges(call) || MayMerge(call); });
      if (next != nullptr) return next;
    }
    return nullptr;
  }
  const auto may_start = [&](const Call& call, bool bounded) {
    if (Merges(call) && !MayMerge(call)) return false;
    const Caller& own = callers_.find(call.context.caller)->second;
    return own.runs == 0 || (has_place() && (!bounded || own.urgent < quarter));
  };
  for (const bool shares : {true, false}) {  // where nobody else can start, whoever can
    for (const auto& [priority, turns] : turns_) {
      const bool bounded = shares && priority > 0;
      CallPointer next = turns.Next([&](const Call& call) { return may_start(call, bounded); });
      if (next != nullptr) return next;
    }
  }
  return nullptr;
}

}  // namespace penstock
