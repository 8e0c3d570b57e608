// penstock pipeline create, plan, get, list, update, unload, load, delete, discard; penstock plan

#include <memory>

#include "absl/strings/str_cat.h"
#include "client/cli/byte_model.h"
#include "client/cli/checkpoint_name.h"
#include "client/cli/command_table.h"
#include "client/cli/creation_watch.h"
#include "client/cli/exit_code.h"
#include "client/cli/help_text.h"
#include "client/cli/optimizer_options.h"
#include "client/cli/pipeline_spec_options.h"
#include "client/cli/pipeline_text.h"
#include "client/cli/tensor_file.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

struct CreateOptions {
  std::string name;
  PipelineSpecOptions spec;
  std::string sample;           // a file
  std::string from_checkpoint;  // PIPELINE/CHECKPOINT, or a full name
  bool exist_ok = false;
  bool dry_run = false;
};

Document PipelineDocument(const v1::Pipeline& pipeline) {
  return {MessageToJson(pipeline), {}, {pipeline.name()}, PipelineText(pipeline, false), PipelineText(pipeline, true)};
}

// The tensors of a file by the names of the model's inputs, and `target`.
absl::Status ReadSample(const std::string& path, Session& session, v1::PlanningSample* sample) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<HostTensor> tensors, ReadTensorFile(path, session));
  for (const HostTensor& tensor : tensors) {
    v1::Input* input = tensor.name() == "target" ? sample->mutable_target() : sample->add_inputs();
    input->set_name(tensor.name());
    *input->mutable_tensor() = tensor.ToMessage();
  }
  return absl::OkStatus();
}

void AddSampleOption(CLI::App* command, std::string* path) {
  command
      ->add_option("--sample", *path,
                   "Measure with a batch of your own: a safetensors or .npz file with the model's inputs by name, and "
                   "`target` if you like")
      ->type_name("FILE");
}

absl::StatusOr<v1::Pipeline> CreateAndShow(const v1::CreatePipelineRequest& request, Session& session,
                                           PipelineClient& client) {
  if (request.validate_only()) return client.CreatePipeline(request);
  const CreationWatch watch(session, client, request.pipeline_id());
  return client.CreatePipeline(request);
}

absl::Status Create(const CreateOptions& options, Session& session) {
  v1::CreatePipelineRequest request;
  const bool from_checkpoint = !options.from_checkpoint.empty();
  PENSTOCK_ASSIGN_OR_RETURN(*request.mutable_spec(),
                            BuildPipelineSpec(options.spec, session, /*needs_model=*/!from_checkpoint));
  if (from_checkpoint) {
    if (options.spec.dynamic_batching == false) {
      return UsageError("--dynamic-batching",
                        "can't take back what the specification of --from-checkpoint says, got false");
    }
    PENSTOCK_ASSIGN_OR_RETURN(*request.mutable_from_checkpoint(),
                              CheckpointName(options.from_checkpoint, "--from-checkpoint"));
  }
  if (!options.sample.empty()) {
    PENSTOCK_RETURN_IF_ERROR(ReadSample(options.sample, session, request.mutable_sample()));
  }
  request.set_exist_ok(options.exist_ok);
  request.set_pipeline_id(ShortName(options.name));
  request.set_validate_only(options.dry_run);
  request.set_request_id(session.options().request_id);
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  PENSTOCK_ASSIGN_OR_RETURN(const v1::Pipeline pipeline, CreateAndShow(request, session, *client));
  const std::string name = ShortName(options.name);
  if (options.dry_run) {
    session.Print({MessageToJson(pipeline),
                   {},
                   {pipeline.name()},
                   PlannedText(pipeline.spec().model(), pipeline.plan(), false),
                   PlannedText(pipeline.spec().model(), pipeline.plan(), true)});
    session.Say("nothing was created; next: penstock pipeline create " + name + " ...");
    return absl::OkStatus();
  }
  session.Print(PipelineDocument(pipeline));
  const bool takes_text = AsByteModel(pipeline, 0).ok();
  session.Say(
      (from_checkpoint || options.exist_ok ? "ready at step " + std::to_string(pipeline.step()) + ": " : "created ") +
      pipeline.name() + "; next: " +
      (takes_text ? "penstock train " + name + " --text FILE" : "penstock infer " + name + " --input FILE --to FILE"));
  return absl::OkStatus();
}

