#include "client/cli/text_options.h"

#include "client/cli/exit_code.h"
#include "client/cli/number_checks.h"
#include "engine/base/status_macros.h"
#include "engine/wire/tensor_header.h"

namespace penstock {

void AddSourceOptions(CLI::App* command, TextOptions* options, const std::string& text_help,
                      const std::string& data_help) {
  CLI::Option* text =
      command->add_option("--text", options->texts, text_help)->type_name("FILE")->allow_extra_args(false);
  CLI::Option* data = command->add_option("--data", options->data, data_help)->type_name("FILE")->excludes(text);
  command->add_option("--target", options->target, "Array of --data; unset: the signature's, target or labels")
      ->type_name("NAME")
      ->needs(data);
}

void AddRowOptions(CLI::App* command, TextOptions* options, const std::string& batch_help,
                   const std::string& seed_help) {
  command->add_option("--batch", options->batch, batch_help)
      ->check(Positive())
      ->type_name("ROWS")
      ->capture_default_str();
  command->add_option("--sequence", options->sequence, "Bytes of each row; unset: what the pipeline takes")
      ->check(Positive())
      ->type_name("N")
      ->excludes(command->get_option("--data"));
  command->add_option("--seed", options->seed, seed_help)->type_name("N")->capture_default_str();
}

absl::StatusOr<std::string> ReadTexts(const TextOptions& options, Session& session) {
  if (options.texts.empty() && options.data.empty()) return UsageError("--text", "missing; or give --data");
  std::string text;
  for (const std::string& path : options.texts) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::string part, session.ReadFile(path, WireLimits().max_request_bytes, "a text"));
    text += part;
  }
  return text;
}

}  // namespace penstock
