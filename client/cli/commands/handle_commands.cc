// penstock handle put, fetch, wait, get, list, renew, share, release, cancel

#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "client/cli/command_table.h"
#include "client/cli/exit_code.h"
#include "client/cli/number_checks.h"
#include "client/cli/pipeline_text.h"
#include "client/cli/tensor_file.h"
#include "client/cli/value_json.h"
#include "client/lib/call_error.h"
#include "client/lib/durations.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

using Names = std::vector<std::string>;

std::string Word(const std::string& name, const char* prefix) {
  return absl::AsciiStrToLower(absl::StripPrefix(name, prefix));
}

std::string TensorsText(const v1::Handle& handle) {
  std::vector<std::string> parts;
  for (const v1::TensorHeader& tensor : handle.tensors()) {
    const std::string_view type = DataTypeName(static_cast<DataType>(tensor.type()));
    parts.push_back(absl::StrCat(tensor.name(), " ", std::string(type), "[", absl::StrJoin(tensor.shape(), ","), "]"));
  }
  parts.insert(parts.end(), handle.values().begin(), handle.values().end());
  if (handle.results_omitted()) parts.emplace_back("(see handle get)");
  if (handle.has_outcome() && handle.outcome().has_loss()) {
    parts.push_back(absl::StrCat("step ", handle.outcome().step(), " loss ", handle.outcome().loss()));
  }
  if (handle.has_error()) parts.push_back(ReasonOf(StatusFromMessage(handle.error())));
  return absl::StrJoin(parts, ", ");
}

Table HandleTable() {
  return Table({{"HANDLE"}, {"KIND"}, {"STATE"}, {"SIZE", true}, {"EXPIRES"}, {"METHOD"}, {"HOLDS", false, true}});
}

// The same of others' handles.
Table OwnedHandleTable() {
  return Table({{"OWNER"}, {"HANDLE"}, {"KIND"}, {"STATE"}, {"SIZE", true}, {"EXPIRES"}, {"METHOD"}});
}

std::string StateText(const v1::Handle& handle) { return Word(v1::HandleState_Name(handle.state()), "HANDLE_STATE_"); }

std::string ExpiryText(const v1::Handle& handle) {
  if (!handle.has_expire_time()) return "";
  return absl::FormatTime("%H:%M:%SZ", FromMessage(handle.expire_time()), absl::UTCTimeZone());
}

void AddOwnedRow(const v1::Handle& handle, Table* table) {
  table->Add({handle.owner(), handle.name(), Word(v1::HandleKind_Name(handle.kind()), "HANDLE_KIND_"),
              StateText(handle), BytesText(static_cast<double>(handle.byte_size())), ExpiryText(handle),
              handle.method()});
}

void AddRow(const v1::Handle& handle, Table* table) {
  table->Add({handle.name(), Word(v1::HandleKind_Name(handle.kind()), "HANDLE_KIND_"), StateText(handle),
              BytesText(static_cast<double>(handle.byte_size())), ExpiryText(handle), handle.method(),
              TensorsText(handle)});
}

Document OneHandle(const v1::Handle& handle) {
  Table table = HandleTable();
  AddRow(handle, &table);
  return {MessageToJson(handle), {}, {handle.name()}, table.Text(false), table.Text(true)};
}

// Prints one line per name; names that failed are told on stderr and make the command a partial success.
template <typename Answers, typename HandleRow>
void PrintAnswers(const Answers& answers, Session& session, const HandleRow& add_row, Table table) {
  Document document;
  bool failed = false;
  for (const auto& answer : answers) {
    document.lines.push_back(MessageToJson(answer));
    if (answer.has_error() && answer.error().code() != 0) {
      const absl::Status error = StatusFromMessage(answer.error());
      session.Say("penstock: " + answer.name() + ": " + std::string(error.message()) + " (" +
                  absl::StatusCodeToString(error.code()) + " / " + ReasonOf(error) + ")");
      failed = true;
      continue;
    }
    document.names.push_back(answer.name());
    add_row(answer, &table);
  }
  document.json["answers"] = document.lines;
  if (!table.empty()) {
    document.text = table.Text(false);
    document.wide = table.Text(true);
  }
  session.Print(document);
  if (failed) session.set_partial();
}

template <typename Answers>
void PrintHandleAnswers(const Answers& answers, Session& session) {
  PrintAnswers(
      answers, session, [](const v1::HandleAnswer& answer, Table* table) { AddRow(answer.handle(), table); },
      HandleTable());
}

struct PutOptions {
  std::string pipeline;
  std::string file;
  double lease_seconds = 0;
};

