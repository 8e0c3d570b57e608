#pragma once

// What a daemon's options say of the ranks that it is one of.

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/base/clock.h"
#include "engine/base/timer_queue.h"
#include "engine/device/device.h"
#include "server/daemon_options.h"
#include "server/peer/group.h"
#include "server/peer/leader_link.h"
#include "server/ranks/group_carriers.h"

namespace penstock {

// How long a message between ranks may wait for credit.
inline constexpr absl::Duration kRankSendTimeout = absl::Seconds(60);

// The ranks of a plaintext group believe whoever comes: only on this host, unless --insecure says otherwise.
//
// Fails:     INVALID_ARGUMENT / FIELD_INVALID naming the flag.
absl::Status CheckRankOptions(const DaemonOptions& options);
// Before any thread starts: the environment that carriers need.
void PrepareForRanks(const DaemonOptions& options);
bool LeaderIsOnThisHost(const DaemonOptions& options);

// What the process says of itself to the other ranks.
RankDescription DescribeRank(const DaemonOptions& options, const std::vector<Device>& devices);
// Fails:     the host that it tells: FIELD_INVALID for a leader whose address does not resolve, or that there is no way to.
GroupCarriers::Options CarriersOf(const DaemonOptions& options, TimerQueue* timers, Clock* clock);
LeaderLink::Options LinkOf(const DaemonOptions& options, const std::vector<Device>& devices, Clock* clock);

}  // namespace penstock