struct PlanOptions {
  std::string name;  // taken for the sake of lines that begin as `create` does
  PipelineSpecOptions spec;
  std::string sample;  // a file
  std::vector<std::string> kinds;
  int max_chunks = 0;
  std::vector<int> micro_batches;
};

absl::Status PlanPipeline(const PlanOptions& options, Session& session) {
  v1::PlanPipelineRequest request;
  PENSTOCK_ASSIGN_OR_RETURN(*request.mutable_spec(), BuildPipelineSpec(options.spec, session));
  if (!options.sample.empty()) {
    PENSTOCK_RETURN_IF_ERROR(ReadSample(options.sample, session, request.mutable_sample()));
  }
  v1::SearchLimits* limits = request.mutable_limits();
  limits->mutable_kinds()->Assign(options.kinds.begin(), options.kinds.end());
  limits->set_max_chunks(options.max_chunks);
  limits->mutable_micro_batches()->Assign(options.micro_batches.begin(), options.micro_batches.end());
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  PENSTOCK_ASSIGN_OR_RETURN(const v1::PlanPipelineResponse search, client->PlanPipeline(request));
  const v1::ModelSpec& model = request.spec().model();
  const std::string name = options.name.empty() ? "NAME" : ShortName(options.name);
  session.Print({MessageToJson(search),
                 {},
                 {search.plan().schedule()},
                 PlannedText(model, search.plan(), false) + CandidatesText(search, false),
                 PlannedText(model, search.plan(), true) + CandidatesText(search, true)});
  session.Say("nothing was created; next: penstock pipeline create " + name + " ...");
  return absl::OkStatus();
}

void AddPlan(CommandTable& table, CLI::App* group) {
  const std::string words = CommandWords(*group).empty() ? "plan" : CommandWords(*group) + " plan";
  CLI::App* command =
      table.Add(group, "plan", "Show the candidates for a plan, and of the best its layers, costs, cut and why",
                "penstock " + words +
                    " --model gpt --option blocks=8 --mini-batch-rows 32\n"
                    "penstock " +
                    words + " --model gpt --kinds 1f1b,zb-h1 --micro-batch-counts 4,8,16 -o wide");
  auto options = std::make_shared<PlanOptions>();
  command->add_option("NAME", options->name, "Name of the pipeline: letters, digits, '_', '-'");
  command->add_option("--kinds", options->kinds, "Schedules to choose from")->delimiter(',')->type_name("KIND,KIND");
  command->add_option("--max-chunks", options->max_chunks, "Most stages on each device to try")->type_name("V");
  command->add_option("--micro-batch-counts", options->micro_batches, "Numbers of micro-batches to choose from")
      ->delimiter(',')
      ->type_name("M,M");
  AddSampleOption(command, &options->sample);
  AddPipelineSpecOptions(command, &options->spec);
  table.Run(command, [options](Session& session) { return PlanPipeline(*options, session); });
}

void AddCreate(CommandTable& table, CLI::App* group) {
  const std::string verb = "create";
  const std::string description = "Create a pipeline and show the plan that was found";
  const std::string words = CommandWords(*group).empty() ? verb : CommandWords(*group) + " " + verb;
  CLI::App* command = table.Add(
      group, verb, description,
      "penstock " + words +
          " gpt --model gpt --option blocks=8 --option width=256 --stages 2 --micro-batches 8\n"
          "penstock " +
          words +
          " small --model mlp --balance 3,2 --device cpu:0 --device cpu:1 --optimizer sgd --learning-rate 0.1\n"
          "penstock " +
          words + " tuned --from-checkpoint gpt/step-200 --stages 4");
  auto options = std::make_shared<CreateOptions>();
  command->add_option("NAME", options->name, "Name of the pipeline: letters, digits, '_', '-'")->required();
  command
      ->add_option(
          "--from-checkpoint", options->from_checkpoint,
          "Start with the state of this checkpoint, of a living or a deleted pipeline, for example gpt/step-200; "
          "what is not given of the specification is the checkpoint's")
      ->type_name("PIPELINE/CHECKPOINT");
  command->add_flag("--exist-ok", options->exist_ok,
                    "Show the pipeline if there is one of this name with an equal specification");
  command->add_flag("--dry-run", options->dry_run, "Show the plan and create nothing");
  AddSampleOption(command, &options->sample);
  AddPipelineSpecOptions(command, &options->spec);
  table.Run(command, [options](Session& session) { return Create(*options, session); });
}

