#pragma once

// Reads the rows and cells of a schedule in CSV: a row is a lane; the caller parses each cell.

#include <functional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/schedule/schedule.h"

namespace penstock {

// Calls read(cell, list) for every cell that is not blank, without the blanks around it; what it appends to the list
// stands in that lane's row. Stages and micro-batches follow from the actions. A failure of `read` gets the lane and
// the number of the cell (from 0, blank ones counted) in its message and as the values `lane` and `cell`.
absl::StatusOr<Schedule> ReadCsv(
    std::string_view text, std::string_view kind,
    const std::function<absl::Status(std::string_view cell, std::vector<Action>* list)>& read);

}  // namespace penstock
