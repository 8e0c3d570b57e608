#pragma once

// What every fuzz target demands of a reader.

#include <cstdlib>
#include <iostream>
#include <string>

#include "absl/status/status.h"
#include "engine/base/error.h"

namespace penstock::testing {

// Ends the process, which libFuzzer reports with the input, unless `right`.
inline void Demand(bool right, const char* what) {
  if (right) return;
  std::cerr << "fuzz: " << what << std::endl;
  std::abort();
}

// An error must have a reason, and a fault of the input is no fault of ours.
inline void DemandReason(const absl::Status& status) {
  if (status.ok()) return;
  const std::string reason = ReasonOf(status);
  Demand(!reason.empty() && reason != "BUG", "an error has no reason or tells of a fault of the program");
}

}  // namespace penstock::testing
