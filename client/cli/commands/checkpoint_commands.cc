// penstock checkpoint save, restore, publish, list, copy, export, delete

#include <algorithm>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/cli/checkpoint_name.h"
#include "client/cli/command_table.h"
#include "client/cli/exit_code.h"
#include "client/cli/output_file.h"
#include "client/cli/pipeline_text.h"
#include "client/cli/safetensors_file.h"
#include "client/lib/durations.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

// "pipelines/gpt/checkpoints/step-200" -> "gpt".
std::string PipelineOf(const v1::Checkpoint& checkpoint) {
  const std::vector<std::string> parts = absl::StrSplit(checkpoint.name(), '/');
  return parts.size() == 4 ? parts[1] : checkpoint.name();
}

// `all`: of several pipelines, whose names are shown, with a star where the pipeline does not live.
std::string CheckpointListText(const std::vector<v1::Checkpoint>& checkpoints, bool wide, bool all = false) {
  if (checkpoints.empty()) return "no checkpoints\n";
  Table table({{"CHECKPOINT"},
               {"STEP", true},
               {"STATE"},
               {"SIZE", true},
               {"CREATED"},
               {"KEPT", false, true},
               {"MODEL", false, true},
               {"DIGEST", false, true}});
  for (const v1::Checkpoint& checkpoint : checkpoints) {
    const std::string state =
        absl::AsciiStrToLower(absl::StripPrefix(v1::CheckpointState_Name(checkpoint.state()), "CHECKPOINT_STATE_"));
    const std::string name = all ? absl::StrCat(PipelineOf(checkpoint), checkpoint.pipeline_exists() ? "/" : "*/",
                                                ShortName(checkpoint.name()))
                                 : ShortName(checkpoint.name());
    table.Add({name, absl::StrCat(checkpoint.step()), state, BytesText(static_cast<double>(checkpoint.byte_size())),
               absl::FormatTime("%Y-%m-%d %H:%M:%SZ", FromMessage(checkpoint.create_time()), absl::UTCTimeZone()),
               checkpoint.rotating() ? "rotating" : "always",
               checkpoint.has_specification() ? (checkpoint.model().empty() ? "layers" : checkpoint.model()) : "-",
               checkpoint.digest()});
  }
  return table.Text(wide);
}

// The full name of a checkpoint of a pipeline, both given short or full.
absl::StatusOr<std::string> CheckpointNameOf(const std::string& pipeline, const std::string& checkpoint) {
  const std::string folder = PipelineName(pipeline) + "/checkpoints/";
  if (!absl::StrContains(checkpoint, '/')) return folder + checkpoint;
  if (absl::StartsWith(checkpoint, folder)) return checkpoint;
  return UsageError("CHECKPOINT", absl::StrCat("must be one of ", PipelineName(pipeline), ", got ", checkpoint));
}

struct SaveOptions {
  std::string pipeline;
  std::string id;
  bool replace = false;
  int keep = 0;
};

absl::Status Save(const SaveOptions& options, Session& session) {
  v1::SaveCheckpointRequest request;
  request.set_pipeline(PipelineName(options.pipeline));
  request.set_checkpoint_id(options.id);
  request.set_replace(options.replace);
  request.set_keep(options.keep);
  request.set_request_id(session.options().request_id);
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  PENSTOCK_ASSIGN_OR_RETURN(const v1::Checkpoint checkpoint, client->SaveCheckpoint(request));
  session.Print({MessageToJson(checkpoint),
                 {},
                 {checkpoint.name()},
                 CheckpointListText({checkpoint}, false),
                 CheckpointListText({checkpoint}, true)});
  session.Say(absl::StrCat("saved step ", checkpoint.step(), "; next: penstock checkpoint restore ",
                           ShortName(options.pipeline), " ", ShortName(checkpoint.name())));
  return absl::OkStatus();
}

struct CopyOptions {
  std::string source;
  std::string pipeline;
  std::string id;
};

