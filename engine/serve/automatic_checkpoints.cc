#include "engine/serve/automatic_checkpoints.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "engine/serve/pipeline_errors.h"

namespace penstock {
namespace {

constexpr char kPrefix[] = "auto-";

absl::Status BeingCopied() {
  return Error(absl::StatusCode::kFailedPrecondition, "JOURNAL_BUSY", "the journal is being copied");
}

void TellCut(const std::string& pipeline, const absl::Status& cut) {
  if (cut.ok()) return;
  LogWarning("the journal could not be cut",
             {{"pipeline", pipeline}, {"reason", ReasonOf(cut)}, {"error", std::string(cut.message())}});
}

}  // namespace

std::string AutomaticCheckpoints::IdOf(int64_t sequence) { return absl::StrCat(kPrefix, sequence); }

bool AutomaticCheckpoints::IsId(const std::string& id) { return id.starts_with(kPrefix); }

absl::Status AutomaticCheckpoints::BeforeFirst(const Call& call) {
  const bool keeps_state =
      call.As<SaveCall>() != nullptr || call.As<CopyCall>() != nullptr || call.As<DeleteCall>() != nullptr;
  if (begun_ || keeps_state) return absl::OkStatus();
  // What is saved is the state before the call. Others that came before it, if any, left the state as it was.
  Point point{.sequence = call.accepted.sequence - 1};
  {
    absl::MutexLock lock(&calls_->mu);
    point.version = calls_->training.version();
  }
  return SaveBegin(std::move(point));
}

bool AutomaticCheckpoints::HasOne(const CheckpointFolder& checkpoints, const std::string& life) {
  const std::vector<CheckpointInfo> list = checkpoints.List();
  return std::any_of(list.begin(), list.end(),
                     [&](const CheckpointInfo& info) { return info.place.automatic && info.place.life == life; });
}

absl::Status AutomaticCheckpoints::SaveBegin(Point point) {
  PENSTOCK_ASSIGN_OR_RETURN(const CallRunner::WriteState write, CopyAs(std::move(point)));
  PENSTOCK_RETURN_IF_ERROR(write(nullptr).status());
  begun_ = true;
  return absl::OkStatus();
}

AutomaticCheckpoints::Write AutomaticCheckpoints::After(const Call& call) {
  if (!CallJournal::Keeps(call)) return nullptr;
  {
    absl::MutexLock lock(&held_mu_);
    if (saving_) return nullptr;
  }
  if (call.As<RestoreCall>() != nullptr) restored_ = true;
  const PipelineJournal::ReplaySize size = journal_->journal().replay_size();
  if (!restored_ && size.bytes < limits_.replay_bytes && size.run_nanos < limits_.replay_nanos) return nullptr;
  const auto tell = [name = name_](const absl::Status& saved) {
    if (saved.ok() || ReasonOf(saved) == "GRAPH_OPEN" || ReasonOf(saved) == "JOURNAL_BUSY") return;
    LogWarning("no automatic checkpoint: the journal grows on",
               {{"pipeline", name}, {"reason", ReasonOf(saved)}, {"error", std::string(saved.message())}});
  };
  absl::StatusOr<WriteAndCut> write = Copy();
  if (!write.ok()) {
    tell(write.status());
    return nullptr;
  }
  return [this, tell, write = *std::move(write)] { tell(CutLater(write)); };
}

absl::Status AutomaticCheckpoints::BeforeDeletion(const Call& call) {
  if (!restored_) return absl::OkStatus();
  const absl::Status saved = [&]() -> absl::Status {
    if (call.repeated) return absl::UnavailableError("calls are made again");  // in the middle nothing can be cut
    PENSTOCK_ASSIGN_OR_RETURN(const WriteAndCut write, Copy());
    return CutLater(write);
  }();
  if (saved.ok()) return absl::OkStatus();
  return Error(absl::StatusCode::kFailedPrecondition, "CHECKPOINT_IN_USE",
               absl::StrCat("a call of the journal restores a checkpoint, and no automatic one is behind it yet: ",
                            saved.message()))
      .With("pipeline", name_);
}

absl::Status AutomaticCheckpoints::CutLater(const WriteAndCut& write) const {
  return write(nullptr, [name = name_](const absl::Status& cut) { TellCut(name, cut); }).status();
}

absl::StatusOr<AutomaticCheckpoints::Compacted> AutomaticCheckpoints::Compact(const CancelToken* cancel) {
  if (journal_->journal().replay_size().rows == 0) return Compacted();
  absl::Status cut;
  PENSTOCK_ASSIGN_OR_RETURN(Compacted compacted, SaveAndCut(cancel, &cut));
  PENSTOCK_RETURN_IF_ERROR(cut);
  return compacted;
}

absl::Status AutomaticCheckpoints::SaveNow(const CancelToken* cancel) {
  absl::Status cut;
  PENSTOCK_RETURN_IF_ERROR(SaveAndCut(cancel, &cut).status());
  begun_ = true;
  TellCut(name_, cut);  // a replay begins with the checkpoint all the same
  return absl::OkStatus();
}

absl::StatusOr<AutomaticCheckpoints::Compacted> AutomaticCheckpoints::SaveAndCut(const CancelToken* cancel,
                                                                                 absl::Status* cut) {
  struct End {
    absl::Status cut;
    absl::Notification over;
  };
  const auto end = std::make_shared<End>();  // the journal's thread may have it longer
  PENSTOCK_ASSIGN_OR_RETURN(const WriteAndCut write, Copy());
  PENSTOCK_ASSIGN_OR_RETURN(Compacted compacted, write(cancel, [end](const absl::Status& status) {
                              end->cut = status;
                              end->over.Notify();
                            }));
  end->over.WaitForNotification();
  *cut = end->cut;
  return compacted;
}

absl::Status AutomaticCheckpoints::CheckCompact() const {
  PENSTOCK_RETURN_IF_ERROR(journal_->health());
  {
    absl::MutexLock lock(&calls_->mu);
    if (calls_->training.graphs_open()) return GraphOpen();
  }
  absl::MutexLock lock(&held_mu_);
  return holds_ > 0 ? BeingCopied() : absl::OkStatus();
}

void AutomaticCheckpoints::Hold() {
  const auto idle = [this] {
    held_mu_.AssertReaderHeld();
    return !saving_;
  };
  absl::MutexLock lock(&held_mu_);
  held_mu_.Await(absl::Condition(&idle));
  ++holds_;
}

void AutomaticCheckpoints::Release() {
  absl::MutexLock lock(&held_mu_);
  --holds_;
}

absl::StatusOr<AutomaticCheckpoints::WriteAndCut> AutomaticCheckpoints::Copy() {
  Point point;
  {
    absl::MutexLock lock(&calls_->mu);
    if (calls_->training.graphs_open()) return GraphOpen();
    point = {.sequence = calls_->training.ended_sequence(),
             .version = calls_->training.version(),
             .state = calls_->training.state().Save(clock_->NowNanos())};
  }
  const int64_t sequence = point.sequence;
  {
    absl::MutexLock lock(&held_mu_);
    if (holds_ > 0) return BeingCopied();
    saving_ = true;
  }
  const std::shared_ptr<void> saving(nullptr, [this](void*) {
    absl::MutexLock lock(&held_mu_);
    saving_ = false;
  });
  journal_->AwaitSettled();
  PENSTOCK_RETURN_IF_ERROR(journal_->health());
  PENSTOCK_ASSIGN_OR_RETURN(CallRunner::WriteState write, CopyAs(std::move(point)));
  return [this, saving, sequence, write = std::move(write)](const CancelToken* cancel, PipelineJournal::Done cut) {
    return WriteCopy(write, sequence, cancel, std::move(cut));
  };
}

absl::StatusOr<AutomaticCheckpoints::Compacted> AutomaticCheckpoints::WriteCopy(const CallRunner::WriteState& write,
                                                                                int64_t sequence,
                                                                                const CancelToken* cancel,
                                                                                PipelineJournal::Done cut) {
  Compacted compacted;
  PENSTOCK_ASSIGN_OR_RETURN(compacted.checkpoint, write(cancel));
  restored_ = false;
  const PipelineJournal::ReplaySize gone = journal_->journal().replay_size(sequence);
  compacted.gone = {.calls = gone.rows, .bytes = gone.bytes};
  journal_->journal().Cut(std::min(sequence, journal_->journal().last_sequence()), std::move(cut));
  Guarded("old checkpoints of a journal", [&] { RemoveBeyond(*checkpoints_, life_, limits_.kept); }).IgnoreError();
  return compacted;
}

absl::StatusOr<CallRunner::WriteState> AutomaticCheckpoints::CopyAs(Point point) {
  const CheckpointPlace place{
      .life = life_, .sequence = point.sequence, .version = point.version, .whole = true, .automatic = true};
  PENSTOCK_ASSIGN_OR_RETURN(CallRunner::WriteState write,
                            runner_->CopyState(IdOf(point.sequence), place, std::move(point.state)));
  return [name = name_, write = std::move(write)](const CancelToken* cancel) -> absl::StatusOr<CheckpointInfo> {
    PENSTOCK_ASSIGN_OR_RETURN(CheckpointInfo saved, write(cancel));
    LogInfo("state saved for the journal",
            {{"pipeline", name}, {"checkpoint", saved.id}, {"step", std::to_string(saved.step)}});
    return saved;
  };
}

void AutomaticCheckpoints::RemoveAll(CheckpointFolder& checkpoints, const std::string& life) {
  RemoveBeyond(checkpoints, life, 0);
}

void AutomaticCheckpoints::RemoveBeyond(CheckpointFolder& checkpoints, const std::string& life, size_t kept) {
  std::vector<CheckpointInfo> own = checkpoints.List();
  std::erase_if(own, [&](const CheckpointInfo& info) { return !info.place.automatic || info.place.life != life; });
  std::sort(own.begin(), own.end(),
            [](const CheckpointInfo& a, const CheckpointInfo& b) { return a.place.sequence > b.place.sequence; });
  for (size_t i = kept; i < own.size(); ++i) {
    if (const absl::Status removed = checkpoints.Remove(own[i].id); !removed.ok()) {
      LogWarning("can't delete an old checkpoint",
                 {{"pipeline", own[i].pipeline}, {"checkpoint", own[i].id}, {"error", std::string(removed.message())}});
    }
  }
}

}  // namespace penstock
