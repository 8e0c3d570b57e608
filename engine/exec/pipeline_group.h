#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/ids.h"
#include "engine/device/device.h"
#include "engine/device/device_streams.h"
#include "engine/device/link.h"
#include "engine/exec/pipeline_spec.h"
#include "engine/exec/rank_commands.h"
#include "engine/plan/plan.h"
#include "engine/transport/transport.h"

namespace penstock {

// How the leader of a pipeline reaches the other ranks that have stages of it.
//
// Lifecycle: MakeTransport(), then Build(), each once; what they return goes before this.
class PipelineRanks {
 public:
  virtual ~PipelineRanks() = default;

  // The leader's end of what carries tensors. `streams` by stage; null: another rank's. `on_failed`: a peer is lost, or
  // a message was not what it must be.
  virtual std::unique_ptr<Transport> MakeTransport(std::vector<DeviceStreams*> streams,
                                                   std::function<void(const MessageKey&)> on_arrival,
                                                   std::function<void(const absl::Status&)> on_failed) = 0;
  // The stages of each other rank of the plan, built where they belong. Fails: as Pipeline::Create, with the rank;
  // UNAVAILABLE / RANK_LOST.
  virtual absl::StatusOr<std::map<Rank, std::unique_ptr<RankCommands>>> Build(const PipelineSpec& spec,
                                                                              RankEvents* leader) = 0;
};

// The other processes that stages may stand in.
class PipelineGroup {
 public:
  virtual ~PipelineGroup() = default;

  // Those of the other ranks, in their order, as a process with `own` devices knows them (DeviceOfRank), also of ranks
  // that are not there at present. Fails: UNAVAILABLE / GROUP_INCOMPLETE before they have all been there.
  virtual absl::StatusOr<std::vector<Device>> Devices(const std::vector<Device>& own) const = 0;
  // All of them are there, so that a pipeline can be made.
  virtual bool complete() const = 0;
  // Between its ranks, as far as they are known, measured if they are not; empty: they do not count. May block for some
  // seconds.
  virtual std::vector<Link> Links() = 0;
  // The other ranks of a plan, as they are now. `name`: of the pipeline. Fails: UNAVAILABLE / GROUP_INCOMPLETE.
  virtual absl::StatusOr<std::unique_ptr<PipelineRanks>> Open(const std::string& name, const Plan& plan) = 0;
};

}  // namespace penstock