absl::Status GetPipeline(const std::string& name, Session& session) {
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  PENSTOCK_ASSIGN_OR_RETURN(const v1::Pipeline pipeline, client->GetPipeline(name));
  session.Print(PipelineDocument(pipeline));
  return absl::OkStatus();
}

absl::Status ListPipelines(Session& session) {
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<v1::Pipeline> pipelines, client->ListPipelines());
  Document document;
  document.json["pipelines"] = Json::array();
  for (const v1::Pipeline& pipeline : pipelines) {
    document.lines.push_back(MessageToJson(pipeline));
    document.names.push_back(pipeline.name());
  }
  document.json["pipelines"] = document.lines;
  document.text = PipelineListText(pipelines, false);
  document.wide = PipelineListText(pipelines, true);
  session.Print(document);
  return absl::OkStatus();
}

struct UpdateOptions {
  std::string name;
  OptimizerOptions optimizer;
  bool no_groups = false;
};

// What was said, over the settings as they are.
absl::Status UpdateOptimizer(const UpdateOptions& options, Session& session) {
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  PENSTOCK_ASSIGN_OR_RETURN(const v1::Pipeline before, client->GetPipeline(options.name));
  v1::UpdateOptimizerRequest request;
  request.set_name(PipelineName(options.name));
  request.set_request_id(session.options().request_id);
  *request.mutable_optimizer() = before.spec().optimizer();
  if (options.no_groups) request.mutable_optimizer()->clear_groups();
  PENSTOCK_RETURN_IF_ERROR(PutOptimizer(options.optimizer, request.mutable_optimizer()));
  PENSTOCK_ASSIGN_OR_RETURN(const v1::Pipeline pipeline, client->UpdateOptimizer(request));
  session.Print(PipelineDocument(pipeline));
  session.Say("changed the optimizer of " + pipeline.name() + " after step " + std::to_string(pipeline.step()));
  return absl::OkStatus();
}

void AddUpdateOptimizer(CommandTable& table, CLI::App* group) {
  CLI::App* command =
      table.Add(group, "update", "Give the optimizer of a pipeline other settings; what is not said stays as it is",
                "penstock pipeline update gpt --learning-rate 1e-4 --freeze 'block0.*'\n"
                "penstock pipeline update gpt --no-groups --rate-schedule linear --total-steps 500");
  auto options = std::make_shared<UpdateOptions>();
  command->add_option("PIPELINE", options->name, "Name of the pipeline")->required();
  AddOptimizerOptions(command, &options->optimizer);
  command->add_flag("--no-groups", options->no_groups, "All parameters are learnt, by the optimizer's own settings");
  table.Run(command, [options](Session& session) { return UpdateOptimizer(*options, session); });
}

struct ReplanOptions {
  std::string name;
  std::string sample;
  bool dry_run = false;
  PipelineSpecOptions spec;
};

absl::Status Replan(const ReplanOptions& options, Session& session) {
  v1::UpdatePipelineRequest request;
  request.set_name(PipelineName(options.name));
  request.set_request_id(session.options().request_id);
  request.set_validate_only(options.dry_run);
  request.set_no_dynamic_batching(options.spec.dynamic_batching == false);
  PENSTOCK_ASSIGN_OR_RETURN(*request.mutable_spec(), BuildPipelineSpec(options.spec, session, /*needs_model=*/false));
  if (!options.sample.empty()) {
    PENSTOCK_RETURN_IF_ERROR(ReadSample(options.sample, session, request.mutable_sample()));
  }
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  PENSTOCK_ASSIGN_OR_RETURN(const v1::Pipeline pipeline, client->UpdatePipeline(request));
  if (options.dry_run) {
    const v1::ModelSpec& model = pipeline.spec().model();
    session.Print({MessageToJson(pipeline),
                   {},
                   {pipeline.name()},
                   PlannedText(model, pipeline.plan(), false),
                   PlannedText(model, pipeline.plan(), true)});
    session.Say("nothing was changed");
    return absl::OkStatus();
  }
  session.Print(PipelineDocument(pipeline));
  session.Say("changed the plan of " + pipeline.name() + " after step " + std::to_string(pipeline.step()));
  return absl::OkStatus();
}

