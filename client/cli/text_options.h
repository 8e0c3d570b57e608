#pragma once

// The text that a command reads, and the rows that it draws from it.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/session.h"

namespace penstock {

struct TextOptions {
  std::vector<std::string> texts;
  int64_t batch = 32;    // rows
  int64_t sequence = 0;  // bytes of a row; 0: the signature's
  uint64_t seed = 1;
};

// --text, with this help.
void AddTextOption(CLI::App* command, TextOptions* options, const std::string& help);
// --batch, with this help, --sequence and --seed.
void AddRowOptions(CLI::App* command, TextOptions* options, const std::string& batch_help);

// All files, one after the other.
absl::StatusOr<std::string> ReadTexts(const TextOptions& options, Session& session);

}  // namespace penstock
