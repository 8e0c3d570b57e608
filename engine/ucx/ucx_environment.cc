#include "engine/ucx/ucx_environment.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"

namespace penstock {
namespace {

using Variables = std::vector<std::pair<std::string, std::string>>;

Variables Required() {
  return {{"UCX_TLS", "tcp"},      {"UCX_TCP_PUT_ENABLE", "n"},   {"UCX_ZCOPY_THRESH", "inf"}, {"UCX_TCP_CONN_NB", "y"},
          {"UCX_MEM_EVENTS", "n"}, {"UCX_HANDLE_ERRORS", "none"}, {"UCX_DEBUG_SIGNO", "0"}};
}

}  // namespace

Variables UcxEnvironment(const UcxEnvironmentOptions& options) {
  Variables variables = Required();
  variables.emplace_back("UCX_TCP_TX_SEG_SIZE", "272K");
  variables.emplace_back("UCX_TCP_RX_SEG_SIZE", "272K");
  if (!options.network_interface.empty()) variables.emplace_back("UCX_NET_DEVICES", options.network_interface);
  if (!options.port_range.empty()) variables.emplace_back("UCX_TCP_PORT_RANGE", options.port_range);
  return variables;
}

void PrepareUcxEnvironment(const UcxEnvironmentOptions& options) {
  for (const auto& [name, value] : UcxEnvironment(options)) setenv(name.c_str(), value.c_str(), /*overwrite=*/0);
}

absl::Status CheckUcxEnvironment() {
  for (const auto& [name, value] : Required()) {
    const char* const set = std::getenv(name.c_str());
    if (set != nullptr && set == value) continue;
    return Error(absl::StatusCode::kFailedPrecondition, "FEATURE_DISABLED",
                 absl::StrCat("between ranks UCX needs ", name, "=", value, " in the environment, ",
                              set == nullptr ? "which was not prepared before UCX is loaded"
                                             : absl::StrCat("which has ", name, "=", set,
                                                            "; unset it, or use --peer-transport grpc")));
  }
  return absl::OkStatus();
}

}  // namespace penstock
