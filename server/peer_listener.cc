#include "server/peer_listener.h"

#include <utility>

#include "engine/base/status_macros.h"
#include "server/rank_options.h"

namespace penstock {
namespace {

constexpr int64_t kPeerMessageBytes = 4 << 20;
constexpr int64_t kPeerMemoryBytes = int64_t{1} << 30;

}  // namespace

PeerListener::PeerListener(Parts parts) : parts_(std::move(parts)) {
  const DaemonOptions& options = *parts_.options;
  const Authenticator* authenticator = parts_.authenticator;
  if (parts_.credentials == nullptr) {
    anybody_ = std::make_unique<Authenticator>(Identity{.role = Role::kAdmin}, parts_.clock);
    authenticator = anybody_.get();
  }
  LeadingGroup::Options group;
  group.self = DescribeRank(options, *parts_.devices);
  group.membership = {.epoch = parts_.epoch,
                      .world_size = options.ranks.world_size,
                      .build = group.self.build,
                      .carrier = group.self.carrier,
                      .instructions = group.self.instructions,
                      .peer_timeout = options.peer_timeout,
                      .clock = parts_.clock};
  group.carriers = CarriersOf(options, parts_.timers, parts_.clock);
  // A name that does not resolve yet will, before others can join.
  group.self.address = group.carriers.host().value_or(group.self.host);
  group.send_timeout_nanos = absl::ToInt64Nanoseconds(kRankSendTimeout);
  group.on_change = parts_.on_change;
  group_ = std::make_unique<LeadingGroup>(std::move(group), authenticator, parts_.timers, parts_.clock);
}

absl::Status PeerListener::Start() {
  // For a group on this host, where the others look for it, unless something else was asked for.
  const DaemonOptions& options = *parts_.options;
  const bool here = options.peer_listen.empty() && LeaderIsOnThisHost(options);
  PENSTOCK_ASSIGN_OR_RETURN(server_,
                            ApiServer::Create({.listen = here ? options.ranks.leader : options.ranks.peer_listen,
                                               .field = here ? "--leader" : "--peer-listen",
                                               .insecure = true,  // CheckRankOptions() has judged
                                               .credentials = parts_.credentials,
                                               .max_message_bytes = kPeerMessageBytes,
                                               .memory_bytes = kPeerMemoryBytes},
                                              {group_->service()}, parts_.metrics, parts_.clock));
  return group_->Start();
}

void PeerListener::Close() {
  if (group_ != nullptr) group_->Close();
  if (server_ != nullptr) server_->Shutdown(absl::ZeroDuration());
}

}  // namespace penstock
