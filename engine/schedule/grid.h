#pragma once

// Draws action lists as a grid of text, with marked cells.

#include <string>
#include <vector>

#include "engine/schedule/dependencies.h"
#include "engine/schedule/schedule.h"

namespace penstock {

// Cells to mark. `culprits` print as >x<, `others` as (x). A position just past the end of a list marks what is missing
// there.
struct GridMarks {
  std::vector<Place> culprits;
  std::vector<Place> others;
};

// The whole grid: a heading, then one row per position, "." where a list has ended. Every line ends with a newline.
std::string RenderGrid(const Schedule& schedule);

// The part of the grid around the marks: all of it if it is small, else some rows and lanes on each side of each mark,
// with "..." where rows are left out.
std::string RenderGridAround(const Schedule& schedule, const GridMarks& marks);

}  // namespace penstock
