// penstock params read

#include <memory>

#include "absl/strings/str_cat.h"
#include "client/cli/command_table.h"
#include "client/cli/safetensors_file.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

struct ReadOptions {
  std::string pipeline;
  std::string to;
  std::vector<std::string> names;
  bool optimizer_state = false;
};

absl::Status Read(const ReadOptions& options, Session& session) {
  v1::ReadParametersRequest request;
  request.set_pipeline(PipelineName(options.pipeline));
  request.mutable_names()->Assign(options.names.begin(), options.names.end());
  request.set_include_optimizer_state(options.optimizer_state);
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  PENSTOCK_ASSIGN_OR_RETURN(const ParameterDownload snapshot, client->ReadParameters(request));
  const std::string step = absl::StrCat(snapshot.step);
  PENSTOCK_RETURN_IF_ERROR(session.WriteFile(
      options.to, WriteSafetensors(snapshot.tensors, {{"pipeline", request.pipeline()}, {"step", step}})));
  session.Say(absl::StrCat("read ", snapshot.tensors.size(), " tensors of step ", step));
  return absl::OkStatus();
}

}  // namespace

void AddParamsCommands(CommandTable& table) {
  CLI::App* group = table.Add(table.root(), "params", "Read what a pipeline has learnt",
                              "penstock params read gpt --to gpt.safetensors");
  CLI::App* read = table.Add(group, "read", "Write parameters to a safetensors file",
                             "penstock params read gpt --to gpt.safetensors\n"
                             "penstock params read gpt --name head.weight --to - > head.safetensors");
  auto options = std::make_shared<ReadOptions>();
  read->add_option("PIPELINE", options->pipeline, "Name of the pipeline")->required();
  read->add_option("--to", options->to, "A safetensors file; - is stdout")->required()->type_name("FILE");
  read->add_option("--name", options->names, "Only this parameter; repeatable")
      ->type_name("NAME")
      ->allow_extra_args(false);
  read->add_flag("--optimizer-state", options->optimizer_state, "The optimizer's state too");
  table.Run(read, [options](Session& session) { return Read(*options, session); });
}

}  // namespace penstock
