#pragma once

// The tree of commands: how a command is declared, and what was chosen.

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "client/cli/cli11.h"
#include "client/cli/session.h"

namespace penstock {

// Collects the commands of a CLI11 application.
//
// Model:     Each command has examples, which its help shows first, and an action, which runs after parsing.
// Owns:      nothing; the application must outlive it.
// Example:   CLI::App* verb = table.Add(group, "list", "List pipelines", "penstock pipeline list");
//            auto options = std::make_shared<ListOptions>();
//            verb->add_flag("--all", options->all);
//            table.Run(verb, [options](Session& session) { return List(*options, session); });
class CommandTable {
 public:
  using Action = std::function<absl::Status(Session&)>;

  explicit CommandTable(CLI::App* app) : app_(app) {}

  CLI::App* root() { return app_; }

  // Declares a command or a group. Lines of `examples` are whole commands.
  CLI::App* Add(CLI::App* parent, const std::string& name, const std::string& description,
                const std::string& examples) {
    CLI::App* command = parent->add_subcommand(name, description);
    command->footer(examples);
    command->fallthrough();
    return command;
  }

  // The action of a command without verbs below it.
  void Run(CLI::App* command, Action action) {
    command->callback([this, command, action = std::move(action)] {
      chosen_ = action;
      chosen_command_ = command;
    });
  }

  const Action& chosen() const { return chosen_; }
  const CLI::App* chosen_command() const { return chosen_command_; }

 private:
  CLI::App* const app_;
  Action chosen_;
  const CLI::App* chosen_command_ = nullptr;
};

// The groups, in the order in which help shows them.
void AddStatusCommand(CommandTable& table);
void AddPipelineCommands(CommandTable& table);
void AddModelCommands(CommandTable& table);
void AddTrainCommand(CommandTable& table);
void AddEvaluateCommand(CommandTable& table);
void AddInferCommand(CommandTable& table);
void AddHandleCommands(CommandTable& table);
void AddCheckpointCommands(CommandTable& table);
void AddParamsCommands(CommandTable& table);
void AddJournalCommands(CommandTable& table);
void AddScheduleCommands(CommandTable& table);
void AddTraceCommand(CommandTable& table);
void AddTopCommand(CommandTable& table);
void AddStatsCommand(CommandTable& table);
void AddBenchCommand(CommandTable& table);
void AddHealthCommand(CommandTable& table);
void AddDrainCommand(CommandTable& table);
void AddLogCommands(CommandTable& table);
void AddConfigCommand(CommandTable& table);
void AddDoctorCommand(CommandTable& table);
void AddCompletionCommand(CommandTable& table);
void AddVersionCommand(CommandTable& table);

}  // namespace penstock
