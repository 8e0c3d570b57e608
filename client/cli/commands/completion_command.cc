// penstock completion

#include <memory>

#include "client/cli/command_table.h"
#include "client/cli/completion.h"

namespace penstock {

void AddCompletionCommand(CommandTable& table) {
  CLI::App* command = table.Add(table.root(), "completion", "Print a script that completes commands in a shell",
                                "source <(penstock completion bash)\n"
                                "penstock completion fish >~/.config/fish/completions/penstock.fish");
  auto shell = std::make_shared<std::string>();
  command->add_option("SHELL", *shell, "bash, fish or zsh")->required()->check(CLI::IsMember(CompletionShells()));
  table.Run(command, [shell, root = table.root()](Session& session) {
    session.out() << CompletionScript(*root, *shell) << std::flush;
    return absl::OkStatus();
  });
}

}  // namespace penstock
