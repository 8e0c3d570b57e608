// penstock journal show, verify, compact, backup; penstock history

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/command_table.h"
#include "client/cli/exit_code.h"
#include "client/cli/journal_text.h"
#include "client/cli/number_checks.h"
#include "client/cli/pipeline_text.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/journal_view/journal_messages.h"
#include "engine/journal_view/state_journals.h"

namespace penstock {
namespace {

struct JournalShowOptions {
  std::string pipeline;
  std::string state_dir;
  int64_t limit = 50;
  bool oldest_first = false;
};

absl::StatusOr<std::vector<v1::JournalCall>> CallsOf(const JournalShowOptions& options, Session& session) {
  if (options.state_dir.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
    return client->ListJournalCalls(options.pipeline, !options.oldest_first, options.limit);
  }
  PENSTOCK_ASSIGN_OR_RETURN(const StateJournals state, StateJournals::Open(options.state_dir, session.clock()));
  PENSTOCK_ASSIGN_OR_RETURN(const auto journal, state.OpenPipeline(ShortName(options.pipeline)));
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<ListedCall> listed,
                            journal->List(0, !options.oldest_first, options.limit));
  std::vector<v1::JournalCall> calls;
  for (const ListedCall& call : listed) {
    PENSTOCK_ASSIGN_OR_RETURN(v1::JournalCall message, MessageOf(call));
    calls.push_back(std::move(message));
  }
  return calls;
}

absl::Status Show(const JournalShowOptions& options, Session& session) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<v1::JournalCall> calls, CallsOf(options, session));
  session.Print(JournalCallDocument(calls));
  return absl::OkStatus();
}

struct JournalVerifyOptions {
  std::string pipeline;
  std::string state_dir;
};

absl::StatusOr<std::vector<VerifiedJournal>> VerifyFiles(const JournalVerifyOptions& options, Session& session) {
  PENSTOCK_ASSIGN_OR_RETURN(const StateJournals state, StateJournals::Open(options.state_dir, session.clock()));
  std::vector<std::string> names = {ShortName(options.pipeline)};
  if (options.pipeline.empty()) {
    names.clear();
    for (const JournalledPipeline& pipeline : state.pipelines()) names.push_back(pipeline.name);
  }
  std::vector<VerifiedJournal> verified;
  for (const std::string& name : names) {
    const auto journal = state.OpenPipeline(name);
    if (!journal.ok() && !absl::IsDataLoss(journal.status())) return journal.status();
    const JournalCheck check = journal.ok() ? (*journal)->Check() : JournalCheck{.damage = journal.status()};
    verified.push_back({PipelineName(name), MessageOf(check)});
  }
  return verified;
}

absl::StatusOr<std::vector<VerifiedJournal>> VerifyServed(const JournalVerifyOptions& options, Session& session) {
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  std::vector<std::string> names = {PipelineName(options.pipeline)};
  if (options.pipeline.empty()) {
    names.clear();
    PENSTOCK_ASSIGN_OR_RETURN(const std::vector<v1::Pipeline> pipelines, client->ListPipelines());
    for (const v1::Pipeline& pipeline : pipelines) names.push_back(pipeline.name());
  }
  std::vector<VerifiedJournal> verified;
  for (const std::string& name : names) {
    absl::StatusOr<v1::VerifyJournalResponse> found = client->VerifyJournal(name);
    if (absl::IsDataLoss(found.status())) {  // its pipeline could not be made again
      const std::string damage(found.status().message());
      found.emplace().set_damage(damage);
    }
    PENSTOCK_RETURN_IF_ERROR(found.status());
    verified.push_back({name, *std::move(found)});
  }
  return verified;
}

absl::Status Verify(const JournalVerifyOptions& options, Session& session) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<VerifiedJournal> verified,
                            options.state_dir.empty() ? VerifyServed(options, session) : VerifyFiles(options, session));
  session.Print(VerifiedDocument(verified));
  for (const VerifiedJournal& journal : verified) {
    if (journal.found.damage().empty()) continue;
    return Error(absl::StatusCode::kDataLoss, "JOURNAL_CORRUPT", journal.found.damage())
        .With("pipeline", ShortName(journal.pipeline));
  }
  return absl::OkStatus();
}

