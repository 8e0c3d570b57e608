#include "server/daemon_options.h"

#include <CLI/CLI.hpp>
#include <optional>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "engine/base/error.h"
#include "engine/base/read_to_end.h"
#include "engine/base/status_macros.h"
#include "server/daemon_flags.h"

namespace penstock {
namespace {

// What was given, by flag name: texts, and where from.
struct Given {
  DaemonFlag::Values values;
  std::string origin;
  std::string field;  // as errors name it
};
using GivenMap = std::map<std::string, Given>;

absl::Status ReadFile(const std::string& path, GivenMap* given) {
  const absl::StatusOr<std::string> text = ReadToEnd(path, kMaxSettingBytes);
  if (!text.ok()) {
    return InvalidField("--config", "must name a file that can be read (" + std::string(text.status().message()) + ")",
                        path);
  }
  std::istringstream file(*text);
  std::vector<CLI::ConfigItem> items;
  try {
    items = CLI::ConfigTOML().from_config(file);
  } catch (const std::exception& problem) {
    return InvalidField("--config", std::string("must be TOML, ") + problem.what(), path);
  }
  for (const CLI::ConfigItem& item : items) {
    const std::string name = item.fullname();
    if (FindDaemonFlag(name) == nullptr) return InvalidField(path, "no such setting", name);
    given->try_emplace(name, Given{item.inputs, "file", path + ": " + name});
  }
  return absl::OkStatus();
}

std::string FirstOf(const std::map<std::string, std::string>& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found == environment.end() ? "" : found->second;
}

// The default state folder.
std::string DefaultStateDir(const std::map<std::string, std::string>& environment) {
  if (const std::string state = FirstOf(environment, "XDG_STATE_HOME"); !state.empty()) {
    return state + "/penstock";
  }
  if (const std::string home = FirstOf(environment, "HOME"); !home.empty()) {
    return home + "/.local/state/penstock";
  }
  return "penstock-state";
}

absl::Status CheckTogether(const DaemonOptions& options) {
  if (options.min_lease > options.default_lease || options.default_lease > options.max_lease) {
    return InvalidField("--lease", "must lie between --min-lease and --max-lease",
                        absl::FormatDuration(options.default_lease));
  }
  if (options.allow_model_upload && options.model_root.empty()) {
    return InvalidField("--allow-model-upload", "needs a --model-root", "true");
  }
  return absl::OkStatus();
}

// An option that is not set is not given.
std::optional<std::string> IfGiven(const std::string& text) {
  return text.empty() ? std::nullopt : std::optional(text);
}

absl::StatusOr<RankSettings> RanksOf(const DaemonOptions& options,
                                     const std::map<std::string, std::string>& environment) {
  return ReadRankSettings({.rank = IfGiven(options.rank),
                           .world_size = IfGiven(options.world_size),
                           .leader = IfGiven(options.leader),
                           .peer_listen = IfGiven(options.peer_listen)},
                          [&environment](const std::string& name) { return IfGiven(FirstOf(environment, name)); });
}

// What the command line itself has given.
struct Flags {
  std::map<std::string, DaemonFlag::Values> texts;  // of those that are settings, by name
  std::string config;
  std::string dump;
  bool check = false;
};

void AddFlags(CLI::App& app, Flags& flags) {
  for (const DaemonFlag& flag : DaemonFlags()) {
    std::string help = flag.help;
    if (!flag.fallback.empty()) help += " [" + flag.fallback + "]";
    if (flag.type == "switch") {
      app.add_flag("--" + flag.name, flags.texts[flag.name], help);
    } else {
      CLI::Option* option = app.add_option("--" + flag.name, flags.texts[flag.name], help)->expected(1);
      option->multi_option_policy(flag.repeated ? CLI::MultiOptionPolicy::TakeAll : CLI::MultiOptionPolicy::TakeLast);
      option->type_name(absl::AsciiStrToUpper(flag.type == "list" ? "text" : flag.type));
    }
  }
  app.add_option("--config", flags.config, "File with the same settings in TOML; flags and PENSTOCK_* win over it");
  app.add_flag("--check-config", flags.check, "Check all settings and exit");
  app.add_option("--dump", flags.dump, "Print a table as JSON and exit: flags or metrics");
}

// Reads the arguments; the text to print if that is all they ask for: help or the version.
absl::StatusOr<std::optional<std::string>> ReadArguments(CLI::App& app, const std::vector<std::string>& arguments) {
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    app.parse(reversed);
  } catch (const CLI::Success& asked) {
    std::ostringstream out;
    app.exit(asked, out, out);
    return std::optional(out.str());
  } catch (const CLI::ParseError& problem) {
    return InvalidField("command line", problem.what(), absl::StrCat(arguments.size(), " arguments"));
  }
  return std::optional<std::string>();
}

// For each setting that anything gives, what the first of flags, environment and file gives.
absl::StatusOr<GivenMap> Gather(const CLI::App& app, const Flags& flags,
                                const std::map<std::string, std::string>& environment) {
  GivenMap given;
  for (const DaemonFlag& flag : DaemonFlags()) {
    if (app.count("--" + flag.name) > 0) given[flag.name] = {flags.texts.at(flag.name), "flag", "--" + flag.name};
    const std::string variable = flag.environment_name();
    if (const auto found = environment.find(variable); found != environment.end()) {
      // Entries of a list stand apart by spaces: they may hold commas themselves.
      const DaemonFlag::Values values = flag.repeated
                                            ? DaemonFlag::Values(absl::StrSplit(found->second, ' ', absl::SkipEmpty()))
                                            : DaemonFlag::Values{found->second};
      given.try_emplace(flag.name, Given{values, "environment", variable});
    }
  }
  if (!flags.config.empty()) PENSTOCK_RETURN_IF_ERROR(ReadFile(flags.config, &given));
  return given;
}

// Sets every option from what is given, or to its default.
absl::Status SetOptions(GivenMap given, CommandLine& line) {
  for (const DaemonFlag& flag : DaemonFlags()) {
    const auto [found, missing] = given.try_emplace(
        flag.name,
        Given{flag.repeated ? DaemonFlag::Values{} : DaemonFlag::Values{flag.fallback}, "default", "--" + flag.name});
    line.origins[flag.name] = found->second.origin;
    line.options.settings.push_back(
        {flag.name, absl::StrJoin(found->second.values, " "), found->second.origin, flag.help});
    PENSTOCK_RETURN_IF_ERROR(flag.set(found->second.values, found->second.field, &line.options));
  }
  return absl::OkStatus();
}

}  // namespace

