#include "client/cli/command_line.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/cli/command_table.h"
#include "client/cli/error_text.h"
#include "client/cli/exit_code.h"
#include "client/cli/help_text.h"
#include "client/cli/interrupt.h"
#include "client/cli/near_miss.h"
#include "client/cli/number_checks.h"
#include "client/cli/setting_file.h"
#include "engine/base/clock.h"
#include "engine/base/guard.h"
#include "engine/base/read_to_end.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

constexpr char kExamples[] =
    "penstock status\n"
    "penstock pipeline create gpt --model gpt --option blocks=8 --option width=256 --stages 2 --micro-batches 8\n"
    "penstock train gpt --text book.txt --steps 200 --batch 32\n"
    "penstock infer gpt --prompt \"Once upon \" --bytes 100";

void AddGlobalOptions(CLI::App& app, GlobalOptions& options, std::string& dump) {
  app.add_option("--server", options.server, "Address of the daemon: HOST:PORT or unix:PATH")
      ->envname("PENSTOCK_SERVER")
      ->type_name("ADDRESS")
      ->capture_default_str();
  app.add_option("--caller", options.caller, "Name under which handles and quotas are kept")
      ->envname("PENSTOCK_CALLER")
      ->type_name("NAME");
  CredentialPaths& files = options.credentials;
  app.add_option("--tls-ca", files.tls_ca,
                 "Certificates as PEM that sign the daemon's; any of these four means TLS (without this one: the "
                 "machine's authorities)")
      ->envname("PENSTOCK_TLS_CA")
      ->type_name("FILE");
  app.add_option("--tls-cert", files.tls_cert, "Certificate as PEM that says who you are")
      ->envname("PENSTOCK_TLS_CERT")
      ->type_name("FILE");
  app.add_option("--tls-key", files.tls_key, "Its private key as PEM, without a password")
      ->envname("PENSTOCK_TLS_KEY")
      ->type_name("FILE");
  app.add_option("--token-file", files.token_file, "File with the bearer token that says who you are")
      ->envname("PENSTOCK_TOKEN_FILE")
      ->type_name("FILE");
  const std::vector<std::pair<std::string, OutputFormat>> formats = {{"table", OutputFormat::kTable},
                                                                     {"wide", OutputFormat::kWide},
                                                                     {"json", OutputFormat::kJson},
                                                                     {"jsonl", OutputFormat::kJsonLines},
                                                                     {"name", OutputFormat::kName}};
  app.add_option_function<std::string>(
         "-o,--output",
         [&options, formats](const std::string& word) {
           for (const auto& [name, format] : formats) {
             if (name == word) options.output = format;
           }
         },
         "How data is printed: table, wide, json, jsonl, name")
      ->check(CLI::IsMember({"table", "wide", "json", "jsonl", "name"}))
      ->envname("PENSTOCK_OUTPUT")
      ->type_name("FORMAT");
  app.add_option("--timeout", options.timeout_seconds,
                 "Longest time of the command, in seconds; of bench, top, trace and train, of each call")
      ->check(Positive())
      ->envname("PENSTOCK_TIMEOUT")
      ->type_name("SECONDS")
      ->capture_default_str();
  app.add_option("--request-id", options.request_id, "Repeat a lost call: the UUID that its error named")
      ->type_name("UUID");
  app.add_flag("--no-color", options.no_color, "No colours and no rewritten lines (also: NO_COLOR, TERM=dumb)");
  app.add_flag("--grpc-exit-codes", options.grpc_exit_codes, "Exit with 64 + the gRPC code of an error");
  app.add_option("--dump", dump, "Print every command with its options, then exit: --dump=commands")
      ->check(CLI::IsMember({"commands"}))
      ->type_name("WHAT");
}

// The group or command that the arguments reached.
const CLI::App* Deepest(const CLI::App* app) {
  while (!app->get_subcommands().empty()) app = app->get_subcommands().front();
  return app;
}

// The options that files may give, by name. Who they are for and what a call repeats belong to one command line only.
constexpr auto kFileOptions =
    std::to_array<std::string_view>({"server", "caller", "output", "timeout", "no-color", "grpc-exit-codes"});

