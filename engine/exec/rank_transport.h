#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "engine/base/ids.h"
#include "engine/device/device_streams.h"
#include "engine/plan/plan.h"
#include "engine/transport/peer_edges.h"
#include "engine/transport/transport.h"

namespace penstock {

// What carries the tensors of a pipeline to and from one of its ranks, by the plan: which rank has a stage, who leads
// (rank 0), and how much each edge may hold. Ranks that share no message have no edge.
//
// Model:     No lane waits for credit, and no stream of messages for another's (GroupTransport), so credit only says how
//            far a sender may be ahead: so far that a receiver never waits for word to come back and forth.
// Owns:      a channel of `edges`, which outlives it. Every rank of a pipeline makes its own, of the same name and plan.
// Threads:   `on_arrival` and `on_failed` as GroupTransport's. `streams` by stage; null: another rank's.
// Units:     `send_timeout_nanos`: how long messages of a run may wait for credit while nothing of it is taken.
//            `credit`, of every stream: at least one message. Unset: by the plan. Usually only tests set it.
std::unique_ptr<Transport> MakeRankTransport(PeerEdges* edges, ChannelName channel, const Plan& plan, Rank self,
                                             std::vector<DeviceStreams*> streams, int64_t send_timeout_nanos,
                                             std::function<void(const MessageKey&)> on_arrival,
                                             std::function<void(const absl::Status&)> on_failed,
                                             const std::optional<EdgeCredit>& credit = std::nullopt);

}  // namespace penstock
