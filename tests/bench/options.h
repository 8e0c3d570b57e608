#pragma once

// The command line of a benchmark, read by CLI11: --help, and a clear refusal of what it does not know.

#include <CLI/CLI.hpp>

namespace penstock::bench {

// Fills in what was added to `app`. Ends the program: with 0 after --help, with 2 after a wrong argument, which it
// names.
void ParseOptions(CLI::App& app, int argc, char** argv);

}  // namespace penstock::bench
