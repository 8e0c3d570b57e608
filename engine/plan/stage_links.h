#pragma once

// What stages hand to each other over the links between ranks, and what that takes.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/ids.h"
#include "engine/plan/device_cut.h"
#include "engine/plan/plan.h"
#include "engine/plan/plan_request.h"
#include "engine/plan/profile.h"
#include "engine/schedule/virtual_time.h"

namespace penstock {

// That of a stage's device; where no device of its rank is known, the one that the cut gives it.
Rank RankOfStage(const PlanRequest& request, const std::string& device, size_t stage);

// The ranks of so many stages that costs will cut. Empty where no link counts, or there is no such placement.
std::vector<Rank> RanksOfStages(const PlanRequest& request, int stages);

// Of every pair of stages that hand something to each other from rank to rank. A link that could not be measured takes
// no time. Empty where no link counts.
std::vector<StageTransfer> TransfersOf(const PlanRequest& request, const std::vector<LayerProfile>& profile,
                                       const std::vector<int>& first_layers, const std::vector<Rank>& ranks);

// The same as the simulator knows them.
std::map<std::pair<int, int>, EdgeCosts> EdgesOf(const std::vector<StageTransfer>& transfers);

// What `bytes` that enter a stage take one way, in microseconds, by the link from the stage before; also those of skips,
// which may come by another one. Empty where no link counts.
std::function<double(int stage, int64_t bytes)> CostOfEntering(const PlanRequest& request, int stages);

// Fills in the links and transfers of a plan with its stages and skips, and says so in its `why`; also that the layers
// of another rank were measured here, if any stage stands there.
void AddRanks(const PlanRequest& request, const std::vector<LayerProfile>& profile, Plan& plan);

}  // namespace penstock