absl::Status Compact(const std::string& pipeline, Session& session) {
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  PENSTOCK_ASSIGN_OR_RETURN(const v1::CompactJournalResponse gone, client->CompactJournal(pipeline));
  Document document{.json = MessageToJson(gone)};
  if (!gone.checkpoint().empty()) document.names = {gone.checkpoint()};
  session.Print(document);
  session.Say(gone.calls() == 0
                  ? "the journal holds no calls that a restart would make again"
                  : absl::StrCat(gone.calls(), " calls and ", BytesText(static_cast<double>(gone.bytes())),
                                 " are gone from the journal: ", ShortName(gone.checkpoint()), " holds their effect"));
  return absl::OkStatus();
}

struct BackupOptions {
  std::string folder;
  bool named = false;
};

absl::Status Backup(const BackupOptions& options, Session& session) {
  v1::BackUpJournalRequest request;
  request.set_folder(options.folder);
  request.set_named_checkpoints(options.named);
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  PENSTOCK_ASSIGN_OR_RETURN(const v1::BackUpJournalResponse copy, client->BackUpJournal(request));
  session.Print(BackupDocument(copy));
  session.Say(absl::StrCat("copied to ", copy.folder(), "; next: penstockd --state-dir ", copy.folder()));
  if (copy.left_out_size() > 0) session.set_partial();
  return absl::OkStatus();
}

struct HistoryOptions {
  std::string pipeline;
  bool csv = false;
};

absl::Status History(const HistoryOptions& options, Session& session) {
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<v1::HistoryStep> steps, client->GetHistory(options.pipeline));
  if (options.csv) {
    session.out() << HistoryCsv(steps);
  } else {
    session.Print(HistoryDocument(steps));
  }
  return absl::OkStatus();
}

constexpr char kStateDir[] = "Read the files of a state folder that no daemon uses";

}  // namespace

void AddJournalCommands(CommandTable& table) {
  CLI::App* group = table.Add(table.root(), "journal", "Show, verify, empty and copy what makes pipelines durable",
                              "penstock journal show gpt\npenstock journal backup /backup/today");

  CLI::App* show = table.Add(group, "show", "List the calls of a pipeline's journal, the newest first",
                             "penstock journal show gpt --limit 10 -o wide\n"
                             "penstock journal show gpt --state-dir /var/lib/penstock");
  auto shown = std::make_shared<JournalShowOptions>();
  show->add_option("PIPELINE", shown->pipeline, "Name of the pipeline")->required();
  show->add_option("--limit", shown->limit, "Most calls that are listed")
      ->type_name("N")
      ->check(Positive())
      ->capture_default_str();
  show->add_flag("--oldest-first", shown->oldest_first, "Begin with the oldest");
  show->add_option("--state-dir", shown->state_dir, kStateDir)->type_name("DIR");
  table.Run(show, [shown](Session& session) { return Show(*shown, session); });

  CLI::App* verify = table.Add(group, "verify", "Compare a journal, or all, with its checksums",
                               "penstock journal verify\n"
                               "penstock journal verify gpt --state-dir /var/lib/penstock");
  auto verified = std::make_shared<JournalVerifyOptions>();
  verify->add_option("PIPELINE", verified->pipeline, "Name of the pipeline; unset: all");
  verify->add_option("--state-dir", verified->state_dir, kStateDir)->type_name("DIR");
  table.Run(verify, [verified](Session& session) { return Verify(*verified, session); });

  CLI::App* compact =
      table.Add(group, "compact", "Save a checkpoint, and empty the journal up to it", "penstock journal compact gpt");
  auto compacted = std::make_shared<std::string>();
  compact->add_option("PIPELINE", *compacted, "Name of the pipeline")->required();
  table.Run(compact, [compacted](Session& session) { return Compact(*compacted, session); });

  CLI::App* backup = table.Add(group, "backup", "Copy all pipelines, so that another daemon can go on with them",
                               "penstock journal backup /backup/today\n"
                               "penstockd --state-dir /backup/today --listen 127.0.0.1:8480");
  auto copied = std::make_shared<BackupOptions>();
  backup->add_option("FOLDER", copied->folder, "A folder on the daemon's machine that does not exist")->required();
  backup->add_flag("--named-checkpoints", copied->named, "Copy the checkpoints that callers have saved, too");
  table.Run(backup, [copied](Session& session) { return Backup(*copied, session); });

  CLI::App* history = table.Add(table.root(), "history", "List loss, norm and rate of the steps of a pipeline",
                                "penstock history gpt\npenstock history gpt --csv > gpt.csv");
  auto listed = std::make_shared<HistoryOptions>();
  history->add_option("PIPELINE", listed->pipeline, "Name of the pipeline")->required();
  history->add_flag("--csv", listed->csv, "As comma-separated values, with all digits");
  table.Run(history, [listed](Session& session) { return History(*listed, session); });
}

}  // namespace penstock