absl::Status Copy(const CopyOptions& options, Session& session) {
  v1::CopyCheckpointRequest request;
  PENSTOCK_ASSIGN_OR_RETURN(*request.mutable_source(), CheckpointName(options.source, "SOURCE"));
  request.set_destination(PipelineName(options.pipeline));
  request.set_checkpoint_id(options.id);
  request.set_request_id(session.options().request_id);
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  PENSTOCK_ASSIGN_OR_RETURN(const v1::Checkpoint checkpoint, client->CopyCheckpoint(request));
  session.Print({MessageToJson(checkpoint),
                 {},
                 {checkpoint.name()},
                 CheckpointListText({checkpoint}, false),
                 CheckpointListText({checkpoint}, true)});
  session.Say(absl::StrCat("copied step ", checkpoint.step(), "; next: penstock checkpoint restore ",
                           ShortName(options.pipeline), " ", ShortName(checkpoint.name())));
  return absl::OkStatus();
}

struct ExportOptions {
  std::string source;
  std::string to;
  bool optimizer_state = false;
};

absl::Status Export(const ExportOptions& options, Session& session) {
  v1::ReadParametersRequest request;
  PENSTOCK_ASSIGN_OR_RETURN(*request.mutable_checkpoint(), CheckpointName(options.source, "SOURCE"));
  request.set_include_optimizer_state(options.optimizer_state);
  OutputFile file(options.to, session.out(), session.stop());
  PENSTOCK_RETURN_IF_ERROR(file.Open());
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  PENSTOCK_ASSIGN_OR_RETURN(const ParameterDownload content, client->ReadParameters(request));
  const std::string step = absl::StrCat(content.step);
  PENSTOCK_RETURN_IF_ERROR(
      file.Append(WriteSafetensors(content.tensors, {{"checkpoint", request.checkpoint()}, {"step", step}})));
  PENSTOCK_RETURN_IF_ERROR(file.Commit());
  session.Say(absl::StrCat("exported ", content.tensors.size(), " tensors of step ", step));
  return absl::OkStatus();
}

struct ListedCheckpoints {
  std::string pipeline;
  bool all = false;
};

absl::Status ListCheckpoints(const ListedCheckpoints& options, Session& session) {
  if (options.all && !options.pipeline.empty()) return UsageError("PIPELINE", "give a pipeline or --all, not both");
  if (!options.all && options.pipeline.empty()) return UsageError("PIPELINE", "missing; or give --all");
  const std::string pipeline = options.all ? "-" : options.pipeline;
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<v1::Checkpoint> checkpoints, client->ListCheckpoints(pipeline));
  Document document;
  for (const v1::Checkpoint& checkpoint : checkpoints) {
    document.lines.push_back(MessageToJson(checkpoint));
    document.names.push_back(checkpoint.name());
  }
  document.json["checkpoints"] = document.lines;
  document.text = CheckpointListText(checkpoints, false, options.all);
  document.wide = CheckpointListText(checkpoints, true, options.all);
  session.Print(document);
  const bool deleted = std::any_of(checkpoints.begin(), checkpoints.end(),
                                   [](const v1::Checkpoint& checkpoint) { return !checkpoint.pipeline_exists(); });
  if (options.all && deleted) {
    session.Say(
        "*: the pipeline is deleted; next: penstock pipeline create NAME --from-checkpoint PIPELINE/CHECKPOINT");
  }
  return absl::OkStatus();
}

struct DeleteOptions {
  std::string pipeline;
  std::string checkpoint;
  bool yes = false;
};

absl::Status Delete(const DeleteOptions& options, Session& session) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::string name, CheckpointNameOf(options.pipeline, options.checkpoint));
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  PENSTOCK_RETURN_IF_ERROR(session.Confirm(options.yes, "Delete " + name + "?"));
  v1::DeleteCheckpointRequest request;
  request.set_name(name);
  request.set_pipeline(PipelineName(options.pipeline));
  request.set_request_id(session.options().request_id);
  PENSTOCK_RETURN_IF_ERROR(client->DeleteCheckpoint(request));
  session.Print({Json{{"name", name}}, {}, {name}, "", ""});
  session.Say(absl::StrCat("deleted ", name, "; next: penstock checkpoint list ", ShortName(options.pipeline)));
  return absl::OkStatus();
}

