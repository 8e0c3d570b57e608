#pragma once

// What the lanes of a rank did, as a message and back.

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/observe/rank_trace.h"
#include "penstock/peer/v1/rank.pb.h"
#include "server/ranks/rank_convert.h"

namespace penstock {

// Fails:     as Outgoing::Add.
absl::Status AddTrace(const RankTrace& trace, OutgoingReport* to);

// What fits together; CheckRankTrace() judges it.
//
// Fails:     INVALID_ARGUMENT / RANK_MESSAGE naming the field and the value.
absl::StatusOr<RankTrace> TakeTrace(const peer::v1::TraceOfRank& message, IncomingTensors& tensors);

}  // namespace penstock
