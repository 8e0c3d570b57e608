#pragma once

// Scripts that complete commands and options in shells, made from the tree of commands itself.

#include <string>
#include <vector>

#include "client/cli/cli11.h"

namespace penstock {

// The shells that are known: bash, fish, zsh.
const std::vector<std::string>& CompletionShells();

// A script for `shell`, one of CompletionShells(). It completes commands after the words that lead to them, options of
// the command and of the program, and the values of options that have a closed set; elsewhere names of files.
std::string CompletionScript(const CLI::App& root, const std::string& shell);

}  // namespace penstock
