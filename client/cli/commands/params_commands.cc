// penstock params read|write

#include <algorithm>
#include <memory>
#include <optional>
#include <span>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/cli/command_table.h"
#include "client/cli/exit_code.h"
#include "client/cli/message_json.h"
#include "client/cli/number_checks.h"
#include "client/cli/pipeline_text.h"
#include "client/cli/safetensors_file.h"
#include "client/cli/tensor_file.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

struct ReadOptions {
  std::string pipeline;
  std::string to;
  std::vector<std::string> names;
  bool optimizer_state = false;
  bool gradients = false;
};

absl::Status Read(const ReadOptions& options, Session& session) {
  v1::ReadParametersRequest request;
  request.set_pipeline(PipelineName(options.pipeline));
  request.mutable_names()->Assign(options.names.begin(), options.names.end());
  request.set_include_optimizer_state(options.optimizer_state);
  request.set_gradients(options.gradients);
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  PENSTOCK_ASSIGN_OR_RETURN(const ParameterDownload snapshot, client->ReadParameters(request));
  const std::string step = absl::StrCat(snapshot.step);
  PENSTOCK_RETURN_IF_ERROR(session.WriteFile(
      options.to, WriteSafetensors(snapshot.tensors, {{"pipeline", request.pipeline()}, {"step", step}})));
  session.Say(absl::StrCat("read ", snapshot.tensors.size(),
                           options.gradients ? " gradients after step " : " tensors of step ", step));
  return absl::OkStatus();
}

// The most that the daemon takes in one upload.
constexpr size_t kTensorsOfAnUpload = 64;

struct WriteOptions {
  std::string pipeline;
  std::string from;
  std::optional<int64_t> step;
  bool force = false;
};

absl::Status Write(const WriteOptions& options, Session& session) {
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<HostTensor> tensors, ReadTensorFile(options.from, session));
  if (tensors.empty()) return UsageError("--from", "holds no tensors");
  for (HostTensor& tensor : tensors) {  // an older daemon takes no slash in a name
    if (absl::StartsWith(tensor.name(), "optimizer/")) {
      tensor.set_name(absl::StrReplaceAll(tensor.name(), {{"/", "."}}));
    }
  }
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  v1::WriteParametersRequest request;
  request.set_pipeline(PipelineName(options.pipeline));
  request.set_request_id(session.options().request_id);
  if (options.step.has_value()) request.set_step(*options.step);
  request.set_force(options.force);
  std::vector<std::string> handles;
  const absl::Cleanup release = [&] {  // their leases end what is not released
    if (!handles.empty()) client->GiveBack(handles);
  };
  for (size_t first = 0; first < tensors.size(); first += kTensorsOfAnUpload) {
    const size_t count = std::min(kTensorsOfAnUpload, tensors.size() - first);
    PENSTOCK_ASSIGN_OR_RETURN(const v1::Handle handle,
                              client->PutTensors(options.pipeline, std::span(tensors).subspan(first, count)));
    handles.push_back(handle.name());
  }
  request.mutable_handles()->Assign(handles.begin(), handles.end());
  PENSTOCK_ASSIGN_OR_RETURN(const v1::WriteParametersResponse response, client->WriteParameters(request));
  session.Print({MessageToJson(response), {}, {request.pipeline()}, "", ""});
  session.Say(absl::StrCat("wrote ", tensors.size(), " tensors; ", ShortName(request.pipeline()), " is at step ",
                           response.step()));
  return absl::OkStatus();
}

}  // namespace

void AddParamsCommands(CommandTable& table) {
  CLI::App* group = table.Add(table.root(), "params", "Read what a pipeline has learnt, or write it",
                              "penstock params read gpt --to gpt.safetensors\n"
                              "penstock params write gpt --from gpt.safetensors");
  CLI::App* read = table.Add(group, "read", "Write parameters to a safetensors file",
                             "penstock params read gpt --to gpt.safetensors\n"
                             "penstock params read gpt --name head.weight --to - > head.safetensors");
  auto options = std::make_shared<ReadOptions>();
  read->add_option("PIPELINE", options->pipeline, "Name of the pipeline")->required();
  read->add_option("--to", options->to, "A safetensors file; - is stdout")->required()->type_name("FILE");
  read->add_option("--name", options->names, "Only this parameter; repeatable")
      ->type_name("NAME")
      ->allow_extra_args(false);
  CLI::Option* state = read->add_flag("--optimizer-state", options->optimizer_state, "The optimizer's state too");
  read->add_flag("--gradients", options->gradients, "Instead, the gradients that the caller has accumulated")
      ->excludes(state);
  table.Run(read, [options](Session& session) { return Read(*options, session); });

  CLI::App* write = table.Add(group, "write", "Replace parameters by those of a file, by name",
                              "penstock params write gpt --from gpt.safetensors\n"
                              "penstock params write gpt --from gpt.safetensors --step 0");
  auto given = std::make_shared<WriteOptions>();
  write->add_option("PIPELINE", given->pipeline, "Name of the pipeline")->required();
  write->add_option("--from", given->from, "A safetensors or .npz file; - is stdin")->required()->type_name("FILE");
  write
      ->add_option("--step", given->step,
                   "Finished steps from now on, which the learning rate follows; unset: as it is")
      ->check(NonNegative())
      ->type_name("N");
  write->add_flag("--force", given->force, "Discard gradients that wait for an optimizer step");
  table.Run(write, [given](Session& session) { return Write(*given, session); });
}

}  // namespace penstock
