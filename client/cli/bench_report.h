#pragma once

#include <vector>

#include "client/cli/bench_point.h"
#include "client/cli/output.h"

namespace penstock {

// What `penstock bench` prints of all loads: a table or CSV, and JSON.
Document BenchReport(const std::vector<BenchPoint>& points, const BenchOptions& options);

}  // namespace penstock
