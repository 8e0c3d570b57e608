#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/ids.h"
#include "engine/device/device_streams.h"
#include "engine/exec/pipeline_spec.h"
#include "engine/exec/rank_commands.h"
#include "engine/plan/plan.h"
#include "engine/transport/transport.h"

namespace penstock {

// How the leader of a pipeline reaches the other ranks that have stages of it.
//
// Lifecycle: MakeTransport(), then Build(), each once for a pipeline; what they return goes before the group.
class PipelineGroup {
 public:
  virtual ~PipelineGroup() = default;

  // The leader's end of what carries tensors. `streams` by stage; null: another rank's. `on_failed`: a peer is lost, or
  // a message was not what it must be.
  virtual std::unique_ptr<Transport> MakeTransport(const Plan& plan, std::vector<DeviceStreams*> streams,
                                                   std::function<void(const MessageKey&)> on_arrival,
                                                   std::function<void(const absl::Status&)> on_failed) = 0;
  // The stages of each other rank of the plan, built where they belong. Fails: as Pipeline::Create, with the rank;
  // UNAVAILABLE / RANK_LOST.
  virtual absl::StatusOr<std::map<Rank, std::unique_ptr<RankCommands>>> Build(const PipelineSpec& spec,
                                                                              const Plan& plan, RankEvents* leader) = 0;
};

}  // namespace penstock
