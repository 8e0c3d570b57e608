#pragma once

#include "engine/schedule/action.h"

namespace penstock {

struct Pass;

// A moment at which what a lane holds may change, for tests that count it.
//
// Model:     kLeftOver comes once per pass that the lane's stages have when it gets its list; then kBegins and kEnded
//            around every action of a micro-batch, kEnded only where it has not failed.
// Threads:   the thread of the lane's device.
struct PassEvent {
  enum class When { kLeftOver, kBegins, kEnded };

  When when = When::kLeftOver;
  int lane = 0;
  Action action;  // not of kLeftOver
  const Pass& pass;
};

}  // namespace penstock