absl::Status Put(const PutOptions& options, Session& session) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<HostTensor> tensors, ReadTensorFile(options.file, session));
  if (tensors.empty()) return UsageError("FILE", "holds no tensors");
  UploadOptions upload;
  upload.lease = absl::Seconds(options.lease_seconds);
  upload.request_id = session.options().request_id;
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  PENSTOCK_ASSIGN_OR_RETURN(const v1::Handle handle, client->PutTensors(options.pipeline, tensors, upload));
  session.Print(OneHandle(handle));
  session.Say("put " + BytesText(static_cast<double>(handle.byte_size())) + "; next: penstock handle fetch " +
              handle.name() + " --to FILE");
  return absl::OkStatus();
}

struct FetchCommandOptions {
  std::string name;
  std::string tensor;
  std::string to;
  double wait_seconds = 0;
};

absl::Status Fetch(const FetchCommandOptions& options, Session& session) {
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  FetchOptions fetch;
  fetch.tensor = options.tensor;
  if (options.wait_seconds > 0) {
    PENSTOCK_RETURN_IF_ERROR(client->AwaitHandle(options.name, absl::Seconds(options.wait_seconds)).status());
  }
  PENSTOCK_ASSIGN_OR_RETURN(const FetchedHandle fetched, client->FetchHandle(options.name, fetch));
  PENSTOCK_ASSIGN_OR_RETURN(const std::string file,
                            TensorFile(options.to, "--to", fetched.tensors, {{"handle", options.name}}));
  PENSTOCK_RETURN_IF_ERROR(session.WriteFile(options.to, file));
  if (options.to == "-") {
    SayLeftOut(fetched, session);
  } else if (!fetched.values.empty()) {
    const Json values = ValuesToJson(fetched);
    const std::string text = values.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
    session.Print({values, {values}, {options.name}, text, text});
  }
  session.Say(
      absl::StrCat("fetched ", fetched.tensors.size(), " tensors; next: penstock handle release ", options.name));
  return absl::OkStatus();
}

struct WaitOptions {
  Names names;
  double for_seconds = 60;
  bool any = false;
};

absl::Status Wait(const WaitOptions& options, Session& session) {
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  v1::WaitHandlesRequest request;
  request.mutable_names()->Assign(options.names.begin(), options.names.end());
  request.set_mode(options.any ? v1::WaitHandlesRequest::MODE_ANY : v1::WaitHandlesRequest::MODE_ALL);
  *request.mutable_wait_for() = ToMessage(absl::Seconds(options.for_seconds));
  PENSTOCK_ASSIGN_OR_RETURN(const v1::WaitHandlesResponse response, client->WaitHandles(request));
  PrintHandleAnswers(response.handles(), session);
  int pending = 0;
  for (const v1::HandleAnswer& answer : response.handles()) {
    pending += answer.handle().state() == v1::HANDLE_STATE_PENDING;
  }
  if (pending == 0 || (options.any && pending < response.handles_size())) return absl::OkStatus();
  return Error(absl::StatusCode::kDeadlineExceeded, "HANDLE_PENDING",
               absl::StrCat(pending, " handles are still pending after ", options.for_seconds, " s"));
}

absl::Status GetHandle(const std::string& name, Session& session) {
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  PENSTOCK_ASSIGN_OR_RETURN(const v1::Handle handle, client->GetHandle(name));
  session.Print(OneHandle(handle));
  return absl::OkStatus();
}

struct ListOptions {
  std::string pipeline;
  std::string owner;
};

absl::Status ListHandles(const ListOptions& options, Session& session) {
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<v1::Handle> handles,
                            client->ListHandles(options.pipeline, options.owner));
  // The daemon lists what a deleted pipeline has left, so it takes any name.
  if (handles.empty() && options.pipeline != "-" && options.pipeline != "pipelines/-") {
    const absl::Status known = client->GetPipeline(options.pipeline).status();
    if (ReasonOf(known) == "PIPELINE_NOT_FOUND") return known;
  }
  Document document;
  const bool owned = !options.owner.empty();
  Table table = owned ? OwnedHandleTable() : HandleTable();
  for (const v1::Handle& handle : handles) {
    document.lines.push_back(MessageToJson(handle));
    document.names.push_back(handle.name());
    owned ? AddOwnedRow(handle, &table) : AddRow(handle, &table);
  }
  document.json["handles"] = document.lines;
  document.text = handles.empty() ? "no handles\n" : table.Text(false);
  document.wide = handles.empty() ? "no handles\n" : table.Text(true);
  session.Print(document);
  return absl::OkStatus();
}

