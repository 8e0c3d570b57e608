#pragma once

// What a machine's facts mean for a daemon on it, and what to do about them.

#include <string>
#include <vector>

#include "client/cli/machine_facts.h"

namespace penstock {

struct Finding {
  enum class Level { kOk, kWarn, kFail };
  std::string name;
  Level level = Level::kOk;
  std::string detail;
  std::string fix;  // empty for kOk
};

// "ok", "warn", "fail".
std::string_view NameOf(Finding::Level level);

// One finding for each thing that is checked, in a fixed order.
std::vector<Finding> Judge(const MachineFacts& facts);

// The ports that a daemon takes by default; one that answers has taken its own.
Finding JudgePorts(const MachineFacts& facts, bool daemon_answers);

}  // namespace penstock
