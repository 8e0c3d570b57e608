#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "engine/base/ids.h"
#include "engine/device/device.h"
#include "engine/handles/handle_store.h"
#include "penstock/v1/admin.pb.h"
#include "server/daemon_options.h"
#include "server/peer/group_view.h"

namespace penstock {

// What the answer of GetServerInfo is made from.
struct ServerFacts {
  const DaemonOptions* options = nullptr;
  Epoch epoch;
  absl::Time start_time;
  const std::vector<Device>* devices = nullptr;
  const HandleStore* handles = nullptr;
  std::string api_address;
  std::string metrics_address;
  std::string_view state;
};

v1::ServerInfo DescribeServer(const ServerFacts& facts);
v1::GroupInfo DescribeGroup(const GroupView& group);

}  // namespace penstock
