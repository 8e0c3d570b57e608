#pragma once

// The group of ranks that a daemon leads, and where they join it.

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "engine/base/clock.h"
#include "engine/base/timer_queue.h"
#include "engine/device/device.h"
#include "engine/observe/metrics.h"
#include "server/api_server.h"
#include "server/daemon_options.h"
#include "server/identity/authenticator.h"
#include "server/ranks/leading_group.h"

namespace penstock {

// Opens the group that this daemon leads to the other ranks.
//
// Owns:      the group and its listener. What it is given outlives it; pipelines go before it.
// Lifecycle: Start(), from which on ranks may join; Close() once, after the pipelines.
// Fails:     Start: FAILED_PRECONDITION / LISTEN_FAILED, naming the flag that gives the address.
class PeerListener {
 public:
  struct Parts {
    const DaemonOptions* options = nullptr;
    const std::vector<Device>* devices = nullptr;
    Epoch epoch;
    std::shared_ptr<grpc::ServerCredentials> credentials;  // null: plaintext
    const Authenticator* authenticator = nullptr;          // where there are credentials
    ServerMetrics* metrics = nullptr;
    TimerQueue* timers = nullptr;
    Clock* clock = nullptr;
    std::function<void(bool complete)> on_change;  // as LeadingGroup's
  };
  explicit PeerListener(Parts parts);
  ~PeerListener() { Close(); }

  absl::Status Start();
  void Close();

  LeadingGroup& group() { return *group_; }

 private:
  const Parts parts_;
  std::unique_ptr<Authenticator> anybody_;  // where there are no credentials
  std::unique_ptr<LeadingGroup> group_;
  std::unique_ptr<ApiServer> server_;
};

}  // namespace penstock
