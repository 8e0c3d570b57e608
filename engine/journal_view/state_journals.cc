#include "engine/journal_view/state_journals.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/status_macros.h"
#include "engine/journal/journal_errors.h"

namespace penstock {

absl::StatusOr<StateJournals> StateJournals::Open(const std::string& state_dir, Clock* clock) {
  const std::string folder = state_dir + "/journal";
  if (!RealFileSystem()->Exists(folder + "/daemon.db")) {
    return InvalidField("--state-dir", "must be the state folder of a daemon with a journal", state_dir);
  }
  absl::StatusOr<std::unique_ptr<StateLock>> lock = StateLock::Take(state_dir);
  if (ReasonOf(lock.status()) == "STATE_IN_USE") {
    return Error(absl::StatusCode::kFailedPrecondition, "STATE_IN_USE",
                 "a daemon uses the state folder: leave --state-dir out, so that the daemon is asked")
        .With("path", state_dir);
  }
  PENSTOCK_RETURN_IF_ERROR(lock.status());
  StateJournals journals(*std::move(lock), folder, clock);
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<DaemonJournal> daemon, DaemonJournal::Open(folder, clock, {}));
  PENSTOCK_ASSIGN_OR_RETURN(journals.pipelines_, daemon->Pipelines());
  PENSTOCK_RETURN_IF_ERROR(daemon->Close());
  return journals;
}

absl::StatusOr<std::unique_ptr<PipelineJournal>> StateJournals::OpenPipeline(const std::string& name) const {
  for (const JournalledPipeline& pipeline : pipelines_) {
    if (pipeline.name != name) continue;
    const std::string folder = absl::StrCat(folder_, "/", pipeline.life);
    // Open() would make it.
    if (RealFileSystem()->Exists(folder)) return PipelineJournal::Open(folder, clock_, {});
    return WithValue(JournalCorrupt("the pipeline's journal is missing"), "pipeline", name);
  }
  return Error(absl::StatusCode::kNotFound, "PIPELINE_NOT_FOUND",
               absl::StrCat("the state folder has no pipeline ", name))
      .With("pipeline", name);
}

}  // namespace penstock
