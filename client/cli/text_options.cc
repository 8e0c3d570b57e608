#include "client/cli/text_options.h"

#include "client/cli/number_checks.h"
#include "engine/base/status_macros.h"

namespace penstock {

void AddTextOption(CLI::App* command, TextOptions* options, const std::string& help) {
  command->add_option("--text", options->texts, help)->required()->type_name("FILE")->allow_extra_args(false);
}

void AddRowOptions(CLI::App* command, TextOptions* options, const std::string& batch_help) {
  command->add_option("--batch", options->batch, batch_help)
      ->check(Positive())
      ->type_name("ROWS")
      ->capture_default_str();
  command->add_option("--sequence", options->sequence, "Bytes of each row; unset: what the pipeline takes")
      ->check(Positive())
      ->type_name("N");
  command->add_option("--seed", options->seed, "Of the choice of text")->type_name("N")->capture_default_str();
}

absl::StatusOr<std::string> ReadTexts(const TextOptions& options, Session& session) {
  std::string text;
  for (const std::string& path : options.texts) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::string part, session.ReadFile(path));
    text += part;
  }
  return text;
}

}  // namespace penstock
