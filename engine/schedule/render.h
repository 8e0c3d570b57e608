#pragma once

// Draws a simulated schedule over time, as text and as SVG. grid.h draws action lists without times.

#include <string>

#include "engine/schedule/schedule.h"
#include "engine/schedule/simulate.h"

namespace penstock {

// Time as the pictures tell it: in units, six digits.
std::string UnitsText(Ticks ticks);

struct GanttOptions {
  int columns = 96;    // most characters of a row's time axis, 16 to 4096
  bool totals = true;  // the line with makespan, ideal and bubble
};

// One row per lane, time from left to right. An action is [F0], or F0 where the brackets do not fit, or its letter
// where the number does not; a lane that holds several stages names them: [2F0]. Idle time is a dot. Each row ends with
// the busy share of the lane; the last lines hold makespan, ideal, bubble, and what the letters mean. Actions that take
// no time are not drawn.
std::string RenderGantt(const Simulation& simulation, const GanttOptions& options = {});

struct SvgOptions {
  int width = 960;  // pixels of the time axis, 100 to 16384
};

// One row per lane, one rectangle per action, idle time coloured by cause, the ideal finish as a dashed line. It holds
// classes and presentation attributes only: no script, no style, so that the strictest content policy allows it. Every
// rectangle has a title; letters repeat what colours say.
std::string RenderSvg(const Simulation& simulation, const SvgOptions& options = {});

}  // namespace penstock
