#include "engine/ucx/ucx_environment.h"

namespace penstock {

std::vector<std::pair<std::string, std::string>> UcxEnvironment(const UcxEnvironmentOptions& options) {
  std::vector<std::pair<std::string, std::string>> variables = {
      {"UCX_TLS", "tcp,self"},         {"UCX_TCP_PUT_ENABLE", "n"},     {"UCX_ZCOPY_THRESH", "inf"},
      {"UCX_TCP_TX_SEG_SIZE", "256K"}, {"UCX_TCP_RX_SEG_SIZE", "256K"}, {"UCX_TCP_CONN_NB", "y"},
      {"UCX_MEM_EVENTS", "n"},         {"UCX_HANDLE_ERRORS", "none"},   {"UCX_DEBUG_SIGNO", "0"},
  };
  if (!options.network_interface.empty()) variables.emplace_back("UCX_NET_DEVICES", options.network_interface);
  if (!options.port_range.empty()) variables.emplace_back("UCX_TCP_PORT_RANGE", options.port_range);
  return variables;
}

}  // namespace penstock
