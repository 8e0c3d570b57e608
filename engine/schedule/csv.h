#pragma once

// The frame of a schedule in CSV: rows are lanes, cells are read by the caller.

#include <functional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/schedule/schedule.h"

namespace penstock {

// Calls read(cell, list) for every cell that is not blank, without the blanks around it; what it appends to the list
// stands in that lane's row. Stages and micro-batches follow from the actions. A failure of `read` is told with the lane
// and the number of the cell, from 0, blank ones counted, and carries them as values `lane` and `cell`.
absl::StatusOr<Schedule> ReadCsv(
    std::string_view text, std::string_view kind,
    const std::function<absl::Status(std::string_view cell, std::vector<Action>* list)>& read);

}  // namespace penstock
