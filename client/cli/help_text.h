#pragma once

// How help and the list of commands look.

#include <memory>
#include <string>
#include <vector>

#include "client/cli/cli11.h"

namespace penstock {

// Shows examples (an application's footer) before everything else.
std::shared_ptr<CLI::FormatterBase> ExamplesFirst();

// The command's words without the program's name: "pipeline create".
std::string CommandWords(const CLI::App& command);

// Every command with its arguments and options, one per line; the shape that documents and tests compare with.
std::string DumpCommands(const CLI::App& root);

// Names the first argument that the tree does not know, with the nearest one that it does. "" if all are known.
std::string UnknownArgument(const CLI::App& root, const std::vector<std::string>& arguments);

// Names the first option that has nothing after its `=`, "" if there is none. CLI11 takes `--dry-run=` for a switch without
// a value, and gives `--caller= status` the next word.
std::string EmptyValue(const CLI::App& root, const std::vector<std::string>& arguments);

}  // namespace penstock
