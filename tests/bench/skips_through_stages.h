#pragma once

// What skips would be without portals, to show what those are worth.

#include <vector>

#include "engine/plan/skip_layout.h"

namespace penstock::bench {

// The same skips handed on from stage to stage, as pipelines without portals carry them.
std::vector<SkipRoute> ThroughStages(const std::vector<SkipRoute>& routes);

}  // namespace penstock::bench
