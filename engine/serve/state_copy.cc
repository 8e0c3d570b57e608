#include "engine/serve/state_copy.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "engine/base/cancel_token.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/checkpoint_store.h"
#include "engine/journal/blobs.h"
#include "engine/serve/call_records.h"
#include "engine/serve/pipeline_table.h"
#include "engine/wire/tensor_header.h"

namespace penstock {

namespace {

// So that what stands in a copy has paths that Linux takes, while it is being made, too.
constexpr size_t kNameBytes = 200;
constexpr size_t kPathBytes = 2000;

}  // namespace

absl::StatusOr<CopiedState> StateCopy::Run() {
  PENSTOCK_RETURN_IF_ERROR(CheckFolder());
  PENSTOCK_RETURN_IF_ERROR(RealFileSystem()->RemoveAll(unfinished_));
  absl::Cleanup give_up = [this] { RealFileSystem()->RemoveAll(unfinished_).IgnoreError(); };
  PENSTOCK_ASSIGN_OR_RETURN(CopiedState state, CopyAll());
  PENSTOCK_RETURN_IF_ERROR(RealFileSystem()->Rename(unfinished_, folder_));
  std::move(give_up).Cancel();
  LogInfo("the state is copied", {{"pipelines", absl::StrCat(state.pipelines.size())}});
  return state;
}

absl::Status StateCopy::CheckWanted() const { return cancel_->cancelled() ? CancelledCall() : absl::OkStatus(); }

absl::Status StateCopy::CheckFolder() const {
  if (folder_.empty() || folder_.front() != '/' || folder_.back() == '/') {
    return InvalidField("folder", "must be an absolute path without a slash at its end", Shortened(folder_));
  }
  if (folder_.find('\0') != std::string::npos) return InvalidField("folder", "must hold no NUL", Shortened(folder_));
  if (const size_t bytes = folder_.size() - folder_.rfind('/') - 1; bytes > kNameBytes || folder_.size() > kPathBytes) {
    return InvalidField(
        "folder", absl::StrCat("must have at most ", kPathBytes, " bytes, and ", kNameBytes, " behind its last slash"),
        Shortened(folder_));
  }
  // A link that leads nowhere exists, too.
  if (RealFileSystem()->Info(folder_).ok()) return InvalidField("folder", "must not exist", Shortened(folder_));
  const std::string above = folder_.substr(0, std::max<size_t>(folder_.rfind('/'), 1));
  if (RealFileSystem()->List(above).ok()) return absl::OkStatus();
  return InvalidField("folder", "must stand in a folder that exists", Shortened(folder_));
}

absl::StatusOr<CopiedState> StateCopy::CopyAll() const {
  FileSystem* const files = RealFileSystem();
  const size_t slash = unfinished_.rfind('/');
  const absl::Status made =
      Blobs::MakeDurableFolder(files, unfinished_.substr(0, slash), unfinished_.substr(slash + 1));
  if (absl::IsResourceExhausted(made)) return made;
  if (!made.ok()) {
    return InvalidField("folder", absl::StrCat("must stand where the daemon may write (", made.message(), ")"),
                        Shortened(folder_));
  }
  for (const char* name : {"journal", "pipelines"}) {
    PENSTOCK_RETURN_IF_ERROR(Blobs::MakeDurableFolder(files, unfinished_, name));
  }
  const std::string journals = unfinished_ + "/journal";
  PENSTOCK_RETURN_IF_ERROR(parts_.journal->BackUp(journals));
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<DaemonJournal> copy, DaemonJournal::Open(journals, parts_.clock, {}));
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<JournalledPipeline> rows, copy->Pipelines());
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<JournalledPublication> publications, copy->Publications());
  std::map<std::string, std::string> published;  // checkpoints, by life
  for (const JournalledPublication& one : publications) published[one.life] = one.checkpoint;
  CopiedState state;
  for (const JournalledPipeline& row : rows) {
    PENSTOCK_RETURN_IF_ERROR(CheckWanted());
    if (const absl::Status copied = CopyOne(row, published[row.life], copy.get(), &state); !copied.ok()) {
      return WithValue(copied, "pipeline", row.name);
    }
  }
  if (named_) PENSTOCK_RETURN_IF_ERROR(CopyNamed(state));
  PENSTOCK_RETURN_IF_ERROR(copy->Close());
  // Handles of the copy are told from those of the daemon by a higher number.
  PENSTOCK_ASSIGN_OR_RETURN(const std::string epoch, files->Read(parts_.state_dir + "/epoch"));
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, files->Create(unfinished_ + "/epoch.new"));
  PENSTOCK_RETURN_IF_ERROR(file->Append(epoch));
  PENSTOCK_RETURN_IF_ERROR(file->Sync());
  PENSTOCK_RETURN_IF_ERROR(file->Close());
  PENSTOCK_RETURN_IF_ERROR(files->Rename(unfinished_ + "/epoch.new", unfinished_ + "/epoch"));
  return state;
}

