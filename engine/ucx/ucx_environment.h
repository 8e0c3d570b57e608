#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace penstock {

// Where the tensors of a rank travel.
struct UcxEnvironmentOptions {
  std::string network_interface;  // "eth0"; empty: UCX chooses
  std::string port_range;  // "8500-8599"; empty: any. UCX never ends looking for a port in a range without a free one
};

// What must be in the environment of a process when UCX is loaded: name and value.
//
// TCP only: after a kill, peers that share memory cannot be joined again; and without a network UCX shall not start. No
// zero-copy sends and no puts: a peer that is killed in the middle of one ends this process, too. No memory hooks and no
// signal handlers: the process has its own.
std::vector<std::pair<std::string, std::string>> UcxEnvironment(const UcxEnvironmentOptions& options = {});

// Sets those of UcxEnvironment() that are not set yet: what an operator has set stays. To be called before UCX is loaded
// and before any thread starts, as others may read the environment.
void PrepareUcxEnvironment(const UcxEnvironmentOptions& options = {});

// Whether UCX can be loaded: what a rank's life depends on is as UcxEnvironment() says. Interface, ports and segments may
// be an operator's own.
//
// Fails:     FAILED_PRECONDITION / FEATURE_DISABLED naming the variable, its value, and what to do.
absl::Status CheckUcxEnvironment();

}  // namespace penstock