// What an option holds, as text.
std::string ValueText(const CLI::Option& option) {
  if (!option.results().empty()) return option.results().back();
  if (option.get_items_expected_max() == 0) return "false";
  return option.get_lnames().front() == "output" ? "table" : option.get_default_str();
}

// As the other errors: the option, what is wrong with it, and the value.
std::string ProblemOf(const CLI::Error& error) {
  absl::string_view problem = error.what();
  if (!absl::ConsumePrefix(&problem, "Could not convert: ")) return error.what();
  const std::pair<std::string, std::string> parts = absl::StrSplit(problem, absl::MaxSplits(" = ", 1));
  return absl::StrCat(parts.first, ": takes no such value, got ", parts.second.empty() ? "''" : parts.second);
}

// Gives options that neither a flag nor a variable has set what files say, and notes where each value is from.
absl::Status ApplyFiles(CLI::App& app, const std::vector<std::string>& files, std::vector<Setting>* settings,
                        bool* timeout_given) {
  std::map<std::string, FileSetting> given;
  for (const std::string& path : files) {
    const absl::StatusOr<std::string> text = ReadToEnd(path, kMaxSettingBytes);
    if (!text.ok()) return UsageError(path, "cannot be read (" + std::string(text.status().message()) + ")");
    PENSTOCK_ASSIGN_OR_RETURN(const std::vector<FileSetting> found, ParseSettings(*text, path));
    for (const FileSetting& setting : found) {
      if (std::find(kFileOptions.begin(), kFileOptions.end(), setting.name) == kFileOptions.end()) {
        const std::string near = NearMiss(setting.name, {kFileOptions.begin(), kFileOptions.end()});
        return UsageError(setting.origin, "no such setting, got " + setting.name +
                                              (near.empty() ? "" : "; did you mean " + near + "?"));
      }
      given.try_emplace(setting.name, setting);
    }
  }
  const std::vector<CLI::Option*>& flags = app.parse_order();
  for (const std::string_view name : kFileOptions) {
    CLI::Option* option = app.get_option("--" + std::string(name));
    std::string origin = "default";
    if (std::find(flags.begin(), flags.end(), option) != flags.end()) {
      origin = "--" + std::string(name);
    } else if (option->count() > 0) {
      origin = option->get_envname();
    } else if (const auto found = given.find(std::string(name)); found != given.end()) {
      origin = found->second.origin;
      try {
        option->add_result(found->second.value);
        option->run_callback();
      } catch (const CLI::Error& problem) {
        return UsageError(origin, ProblemOf(problem));
      }
    }
    settings->push_back({std::string(name), ValueText(*option), origin});
    if (name == "timeout") *timeout_given = origin != "default";
  }
  return absl::OkStatus();
}

// The exit code of a command that went well, and whose output must have been written, too.
int Ended(const CommandWorld& world, ExitCode code) {
  if (world.out->flush()) return static_cast<int>(code);
  *world.err << "penstock: the output could not be written\n" << std::flush;
  return static_cast<int>(ExitCode::kFailure);
}

// Parses; returns an exit code if there is nothing to run. The only place that meets CLI11's exceptions.
std::optional<int> Parse(CLI::App& app, const std::vector<std::string>& arguments, const CommandWorld& world) {
  try {
    // CLI11 takes a vector from its end.
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
    const std::string empty = EmptyValue(app, arguments);
    if (!empty.empty()) throw CLI::ParseError(empty, CLI::ExitCodes::ConversionError);
    return std::nullopt;
  } catch (const CLI::CallForHelp&) {
    *world.out << Deepest(&app)->help();
    return Ended(world, ExitCode::kSuccess);
  } catch (const CLI::CallForVersion& version) {
    *world.out << version.what() << "\n";
    return Ended(world, ExitCode::kSuccess);
  } catch (const CLI::ParseError& error) {
    std::string problem = UnknownArgument(app, arguments);
    if (problem.empty()) problem = EmptyValue(app, arguments);
    if (problem.empty()) problem = ProblemOf(error);
    const std::string words = CommandWords(*Deepest(&app));
    *world.err << "penstock" << (words.empty() ? "" : " " + words) << ": " << problem << "\n  do:  penstock"
               << (words.empty() ? "" : " " + words) << " --help\n"
               << std::flush;
    return static_cast<int>(ExitCode::kUsage);
  }
}