struct RenewOptions {
  Names names;
  std::string all_of;
  double lease_seconds = 0;
};

absl::Status Renew(const RenewOptions& options, Session& session) {
  if (options.names.empty() == options.all_of.empty()) return UsageError("HANDLE", "give names, or --all-of PIPELINE");
  v1::RenewHandlesRequest request;
  request.mutable_names()->Assign(options.names.begin(), options.names.end());
  if (!options.all_of.empty()) request.set_parent(PipelineName(options.all_of));
  if (options.lease_seconds > 0) *request.mutable_lease() = ToMessage(absl::Seconds(options.lease_seconds));
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  PENSTOCK_ASSIGN_OR_RETURN(const v1::RenewHandlesResponse response, client->RenewHandles(request));
  PrintAnswers(
      response.handles(), session,
      [](const v1::HandleAnswer& answer, Table* table) {
        table->Add({answer.name(), StateText(answer.handle()), ExpiryText(answer.handle())});
      },
      Table({{"HANDLE"}, {"STATE"}, {"EXPIRES"}}));
  return absl::OkStatus();
}

struct ShareOptions {
  std::string name;
  std::string recipient;
  double lease_seconds = 0;
};

absl::Status Share(const ShareOptions& options, Session& session) {
  v1::ShareHandleRequest request;
  request.set_name(options.name);
  request.set_recipient(options.recipient);
  request.set_request_id(session.options().request_id);
  if (options.lease_seconds > 0) *request.mutable_lease() = ToMessage(absl::Seconds(options.lease_seconds));
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  PENSTOCK_ASSIGN_OR_RETURN(const v1::Handle handle, client->ShareHandle(request));
  Table table = OwnedHandleTable();
  AddOwnedRow(handle, &table);
  session.Print({MessageToJson(handle), {}, {handle.name()}, table.Text(false), table.Text(true)});
  session.Say("shared; " + options.recipient + " can use it now: penstock handle fetch " + handle.name() +
              " --to FILE");
  return absl::OkStatus();
}

struct ReleaseOptions {
  Names names;
  std::string owner;
};

absl::Status Release(const ReleaseOptions& options, Session& session) {
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  PENSTOCK_ASSIGN_OR_RETURN(const v1::ReleaseHandlesResponse response,
                            client->ReleaseHandles(options.names, options.owner));
  PrintHandleAnswers(response.handles(), session);
  return absl::OkStatus();
}

absl::Status Cancel(const Names& names, Session& session) {
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  PENSTOCK_ASSIGN_OR_RETURN(const v1::CancelHandlesResponse response, client->CancelHandles(names));
  PrintAnswers(
      response.answers(), session,
      [](const v1::CancelHandlesResponse::Answer& answer, Table* table) {
        table->Add({answer.name(), Word(v1::CancelHandlesResponse::Effect_Name(answer.effect()), "EFFECT_")});
      },
      Table({{"HANDLE"}, {"EFFECT"}}));
  return absl::OkStatus();
}

void AddTransfers(CommandTable& table, CLI::App* group) {
  CLI::App* put = table.Add(group, "put", "Upload tensors and get a handle",
                            "penstock handle put gpt batch.safetensors\n"
                            "penstock handle put gpt - --lease 600 -o name < batch.safetensors");
  auto put_options = std::make_shared<PutOptions>();
  put->add_option("PIPELINE", put_options->pipeline, "Name of the pipeline")->required();
  put->add_option("FILE", put_options->file, "A safetensors or .npz file; - is stdin")->required();
  put->add_option("--lease", put_options->lease_seconds, "How long the handle lives without renewal")
      ->check(Positive())
      ->type_name("SECONDS");
  table.Run(put, [put_options](Session& session) { return Put(*put_options, session); });

  CLI::App* fetch = table.Add(group, "fetch", "Download the tensors of a handle",
                              "penstock handle fetch HANDLE --to out.safetensors\n"
                              "penstock handle fetch HANDLE --tensor logits --to - > logits.safetensors");
  auto fetch_options = std::make_shared<FetchCommandOptions>();
  fetch->add_option("HANDLE", fetch_options->name, "Full name of the handle")->required();
  fetch
      ->add_option("--to", fetch_options->to,
                   "A safetensors or .npz file; values that are no tensors are printed; - is stdout")
      ->required()
      ->type_name("FILE");
  fetch->add_option("--tensor", fetch_options->tensor, "Only this tensor or value")->type_name("NAME");
  fetch->add_option("--wait", fetch_options->wait_seconds, "Wait for a pending handle")
      ->check(NonNegative())
      ->type_name("SECONDS");
  table.Run(fetch, [fetch_options](Session& session) { return Fetch(*fetch_options, session); });
}

