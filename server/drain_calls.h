#pragma once

// The calls of AdminService.Drain, and what GetServerInfo tells of a drain.

#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "penstock/v1/admin.pb.h"
#include "server/drain_control.h"

namespace penstock {

// What the daemon knows of its end.
struct DrainFacts {
  bool starting = false;
  bool saves = true;  // there is time for saves
  absl::Duration longest;
  int64_t calls_left = 0;
  std::function<absl::Status()> check_journals;  // whether they can be emptied
};

// Does what the request asks for.
absl::StatusOr<v1::DrainState> ServeDrain(const v1::DrainRequest& request, const DrainFacts& facts,
                                          DrainControl* control);

// Without a drain: all fields unset.
v1::DrainState DescribeDrain(const DrainControl& control, const DrainFacts& facts);

}  // namespace penstock
