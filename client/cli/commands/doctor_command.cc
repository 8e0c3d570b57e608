// penstock doctor

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "client/cli/command_table.h"
#include "client/cli/doctor_checks.h"
#include "client/lib/call_error.h"
#include "engine/base/error.h"

namespace penstock {
namespace {

struct DoctorOptions {
  std::string state_dir = DefaultStateDir();
  std::string penstockd = "penstockd";
};

// Whether somebody answers; a daemon that isn't started yet is no fault.
Finding Answer(Session& session) {
  const std::string& server = session.options().server;
  const absl::StatusOr<PipelineClient*> client = session.Client(absl::ZeroDuration());
  if (!client.ok()) {
    return {"daemon", Finding::Level::kFail, std::string(client.status().message()),
            "mend --server or PENSTOCK_SERVER"};
  }
  const absl::StatusOr<v1::ServerInfo> info = (*client)->GetServerInfo();
  if (info.ok()) {
    return {"daemon", Finding::Level::kOk, absl::StrCat(info->version(), " answers at ", server, ", ", info->state()),
            ""};
  }
  return {"daemon", Finding::Level::kWarn, "nobody answers at " + server,
          "start penstockd, or name its address with --server or PENSTOCK_SERVER"};
}

absl::Status Doctor(const DoctorOptions& options, Session& session) {
  const MachineFacts facts = ReadMachineFacts(options.state_dir, options.penstockd);
  std::vector<Finding> findings = Judge(facts);
  const Finding answer = Answer(session);
  findings.push_back(JudgePorts(facts, answer.level == Finding::Level::kOk));
  findings.push_back(answer);
  Document document;
  document.json = {{"checks", Json::array()}};
  Finding::Level worst = Finding::Level::kOk;
  Table table({{"", false}, {"CHECK"}, {"FOUND"}});
  for (const Finding& finding : findings) {
    worst = std::max(worst, finding.level);
    Json line = {{"name", finding.name}, {"level", std::string(NameOf(finding.level))}, {"detail", finding.detail}};
    if (!finding.fix.empty()) line["fix"] = finding.fix;
    document.json["checks"].push_back(line);
    document.lines.push_back(line);
    if (finding.level != Finding::Level::kOk) document.names.push_back(finding.name);
    table.Add({std::string(NameOf(finding.level)), finding.name, finding.detail});
    if (!finding.fix.empty()) table.Add({"", "", "  do: " + finding.fix});
  }
  document.json["worst"] = std::string(NameOf(worst));
  document.text = table.Text(false);
  session.Print(document);
  if (worst != Finding::Level::kFail) return absl::OkStatus();
  return Error(absl::StatusCode::kFailedPrecondition, "NOT_FIT", "a daemon would fail on this machine: see above");
}

}  // namespace

void AddDoctorCommand(CommandTable& table) {
  CLI::App* command =
      table.Add(table.root(), "doctor", "Check this machine for what a daemon needs; each finding has its fix",
                "penstock doctor\npenstock doctor --state-dir /var/lib/penstock\npenstock doctor -o json");
  auto options = std::make_shared<DoctorOptions>();
  command->add_option("--state-dir", options->state_dir, "Where the daemon keeps its state; unset: its own default")
      ->type_name("FOLDER");
  command->add_option("--penstockd", options->penstockd, "The daemon's program")
      ->type_name("PATH")
      ->capture_default_str();
  table.Run(command, [options](Session& session) { return Doctor(*options, session); });
}

}  // namespace penstock