void AddReplan(CommandTable& table, CLI::App* group) {
  CLI::App* command = table.Add(
      group, "replan",
      "Give a pipeline another cut, schedule, devices or batching while it serves; what is not said stays as it is",
      "penstock pipeline replan gpt --stages 4 --schedule zb-h1\n"
      "penstock pipeline replan gpt --batch-rows 32 --dry-run\n"
      "penstock pipeline replan gpt --dynamic-batching=false");
  auto options = std::make_shared<ReplanOptions>();
  command->add_option("PIPELINE", options->name, "Name of the pipeline")->required();
  command->add_flag("--dry-run", options->dry_run, "Show the plan and change nothing");
  AddSampleOption(command, &options->sample);
  AddReplanOptions(command, &options->spec);
  table.Run(command, [options](Session& session) { return Replan(*options, session); });
}

absl::Status UnloadPipeline(const std::string& name, Session& session) {
  v1::UnloadPipelineRequest request;
  request.set_name(PipelineName(name));
  request.set_request_id(session.options().request_id);
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  PENSTOCK_ASSIGN_OR_RETURN(const v1::Pipeline pipeline, client->UnloadPipeline(request));
  session.Print(
      {MessageToJson(pipeline), {}, {pipeline.name()}, PipelineText(pipeline, false), PipelineText(pipeline, true)});
  session.Say("unloaded; back: penstock pipeline load " + ShortName(pipeline.name()));
  return absl::OkStatus();
}

absl::Status LoadPipeline(const std::string& name, Session& session) {
  v1::LoadPipelineRequest request;
  request.set_name(PipelineName(name));
  request.set_request_id(session.options().request_id);
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  PENSTOCK_ASSIGN_OR_RETURN(const v1::Pipeline pipeline, client->LoadPipeline(request));
  session.Print(
      {MessageToJson(pipeline), {}, {pipeline.name()}, PipelineText(pipeline, false), PipelineText(pipeline, true)});
  session.Say(absl::StrCat("loaded, at step ", pipeline.step()));
  return absl::OkStatus();
}

void AddUnloadAndLoad(CommandTable& table, CLI::App* group) {
  CLI::App* unload = table.Add(group, "unload", "Give a pipeline's devices and memory back, and keep its state on disk",
                               "penstock pipeline unload gpt");
  auto unloaded = std::make_shared<std::string>();
  unload->add_option("PIPELINE", *unloaded, "Name of the pipeline")->required();
  table.Run(unload, [unloaded](Session& session) { return UnloadPipeline(*unloaded, session); });
  CLI::App* load =
      table.Add(group, "load", "Make a pipeline that is unloaded again, as it was", "penstock pipeline load gpt");
  auto loaded = std::make_shared<std::string>();
  load->add_option("PIPELINE", *loaded, "Name of the pipeline")->required();
  table.Run(load, [loaded](Session& session) { return LoadPipeline(*loaded, session); });
}

struct DeletePipelineOptions {
  std::string name;
  bool force = false;
  bool purge = false;
  bool yes = false;
  bool dry_run = false;
};