struct RestoreOptions {
  std::string pipeline;
  std::string checkpoint;
  bool force = false;
  bool yes = false;
  bool dry_run = false;
};

absl::Status Restore(const RestoreOptions& options, Session& session) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::string name, CheckpointNameOf(options.pipeline, options.checkpoint));
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  if (options.dry_run) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::vector<v1::Checkpoint> checkpoints, client->ListCheckpoints(options.pipeline));
    for (const v1::Checkpoint& checkpoint : checkpoints) {
      if (checkpoint.name() != name) continue;
      session.Say(absl::StrCat("would restore step ", checkpoint.step(), "; nothing was changed"));
      return absl::OkStatus();
    }
    return UsageError("CHECKPOINT", "there is no " + name);
  }
  PENSTOCK_RETURN_IF_ERROR(
      session.Confirm(options.yes, "Replace the weights of " + PipelineName(options.pipeline) + " by " + name + "?"));
  v1::RestoreCheckpointRequest request;
  request.set_name(name);
  request.set_pipeline(PipelineName(options.pipeline));
  request.set_force(options.force);
  request.set_request_id(session.options().request_id);
  PENSTOCK_ASSIGN_OR_RETURN(const v1::RestoreCheckpointResponse response, client->RestoreCheckpoint(request));
  session.Print({MessageToJson(response), {}, {name}, "", ""});
  session.Say(absl::StrCat("restored step ", response.step(), "; next: penstock train ", ShortName(options.pipeline),
                           " --text FILE"));
  return absl::OkStatus();
}

struct PublishOptions {
  std::string pipeline;
  std::string checkpoint;
  bool live = false;
};

absl::Status Publish(const PublishOptions& options, Session& session) {
  if (options.live && !options.checkpoint.empty())
    return UsageError("CHECKPOINT", "give a checkpoint or --live, not both");
  if (!options.live && options.checkpoint.empty()) return UsageError("CHECKPOINT", "missing; or give --live");
  v1::PublishCheckpointRequest request;
  request.set_pipeline(PipelineName(options.pipeline));
  if (!options.live) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::string name, CheckpointNameOf(options.pipeline, options.checkpoint));
    request.set_checkpoint_id(ShortName(name));
  }
  request.set_request_id(session.options().request_id);
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  PENSTOCK_ASSIGN_OR_RETURN(const v1::Pipeline pipeline, client->PublishCheckpoint(request));
  session.Print(
      {MessageToJson(pipeline), {}, {pipeline.name()}, PipelineText(pipeline, false), PipelineText(pipeline, true)});
  if (options.live) {
    session.Say("inference sees the live weights");
  } else {
    session.Say(absl::StrCat("inference sees step ", pipeline.published().step(), ", version ",
                             pipeline.published().version(), "; back: penstock checkpoint publish ",
                             ShortName(options.pipeline), " --live"));
  }
  return absl::OkStatus();
}

}  // namespace