absl::Status StateCopy::CopyOne(const JournalledPipeline& row, const std::string& published, DaemonJournal* copy,
                                CopiedState* state) const {
  const auto stands = [&] {
    const absl::StatusOr<PipelineEntry> entry = parts_.pipelines->Get(row.name);
    return entry.ok() && entry->life == row.life && entry->state != PipelineEntry::State::kDeleting;
  };
  const absl::StatusOr<PipelineEntry> entry = parts_.pipelines->Get(row.name);
  if (!entry.ok() || !stands()) return copy->Write({.remove = row.name});
  if (entry->state == PipelineEntry::State::kCreating) {
    return Error(absl::StatusCode::kFailedPrecondition, "PIPELINE_NOT_READY", "the pipeline is being made");
  }
  if (entry->state == PipelineEntry::State::kUnloading) {
    return Error(absl::StatusCode::kFailedPrecondition, "PIPELINE_NOT_READY", "the pipeline is being unloaded");
  }
  const bool unloaded = entry->state == PipelineEntry::State::kUnloaded;
  if (entry->pipeline == nullptr && !unloaded) {
    state->left_out.push_back({row.name, entry->error});
    return copy->Write({.remove = row.name});
  }
  absl::StatusOr<CopiedState::Copied> copied =
      unloaded ? CopyUnloaded(row, published) : CopyPipeline(row, published, *entry->pipeline);
  if (copied.ok()) {
    state->pipelines.push_back(*std::move(copied));
    return absl::OkStatus();
  }
  if (stands()) return copied.status();
  // It was deleted meanwhile.
  PENSTOCK_RETURN_IF_ERROR(RealFileSystem()->RemoveAll(absl::StrCat(unfinished_, "/journal/", row.life)));
  return copy->Write({.remove = row.name});
}

absl::StatusOr<CopiedState::Copied> StateCopy::CopyPipeline(const JournalledPipeline& row, const std::string& published,
                                                            const ServedPipeline& pipeline) const {
  pipeline.HoldJournal();
  const absl::Cleanup release = [&pipeline] { pipeline.ReleaseJournal(); };
  return CopyJournal(row, published, pipeline.ListCheckpoints(), pipeline.journal()->journal());
}

// Nobody else has its journal open; a load that comes meanwhile is refused.
absl::StatusOr<CopiedState::Copied> StateCopy::CopyUnloaded(const JournalledPipeline& row,
                                                            const std::string& published) const {
  const std::string folder = absl::StrCat(parts_.state_dir, "/journal/", row.life);
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<PipelineJournal> journal,
                            PipelineJournal::Open(folder, parts_.clock, parts_.options));
  const std::shared_ptr<CheckpointFolder> checkpoints = parts_.checkpoints->FindFolder(row.name);
  const std::vector<CheckpointInfo> stood =
      checkpoints == nullptr ? std::vector<CheckpointInfo>() : checkpoints->List();
  return CopyJournal(row, published, stood, *journal);
}

absl::StatusOr<CopiedState::Copied> StateCopy::CopyJournal(const JournalledPipeline& row, const std::string& published,
                                                           const std::vector<CheckpointInfo>& stood,
                                                           PipelineJournal& journal) const {
  const std::string folder = absl::StrCat(unfinished_, "/journal/", row.life);
  PENSTOCK_RETURN_IF_ERROR(journal.BackUp(folder));
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<PipelineJournal> copy,
                            PipelineJournal::Open(folder, parts_.clock, parts_.options));
  CopiedState::Copied copied{.pipeline = row.name, .sequence = copy->last_sequence()};
  PENSTOCK_ASSIGN_OR_RETURN(copied.checkpoints, CopyCheckpoints(row, *copy, stood, published));
  PENSTOCK_RETURN_IF_ERROR(copy->Close());
  return copied;
}

