#pragma once

// The ways of messages through a trace: from the action that made one, over its sending and receipt, to the action that
// used it.

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/observe/trace_capture.h"

namespace penstock {

// A place where a flow begins, goes through, or ends. A flow never forks: each message has its own, skip values too.
struct FlowPoint {
  enum class Kind : uint8_t { kBegin, kStep, kEnd };
  uint64_t flow = 0;
  Kind kind = Kind::kStep;
};

// Finds the flows of a capture. Only messages whose sending and receipt are both there have one, so that each has both
// ends; it is drawn out to the actions that made and used the message where they are there too.
//
// Threads:   constant after construction.
class TraceFlows {
 public:
  explicit TraceFlows(const TraceCapture& capture);

  std::span<const FlowPoint> PointsOf(const TraceRecord& record) const;

 private:
  using Points = std::unordered_map<uint64_t, std::vector<FlowPoint>>;
  Points sends_;     // by correlation
  Points receives_;  // by correlation
  Points actions_;   // by what ActionKey() returns
};

}  // namespace penstock
