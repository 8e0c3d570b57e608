#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/daemon_options.h"

namespace penstock {

// One setting: how it is called and how its text becomes a value.
struct DaemonFlag {
  using Values = std::vector<std::string>;

  std::string name;      // of the flag, without its dashes, and of the key in a file
  std::string type;      // "text", "list", "count", "bytes", "time", "ratio", "choice" or "switch"
  std::string fallback;  // the default as text; empty for lists
  std::string help;
  bool repeated = false;
  // Fails:     INVALID_ARGUMENT / FIELD_INVALID of `field`.
  std::function<absl::Status(const Values& values, const std::string& field, DaemonOptions* options)> set;

  std::string environment_name() const;  // PENSTOCK_STATE_DIR for state-dir
};

// Every setting, in the order of --help.
const std::vector<DaemonFlag>& DaemonFlags();

// Null: there is no such setting.
const DaemonFlag* FindDaemonFlag(const std::string& name);

}  // namespace penstock
