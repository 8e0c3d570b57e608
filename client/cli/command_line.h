#pragma once

// The whole command line as a function, so that tests run it without a process.

#include <string>
#include <vector>

#include "client/cli/session.h"

namespace penstock {

struct CommandLineOptions {
  bool handle_interrupts = false;  // true in the program: Ctrl-C cancels the command's calls
};

// Parses `arguments` (without the program's name) and runs the command. Returns the exit code.
int RunCommandLine(const std::vector<std::string>& arguments, const CommandWorld& world,
                   const CommandLineOptions& options = {});

}  // namespace penstock