void AddShare(CommandTable& table, CLI::App* group) {
  CLI::App* share = table.Add(group, "share", "Give another caller a handle of the same values",
                              "penstock handle share HANDLE bob\n"
                              "penstock handle share HANDLE spiffe://example.org/trainer --lease 600 -o name");
  auto options = std::make_shared<ShareOptions>();
  share->add_option("HANDLE", options->name, "Full name of the handle")->required();
  share->add_option("RECIPIENT", options->recipient, "Name of the caller who gets one")->required();
  share->add_option("--lease", options->lease_seconds, "How long the new handle lives without renewal")
      ->check(Positive())
      ->type_name("SECONDS");
  table.Run(share, [options](Session& session) { return Share(*options, session); });
}

void AddListAndRelease(CommandTable& table, CLI::App* group) {
  CLI::App* list =
      table.Add(group, "list", "List handles of a pipeline (- for all pipelines)",
                "penstock handle list gpt\npenstock handle list - -o name\npenstock handle list - --owner -");
  auto list_options = std::make_shared<ListOptions>();
  list->add_option("PIPELINE", list_options->pipeline, "Name of the pipeline")->required();
  list->add_option("--owner", list_options->owner,
                   "Not own ones, but those of this caller (- for all); needs the role admin")
      ->type_name("NAME");
  table.Run(list, [list_options](Session& session) { return ListHandles(*list_options, session); });

  CLI::App* release = table.Add(group, "release", "Give results back; twice is fine",
                                "penstock handle release HANDLE HANDLE\npenstock handle release HANDLE --owner NAME");
  auto release_options = std::make_shared<ReleaseOptions>();
  release->add_option("HANDLE", release_options->names, "Full names of handles")->required();
  release->add_option("--owner", release_options->owner, "They belong to this caller; needs the role admin")
      ->type_name("NAME");
  table.Run(release, [release_options](Session& session) { return Release(*release_options, session); });
}

}  // namespace

void AddHandleCommands(CommandTable& table) {
  CLI::App* group = table.Add(table.root(), "handle", "Work with remote results",
                              "penstock handle list gpt\npenstock handle fetch HANDLE --to out.safetensors");
  AddTransfers(table, group);

  CLI::App* wait = table.Add(group, "wait", "Wait until handles have settled",
                             "penstock handle wait HANDLE --for 30\npenstock handle wait HANDLE HANDLE --any");
  auto wait_options = std::make_shared<WaitOptions>();
  wait->add_option("HANDLE", wait_options->names, "Full names of handles")->required();
  wait->add_option("--for", wait_options->for_seconds, "Longest wait, at most 60")
      ->check(CLI::Range(0.0, 60.0))
      ->type_name("SECONDS")
      ->capture_default_str();
  wait->add_flag("--any", wait_options->any, "Until one has settled, not all");
  table.Run(wait, [wait_options](Session& session) { return Wait(*wait_options, session); });

  CLI::App* get = table.Add(group, "get", "Show one handle", "penstock handle get HANDLE -o json");
  auto handle = std::make_shared<std::string>();
  get->add_option("HANDLE", *handle, "Full name of the handle")->required();
  table.Run(get, [handle](Session& session) { return GetHandle(*handle, session); });

  CLI::App* renew = table.Add(group, "renew", "Prolong leases",
                              "penstock handle renew HANDLE --lease 600\npenstock handle renew --all-of gpt");
  auto renew_options = std::make_shared<RenewOptions>();
  renew->add_option("HANDLE", renew_options->names, "Full names of handles");
  renew->add_option("--all-of", renew_options->all_of, "All own handles of this pipeline")->type_name("PIPELINE");
  renew->add_option("--lease", renew_options->lease_seconds, "From now on; unset: the daemon's default")
      ->check(Positive())
      ->type_name("SECONDS");
  table.Run(renew, [renew_options](Session& session) { return Renew(*renew_options, session); });

  AddShare(table, group);
  AddListAndRelease(table, group);

  CLI::App* cancel =
      table.Add(group, "cancel", "Cancel the work that would fill handles", "penstock handle cancel HANDLE HANDLE");
  auto names = std::make_shared<Names>();
  cancel->add_option("HANDLE", *names, "Full names of handles")->required();
  table.Run(cancel, [names](Session& session) { return Cancel(*names, session); });
}

}  // namespace penstock
