#pragma once

// Whose clock is how far ahead, as the messages between ranks tell.

#include <map>

#include "engine/base/ids.h"
#include "engine/observe/rank_trace.h"
#include "engine/observe/trace_capture.h"

namespace penstock {

// Narrows what is known of the clocks of `others` by the messages in all traces: none is received before it is sent.
// After it, with the offsets of `others` taken from their times, no message seems to arrive too early. Where messages and
// clocks contradict each other (a clock that has drifted in a long trace), nothing is changed. A rank that is missing
// stays as it is.
//
// Units:     nanoseconds.
// Cost:      one pass over the records, and the cube of the number of ranks for each rank.
// Source:    bounds from messages of both directions: Duda, Harrus, Haddad and Bernard, "Estimating Global Time in
//            Distributed Systems", ICDCS 1987; here among all ranks at once, as shortest paths.
void NarrowClocks(const TraceCapture& own, std::map<Rank, RankPart>* others);

}  // namespace penstock
