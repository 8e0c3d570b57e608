#pragma once

// The text or the arrays that a command reads, and the rows that it draws from it.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/cli11.h"
#include "client/cli/session.h"

namespace penstock {

struct TextOptions {
  std::vector<std::string> texts;
  std::string data;      // a file of arrays, instead of texts; empty: none
  std::string target;    // of its arrays; empty: as the signature says
  int64_t batch = 32;    // rows
  int64_t sequence = 0;  // bytes of a row; 0: the signature's
  uint64_t seed = 1;
};

// --text and --data, with these helps, of which a command takes one, and --target.
void AddSourceOptions(CLI::App* command, TextOptions* options, const std::string& text_help,
                      const std::string& data_help);
// --batch and --seed, with these helps, and --sequence; after AddSourceOptions().
void AddRowOptions(CLI::App* command, TextOptions* options, const std::string& batch_help,
                   const std::string& seed_help);

// All files, one after the other.
//
// Fails: a usage error if neither --text nor --data was given.
absl::StatusOr<std::string> ReadTexts(const TextOptions& options, Session& session);

}  // namespace penstock
