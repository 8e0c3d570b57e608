// penstock log level

#include <memory>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/cli/command_table.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

constexpr char kPrefix[] = "LOG_LEVEL_";

std::string LevelWord(v1::LogLevel level) {
  return absl::AsciiStrToLower(absl::StripPrefix(v1::LogLevel_Name(level), kPrefix));
}

absl::Status SetLevel(const std::string& level, Session& session) {
  v1::SetLogLevelRequest request;
  v1::LogLevel asked = v1::LOG_LEVEL_UNSPECIFIED;
  if (!level.empty() && v1::LogLevel_Parse(kPrefix + absl::AsciiStrToUpper(level), &asked)) request.set_level(asked);
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  PENSTOCK_ASSIGN_OR_RETURN(const v1::SetLogLevelResponse response, client->SetLogLevel(request));
  const std::string now = LevelWord(response.now());
  session.Print({MessageToJson(response), {}, {now}, now + "\n", now + "\n"});
  if (!level.empty()) session.Say(absl::StrCat("was ", LevelWord(response.before()), "; lasts until the daemon ends"));
  return absl::OkStatus();
}

}  // namespace

void AddLogCommands(CommandTable& table) {
  CLI::App* group = table.Add(table.root(), "log", "What the daemon logs", "penstock log level debug");
  CLI::App* command = table.Add(group, "level", "Show or change which lines the daemon writes",
                                "penstock log level\npenstock log level debug");
  auto level = std::make_shared<std::string>();
  command->add_option("LEVEL", *level, "Lines of less are not written, until the daemon ends; unset: no change")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}));
  table.Run(command, [level](Session& session) { return SetLevel(*level, session); });
}

}  // namespace penstock