absl::Status DeletePipeline(const DeletePipelineOptions& options, Session& session) {
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  if (options.dry_run) {
    PENSTOCK_ASSIGN_OR_RETURN(const v1::Pipeline pipeline, client->GetPipeline(options.name));
    session.Say("would delete " + pipeline.name() + " at step " + std::to_string(pipeline.step()) +
                "; nothing was changed");
    return absl::OkStatus();
  }
  PENSTOCK_RETURN_IF_ERROR(session.Confirm(
      options.yes, "Delete " + PipelineName(options.name) + (options.purge ? " and its checkpoints?" : "?")));
  v1::DeletePipelineRequest request;
  request.set_name(PipelineName(options.name));
  request.set_force(options.force);
  request.set_purge(options.purge);
  request.set_request_id(session.options().request_id);
  PENSTOCK_RETURN_IF_ERROR(client->DeletePipeline(request).status());
  session.Print({{{"deleted", request.name()}}, {}, {request.name()}, "", ""});
  session.Say("deleted " + request.name() + (options.purge ? " and its checkpoints" : "; its checkpoints stay"));
  return absl::OkStatus();
}

constexpr int64_t kDiscardSeconds = 60;  // that training may need until it is the discard's turn

struct DiscardOptions {
  std::string name;
  bool force = false;
};

absl::Status DiscardGradients(const DiscardOptions& options, Session& session) {
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  v1::OptimizerStepRequest request;
  request.set_pipeline(PipelineName(options.name));
  request.set_action(v1::OptimizerStepRequest::ACTION_DISCARD);
  request.set_force(options.force);
  request.set_request_id(session.options().request_id);
  request.mutable_reply()->mutable_wait_for()->set_seconds(kDiscardSeconds);
  PENSTOCK_ASSIGN_OR_RETURN(const v1::OptimizerStepResponse response, client->OptimizerStep(request));
  const v1::Result& outcome = response.outcome();
  if (outcome.handle().has_error()) return StatusFromMessage(outcome.handle().error());
  session.Print({{{"discarded", request.pipeline()}}, {}, {request.pipeline()}, "", ""});
  session.Say("discarded the accumulated gradients of " + request.pipeline());
  return absl::OkStatus();
}

}  // namespace

void AddPipelineCommands(CommandTable& table) {
  CLI::App* group = table.Add(table.root(), "pipeline", "Create, look at, change, unload, load and delete pipelines",
                              "penstock pipeline list\npenstock pipeline get gpt -o wide");
  AddCreate(table, group);
  AddPlan(table, group);
  AddPlan(table, table.root());

  CLI::App* get = table.Add(group, "get", "Show one pipeline",
                            "penstock pipeline get gpt\n"
                            "penstock pipeline get gpt -o json");
  auto name = std::make_shared<std::string>();
  get->add_option("PIPELINE", *name, "Name of the pipeline")->required();
  table.Run(get, [name](Session& session) { return GetPipeline(*name, session); });

  CLI::App* list = table.Add(group, "list", "List the pipelines of the daemon", "penstock pipeline list -o wide");
  table.Run(list, ListPipelines);

  AddUpdateOptimizer(table, group);
  AddReplan(table, group);
  AddUnloadAndLoad(table, group);

  CLI::App* remove = table.Add(group, "delete", "Delete a pipeline; asks first, or takes --yes",
                               "penstock pipeline delete gpt --yes\npenstock pipeline delete gpt --force --purge");
  auto options = std::make_shared<DeletePipelineOptions>();
  remove->add_option("PIPELINE", options->name, "Name of the pipeline")->required();
  remove->add_flag("--force", options->force, "Cancel work that has not started");
  remove->add_flag("--purge", options->purge, "Remove its checkpoints too");
  remove->add_flag("--yes", options->yes, "Do not ask");
  remove->add_flag("--dry-run", options->dry_run, "Say what would be deleted");
  table.Run(remove, [options](Session& session) { return DeletePipeline(*options, session); });

  CLI::App* discard = table.Add(group, "discard", "Discard gradients that were accumulated and not stepped with",
                                "penstock pipeline discard gpt\npenstock pipeline discard gpt --force");
  auto discarded = std::make_shared<DiscardOptions>();
  discard->add_option("PIPELINE", discarded->name, "Name of the pipeline")->required();
  discard->add_flag("--force", discarded->force, "Of any caller; who held them is told");
  table.Run(discard, [discarded](Session& session) { return DiscardGradients(*discarded, session); });
}

}  // namespace penstock
