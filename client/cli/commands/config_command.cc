// penstock config show

#include <memory>

#include "client/cli/command_table.h"

namespace penstock {
namespace {

struct ConfigOptions {
  bool origin = false;
};

absl::Status Show(const ConfigOptions& options, Session& session) {
  Document document;
  document.json = {{"settings", Json::array()}};
  Table table(options.origin ? std::vector<Table::Column>{{"SETTING"}, {"VALUE"}, {"ORIGIN"}}
                             : std::vector<Table::Column>{{"SETTING"}, {"VALUE"}});
  for (const Setting& setting : session.options().settings) {
    Json line = {{"name", setting.name}, {"value", setting.value}};
    if (options.origin) line["origin"] = setting.origin;
    document.json["settings"].push_back(line);
    document.lines.push_back(line);
    document.names.push_back(setting.name);
    table.Add({setting.name, setting.value, setting.origin});
  }
  document.text = table.Text(false);
  session.Print(document);
  return absl::OkStatus();
}

}  // namespace

void AddConfigCommand(CommandTable& table) {
  CLI::App* group = table.Add(table.root(), "config", "Settings of this program", "penstock config show --origin");
  CLI::App* command = table.Add(
      group, "show", "Show each setting as it holds here; flags, then the environment, then files win",
      "penstock config show\npenstock config show --origin\npenstock --timeout 5 config show --origin -o json");
  auto options = std::make_shared<ConfigOptions>();
  command->add_flag("--origin", options->origin,
                    "Say where each value comes from: flag, variable, file and line, default");
  table.Run(command, [options](Session& session) { return Show(*options, session); });
}

}  // namespace penstock
