// The program `penstock`: the command line on the process's streams.

#include <grpc/grpc.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "client/cli/command_line.h"
#include "client/cli/interrupt.h"
#include "client/cli/setting_file.h"
#include "client/cli/stop_signal.h"
#include "client/cli/stoppable_input.h"
#include "client/cli/terminal.h"

namespace {

bool ForPeople(int descriptor) {
  const char* no_color = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  const bool dumb = terminal != nullptr && std::string(terminal) == "dumb";
  return isatty(descriptor) && !dumb && (no_color == nullptr || no_color[0] == '\0');
}

// What tools that trace shell commands hand down. Anything else than its alphabet could not even be sent.
std::string Traceparent() {
  const char* given = std::getenv("TRACEPARENT");
  const std::string text = given == nullptr ? "" : given;
  return text.find_first_not_of("0123456789abcdef-") == std::string::npos ? text : "";
}

}  // namespace

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);
  penstock::Interrupt::BlockSignals();
  // Between calls gRPC looks after a connection that is being made only every 5 s; a starting daemon is ready sooner.
  setenv("GRPC_CLIENT_CHANNEL_BACKUP_POLL_INTERVAL_MS", "100", /*overwrite=*/0);
  // Errors are told by the commands; gRPC would write a line of its own for each attempt.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  // One reference that is never given back: without it, the last channel's end may stall the exit for seconds.
  grpc_init();
  std::ios::sync_with_stdio(false);
  penstock::CommandWorld world;
  penstock::StopSignal stop;
  penstock::StoppableInput input(STDIN_FILENO, stop);
  std::istream in(&input);
  world.in = &in;
  world.stop = &stop;
  world.out = &std::cout;
  world.err = &std::cerr;
  world.in_is_terminal = isatty(STDIN_FILENO);
  world.out_is_terminal = isatty(STDOUT_FILENO);
  world.err_is_terminal = ForPeople(STDERR_FILENO);
  world.out_has_colours = ForPeople(STDOUT_FILENO);
  world.open_terminal = penstock::OpenProcessTerminal;
  world.traceparent = Traceparent();
  std::error_code no_folder;
  world.setting_files = penstock::SettingFiles(std::filesystem::current_path(no_folder), [](const std::string& name) {
    const char* value = std::getenv(name.c_str());
    return std::string(value == nullptr ? "" : value);
  });
  return penstock::RunCommandLine(std::vector<std::string>(argv + 1, argv + argc), world, {.handle_interrupts = true});
}