std::string FlagTableJson() {
  std::string json = "[";
  for (const DaemonFlag& flag : DaemonFlags()) {
    absl::StrAppend(&json, json.size() > 1 ? ",\n " : "\n ", "{\"name\":\"", flag.name, "\",\"environment\":\"",
                    flag.environment_name(), "\",\"type\":\"", flag.type, "\",\"default\":\"",
                    JsonEscape(flag.fallback), "\",\"repeated\":", flag.repeated ? "true" : "false", ",\"help\":\"",
                    JsonEscape(flag.help), "\"}");
  }
  return json + "\n]\n";
}

absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments,
                                             const std::map<std::string, std::string>& environment,
                                             const std::string& metrics_dump) {
  CLI::App app("Holds models that are cut into stages, trains and infers with them for clients.", "penstockd");
  app.set_version_flag("--version", "penstockd " PENSTOCK_VERSION);
  Flags flags;
  flags.config = FirstOf(environment, "PENSTOCK_CONFIG");
  AddFlags(app, flags);

  CommandLine line;
  PENSTOCK_ASSIGN_OR_RETURN(const std::optional<std::string> asked, ReadArguments(app, arguments));
  if (asked.has_value()) {
    line.action = CommandLine::Action::kPrint;
    line.text = *asked;
    return line;
  }
  if (!flags.dump.empty()) {
    if (flags.dump != "flags" && flags.dump != "metrics") {
      return InvalidField("--dump", "must be flags or metrics", flags.dump);
    }
    line.action = CommandLine::Action::kPrint;
    line.text = flags.dump == "flags" ? FlagTableJson() : metrics_dump;
    return line;
  }

  PENSTOCK_ASSIGN_OR_RETURN(GivenMap given, Gather(app, flags, environment));
  PENSTOCK_RETURN_IF_ERROR(SetOptions(std::move(given), line));
  if (line.options.health_listen == "off") line.options.health_listen.clear();
  if (line.options.metrics_listen == "off") line.options.metrics_listen.clear();
  if (line.options.admin_listen == "off") line.options.admin_listen.clear();
  if (line.options.state_dir.empty()) line.options.state_dir = DefaultStateDir(environment);
  PENSTOCK_ASSIGN_OR_RETURN(line.options.ranks, RanksOf(line.options, environment));
  PENSTOCK_RETURN_IF_ERROR(CheckTogether(line.options));
  if (flags.check) line.action = CommandLine::Action::kCheckConfig;
  return line;
}

}  // namespace penstock
