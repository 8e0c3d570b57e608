// penstock model add, list, show, delete

#include <filesystem>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/command_table.h"
#include "client/cli/exit_code.h"
#include "client/cli/model_text.h"
#include "client/cli/output.h"
#include "client/cli/pipeline_text.h"
#include "client/cli/progress.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

constexpr int64_t kUsualLimit = int64_t{4} << 30;

struct AddOptions {
  std::string file;
  std::string id;
};

Document ModelDocument(const v1::Model& model) {
  return {MessageToJson(model), {}, {model.name()}, ModelDetailText(model, false), ModelDetailText(model, true)};
}

absl::Status Add(const AddOptions& options, Session& session) {
  std::string id = options.id;
  if (id.empty()) {
    if (options.file == "-") return UsageError("--id", "missing; stdin has no name");
    id = std::filesystem::path(options.file).filename().string();
  }
  if (!absl::EndsWith(id, ".pt2")) return UsageError("--id", "must end in .pt2, got '" + id + "'");
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  PENSTOCK_ASSIGN_OR_RETURN(const v1::ServerInfo server, client->GetServerInfo());
  const auto limit = server.limits().find("max-model-bytes");
  const int64_t most = limit == server.limits().end() ? kUsualLimit : limit->second;
  PENSTOCK_ASSIGN_OR_RETURN(const std::string file,
                            session.ReadFile(options.file, static_cast<uint64_t>(most), "penstockd --max-model-bytes"));
  if (file.empty()) return UsageError(options.file, "is empty");
  constexpr int64_t kUnit = int64_t{1} << 20;  // of progress
  const auto size = static_cast<int64_t>(file.size());
  Progress progress(session.err(), session.err_is_terminal() && !session.options().no_color,
                    (size + kUnit - 1) / kUnit);
  ModelUploadOptions upload;
  if (size > kUnit) {
    upload.on_chunk = [&](int64_t sent) {
      progress.Show((sent + kUnit - 1) / kUnit, absl::StrCat("sent ", BytesText(static_cast<double>(sent)), " of ",
                                                             BytesText(static_cast<double>(size))));
    };
  }
  const absl::StatusOr<v1::Model> model = client->UploadModel(id, file, upload);
  progress.Close();
  PENSTOCK_RETURN_IF_ERROR(model.status());
  session.Print(ModelDocument(*model));
  session.Say(absl::StrCat("added ", model->name(), "; next: penstock pipeline create NAME --model-program ", id));
  return absl::OkStatus();
}

absl::Status ListModels(Session& session) {
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<v1::Model> models, client->ListModels());
  Document document;
  for (const v1::Model& model : models) {
    document.lines.push_back(MessageToJson(model));
    document.names.push_back(model.name());
  }
  document.json["models"] = Json::array();
  for (const Json& line : document.lines) document.json["models"].push_back(line);
  document.text = ModelListText(models, false);
  document.wide = ModelListText(models, true);
  session.Print(document);
  return absl::OkStatus();
}

absl::Status Show(const std::string& id, Session& session) {
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  PENSTOCK_ASSIGN_OR_RETURN(const v1::Model model, client->GetModel(id));
  session.Print(ModelDocument(model));
  return absl::OkStatus();
}

struct DeleteModelOptions {
  std::string id;
  bool yes = false;
};

absl::Status DeleteModel(const DeleteModelOptions& options, Session& session) {
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  const std::string name = ModelName(options.id);
  PENSTOCK_RETURN_IF_ERROR(session.Confirm(options.yes, "Delete " + name + " from the server?"));
  PENSTOCK_RETURN_IF_ERROR(client->DeleteModel(name));
  session.Print({Json{{"name", name}}, {}, {name}, "", ""});
  session.Say("deleted " + name + "; next: penstock model list");
  return absl::OkStatus();
}

}  // namespace

void AddModelCommands(CommandTable& table) {
  CLI::App* group =
      table.Add(table.root(), "model", "Add, list, show and delete exported programs (.pt2) on the server",
                "penstock model add resnet.pt2\npenstock model list");

  CLI::App* add = table.Add(group, "add", "Upload a program; the daemon must allow it (--allow-model-upload)",
                            "penstock model add resnet.pt2\npenstock model add build/model.pt2 --id resnet-v2.pt2");
  auto added = std::make_shared<AddOptions>();
  add->add_option("FILE", added->file, "What torch.export.save or penstock.export wrote; - is stdin")->required();
  add->add_option("--id", added->id, "Name on the server, ending in .pt2; unset: the file's")->type_name("ID");
  table.Run(add, [added](Session& session) { return Add(*added, session); });

  CLI::App* list = table.Add(group, "list", "List the programs in the daemon's model root",
                             "penstock model list -o wide\npenstock model list -o name");
  table.Run(list, [](Session& session) { return ListModels(session); });

  CLI::App* show = table.Add(group, "show", "Show what a program takes and gives, its layers; wide: operators",
                             "penstock model show resnet.pt2 -o wide");
  auto shown = std::make_shared<std::string>();
  show->add_option("MODEL", *shown, "Name of the model")->required();
  table.Run(show, [shown](Session& session) { return Show(*shown, session); });

  CLI::App* remove = table.Add(group, "delete", "Delete a program that no pipeline uses; asks first, or takes --yes",
                               "penstock model delete resnet.pt2 --yes");
  auto deleted = std::make_shared<DeleteModelOptions>();
  remove->add_option("MODEL", deleted->id, "Name of the model")->required();
  remove->add_flag("--yes", deleted->yes, "Do not ask");
  table.Run(remove, [deleted](Session& session) { return DeleteModel(*deleted, session); });
}

}  // namespace penstock
