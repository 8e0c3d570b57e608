#pragma once

#include <string>
#include <utility>
#include <vector>

namespace penstock {

// Where the tensors of a rank travel.
struct UcxEnvironmentOptions {
  std::string network_interface;  // "eth0"; empty: UCX chooses. A name that does not exist is only warned of by UCX
  std::string port_range;  // "8500-8599"; empty: any. UCX never ends looking for a port in a range without a free one
};

// What must be in the environment of a process before it starts, for UCX reads it when it is loaded: name and value.
//
// TCP only: after a kill, peers that share memory cannot be joined again. No zero-copy sends and no puts: a peer that is
// killed in the middle of one ends this process, too. No memory hooks and no signal handlers: the process has its own.
std::vector<std::pair<std::string, std::string>> UcxEnvironment(const UcxEnvironmentOptions& options = {});

}  // namespace penstock