int RunChosen(const CommandTable& table, const GlobalOptions& options, const CommandWorld& world, bool interrupts) {
  Session session(options, world);
  std::unique_ptr<Interrupt> interrupt;
  if (interrupts) {
    interrupt = std::make_unique<Interrupt>([&session] { session.CancelCalls(); });
  }
  absl::Status status;
  const absl::Status guarded = Guarded("the command", [&] { status = table.chosen()(session); });
  if (!guarded.ok()) {
    *world.err << ErrorText(CommandWords(*table.chosen_command()), guarded, options.server, options.credentials.any())
               << std::flush;
    return static_cast<int>(ExitCode::kFailure);  // whatever its reason means of the daemon
  }
  if (!status.ok()) {
    *world.err << ErrorText(CommandWords(*table.chosen_command()), status, options.server, options.credentials.any())
               << std::flush;
    return ExitCodeOf(status, options.grpc_exit_codes);
  }
  if (session.unstable()) {
    session.Say("penstock: the measurement did not settle; longer windows (--window) or a quieter machine may help");
    return Ended(world, ExitCode::kUnstable);
  }
  return Ended(world, session.partial() ? ExitCode::kPartial : ExitCode::kSuccess);
}

int ParseAndRun(const std::vector<std::string>& arguments, const CommandWorld& world,
                const CommandLineOptions& line_options) {
  CLI::App app("Train and run layer-partitioned models on a Penstock daemon.", "penstock");
  app.formatter(ExamplesFirst());
  app.footer(kExamples);
  app.set_help_flag("-h,--help", "Show examples and options");
  app.set_version_flag("--version", "penstock " PENSTOCK_VERSION, "Show the version of this program");
  GlobalOptions options;
  std::string dump;
  AddGlobalOptions(app, options, dump);

  CommandTable table(&app);
  AddStatusCommand(table);
  AddPipelineCommands(table);
  AddModelCommands(table);
  AddTrainCommand(table);
  AddEvaluateCommand(table);
  AddInferCommand(table);
  AddHandleCommands(table);
  AddCheckpointCommands(table);
  AddParamsCommands(table);
  AddJournalCommands(table);
  AddScheduleCommands(table);
  AddTraceCommand(table);
  AddTopCommand(table);
  AddStatsCommand(table);
  AddBenchCommand(table);
  AddHealthCommand(table);
  AddDrainCommand(table);
  AddLogCommands(table);
  AddConfigCommand(table);
  AddDoctorCommand(table);
  AddCompletionCommand(table);
  AddVersionCommand(table);

  if (const std::optional<int> done = Parse(app, arguments, world)) return *done;
  if (!dump.empty()) {
    *world.out << DumpCommands(app);
    return Ended(world, ExitCode::kSuccess);
  }
  if (table.chosen() == nullptr) {
    const std::string words = CommandWords(*Deepest(&app));
    *world.err << "penstock" << (words.empty() ? "" : " " + words) << ": a command is missing\n\n"
               << Deepest(&app)->help() << std::flush;
    return static_cast<int>(ExitCode::kUsage);
  }
  if (const absl::Status files = ApplyFiles(app, world.setting_files, &options.settings, &options.timeout_given);
      !files.ok()) {
    *world.err << ErrorText(CommandWords(*table.chosen_command()), files, options.server, options.credentials.any())
               << std::flush;
    return ExitCodeOf(files, options.grpc_exit_codes);
  }
  return RunChosen(table, options, world, line_options.handle_interrupts);
}

}  // namespace

int RunCommandLine(const std::vector<std::string>& arguments, const CommandWorld& world,
                   const CommandLineOptions& line_options) {
  auto code = static_cast<int>(ExitCode::kFailure);
  const absl::Status guarded = Guarded("the command line", [&] { code = ParseAndRun(arguments, world, line_options); });
  if (!guarded.ok()) *world.err << ErrorText("the command line", guarded, "", /*tls=*/false) << std::flush;
  return code;
}

}  // namespace penstock
