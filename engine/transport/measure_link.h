#pragma once

// How fast the link to a peer is, by the carrier that moves its tensors.

#include <cstdint>

#include "engine/base/clock.h"
#include "engine/base/ids.h"
#include "engine/device/link.h"
#include "engine/transport/peer_edges.h"

namespace penstock {

inline constexpr int64_t kLinkBudgetNanos = 300'000'000;

// Measures by echoes: half of the shortest way there and back of an empty message is the latency; what a large one takes
// beyond that is the time of its bytes. Sizes grow up to kMaximumProbeBytes as long as there is time for them; the
// largest one that has come back counts. Empty ones take a third of the budget, but are two at least, for the first may
// still connect. A link on which the smallest size does not come back in time has as many bytes per second as it could
// have had at most.
//
// Blocks, but not for longer than the budget; what is under way then goes on without it. Other traffic of the link makes
// it look slower.
//
// Units:     nanoseconds of the clock.
// Fails:     not: a link without an echo, whose latency takes all the time, or with a peer that is lost, is not
//            `measured`, and says why.
Link MeasureLink(PeerEdges* edges, Rank self, Rank peer, Clock* clock = RealClock(),
                 int64_t budget_nanos = kLinkBudgetNanos);

}  // namespace penstock