void AddCheckpointCommands(CommandTable& table) {
  CLI::App* group = table.Add(table.root(), "checkpoint",
                              "Save, restore, publish, list, copy, export and delete the state of a pipeline",
                              "penstock checkpoint save gpt\npenstock checkpoint list gpt");

  CLI::App* save = table.Add(group, "save", "Save weights, optimizer state and step",
                             "penstock checkpoint save gpt\n"
                             "penstock checkpoint save gpt --name latest --replace\n"
                             "penstock checkpoint save gpt --keep 3");
  auto saved = std::make_shared<SaveOptions>();
  save->add_option("PIPELINE", saved->pipeline, "Name of the pipeline")->required();
  save->add_option("--name", saved->id, "Name of the checkpoint; unset: step-N")->type_name("NAME");
  save->add_flag("--replace", saved->replace, "Replace a checkpoint of this name; one of both is whole at any moment");
  save->add_option("--keep", saved->keep, "Delete the oldest of those that were saved with --keep beyond this number")
      ->type_name("N");
  table.Run(save, [saved](Session& session) { return Save(*saved, session); });

  CLI::App* restore = table.Add(group, "restore", "Go back to a checkpoint; asks first, or takes --yes",
                                "penstock checkpoint restore gpt step-200 --yes");
  auto options = std::make_shared<RestoreOptions>();
  restore->add_option("PIPELINE", options->pipeline, "Name of the pipeline")->required();
  restore->add_option("CHECKPOINT", options->checkpoint, "Name of the checkpoint")->required();
  restore->add_flag("--force", options->force, "Discard gradients that are accumulated");
  restore->add_flag("--yes", options->yes, "Do not ask");
  restore->add_flag("--dry-run", options->dry_run, "Say what would be restored");
  table.Run(restore, [options](Session& session) { return Restore(*options, session); });

  CLI::App* publish = table.Add(
      group, "publish", "Answer inference from a checkpoint while training goes on; --live: from the live weights",
      "penstock checkpoint publish gpt step-200\npenstock checkpoint publish gpt --live");
  auto published = std::make_shared<PublishOptions>();
  publish->add_option("PIPELINE", published->pipeline, "Name of the pipeline")->required();
  publish->add_option("CHECKPOINT", published->checkpoint, "Name of the checkpoint");
  publish->add_flag("--live", published->live, "Back to the live weights");
  table.Run(publish, [published](Session& session) { return Publish(*published, session); });

  CLI::App* list = table.Add(group, "list", "List the checkpoints of a pipeline, living or deleted, or of all",
                             "penstock checkpoint list gpt -o wide\npenstock checkpoint list --all");
  auto listed = std::make_shared<ListedCheckpoints>();
  list->add_option("PIPELINE", listed->pipeline, "Name of the pipeline");
  list->add_flag("--all", listed->all, "Of all pipelines, those of deleted ones too");
  table.Run(list, [listed](Session& session) { return ListCheckpoints(*listed, session); });

  CLI::App* copy = table.Add(group, "copy", "Copy a checkpoint to another pipeline of the same model",
                             "penstock checkpoint copy gpt/step-200 tuned\n"
                             "penstock checkpoint copy gpt/step-200 tuned --name start");
  auto copied = std::make_shared<CopyOptions>();
  copy->add_option("SOURCE", copied->source, "The checkpoint: PIPELINE/CHECKPOINT; its pipeline may be deleted")
      ->required();
  copy->add_option("PIPELINE", copied->pipeline, "Name of the pipeline that gets it")->required();
  copy->add_option("--name", copied->id, "Name of the copy; unset: as the source")->type_name("NAME");
  table.Run(copy, [copied](Session& session) { return Copy(*copied, session); });

  CLI::App* exported = table.Add(group, "export", "Write the tensors of a checkpoint to a safetensors file",
                                 "penstock checkpoint export gpt/step-200 --to gpt.safetensors");
  auto to = std::make_shared<ExportOptions>();
  exported->add_option("SOURCE", to->source, "The checkpoint: PIPELINE/CHECKPOINT; its pipeline may be deleted")
      ->required();
  exported->add_option("--to", to->to, "A safetensors file; - is stdout")->required()->type_name("FILE");
  exported->add_flag("--optimizer-state", to->optimizer_state, "The optimizer's state too");
  table.Run(exported, [to](Session& session) { return Export(*to, session); });

  CLI::App* remove = table.Add(group, "delete", "Delete a checkpoint; asks first, or takes --yes",
                               "penstock checkpoint delete gpt step-200 --yes");
  auto deleted = std::make_shared<DeleteOptions>();
  remove->add_option("PIPELINE", deleted->pipeline, "Name of the pipeline")->required();
  remove->add_option("CHECKPOINT", deleted->checkpoint, "Name of the checkpoint")->required();
  remove->add_flag("--yes", deleted->yes, "Do not ask");
  table.Run(remove, [deleted](Session& session) { return Delete(*deleted, session); });
}

}  // namespace penstock