absl::StatusOr<int64_t> StateCopy::CopyCheckpoints(const JournalledPipeline& row, PipelineJournal& journal,
                                                   const std::vector<CheckpointInfo>& stood,
                                                   const std::string& published) const {
  const std::shared_ptr<CheckpointFolder> folder = parts_.checkpoints->FindFolder(row.name);
  if (folder == nullptr) return 0;
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<std::string> needed, Restored(journal));
  needed.push_back(published);
  PENSTOCK_ASSIGN_OR_RETURN(const std::string into, MakeCheckpoints(row.name));
  int64_t copied = 0;
  bool begins = journal.cut_sequence() == 0;
  for (const CheckpointInfo& info : folder->List()) {
    const bool own = info.place.life == row.life;
    // The numbers of some calls stand in no journal: those of reads.
    const bool newer = own && info.place.sequence > journal.last_sequence() &&
                       std::none_of(stood.begin(), stood.end(), [&](const CheckpointInfo& one) {
                         return one.id == info.id && one.place.sequence == info.place.sequence;
                       });
    if (!info.damage.empty() || newer) continue;
    const bool base = own && info.place.whole && info.place.sequence >= journal.cut_sequence();
    const bool wanted =
        info.place.automatic ? base : named_ || std::find(needed.begin(), needed.end(), info.id) != needed.end();
    if (!wanted) continue;
    PENSTOCK_RETURN_IF_ERROR(CheckWanted());
    const absl::Status written = folder->CopyTo(info.id, into);
    if (ReasonOf(written) == "CHECKPOINT_NOT_FOUND") continue;  // it was deleted meanwhile
    PENSTOCK_RETURN_IF_ERROR(written);
    begins |= base;
    ++copied;
  }
  if (begins) return copied;
  return Error(absl::StatusCode::kDataLoss, "CHECKPOINT_CORRUPT",
               absl::StrCat("the journal begins behind call ", journal.cut_sequence(),
                            ", and no checkpoint that has its effect is whole"));
}

absl::StatusOr<std::vector<std::string>> StateCopy::Restored(PipelineJournal& journal) const {
  std::vector<std::string> restored;
  PENSTOCK_RETURN_IF_ERROR(journal.Read(0, [&](const CallRow& row) -> absl::Status {
    if (row.method != "RestoreCheckpoint") return absl::OkStatus();
    PENSTOCK_ASSIGN_OR_RETURN(const RepeatedCall call, parts_.records->ReadCall(row.method, row.parameters, {}));
    if (const auto* restore = std::get_if<RestoreCall>(&call.request)) restored.push_back(restore->id);
    return absl::OkStatus();
  }));
  return restored;
}

absl::Status StateCopy::CopyNamed(const CopiedState& state) const {
  for (const CheckpointInfo& info : parts_.checkpoints->List("", "", std::numeric_limits<size_t>::max())) {
    const bool copied = std::any_of(state.pipelines.begin(), state.pipelines.end(),
                                    [&](const CopiedState::Copied& one) { return one.pipeline == info.pipeline; });
    if (copied || info.place.automatic || !info.damage.empty()) continue;
    PENSTOCK_RETURN_IF_ERROR(CheckWanted());
    PENSTOCK_ASSIGN_OR_RETURN(const std::string into, MakeCheckpoints(info.pipeline));
    const absl::Status written = parts_.checkpoints->FindFolder(info.pipeline)->CopyTo(info.id, into);
    if (ReasonOf(written) != "CHECKPOINT_NOT_FOUND") PENSTOCK_RETURN_IF_ERROR(written);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> StateCopy::MakeCheckpoints(const std::string& pipeline) const {
  const std::string above = unfinished_ + "/pipelines";
  PENSTOCK_RETURN_IF_ERROR(Blobs::MakeDurableFolder(RealFileSystem(), above, pipeline));
  PENSTOCK_RETURN_IF_ERROR(
      Blobs::MakeDurableFolder(RealFileSystem(), absl::StrCat(above, "/", pipeline), "checkpoints"));
  return absl::StrCat(above, "/", pipeline, "/checkpoints");
}

}  // namespace penstock
