#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "engine/base/ids.h"
#include "engine/exec/device_pool.h"
#include "engine/exec/pipeline.h"
#include "engine/exec/pipeline_group.h"
#include "engine/exec/rank_host.h"
#include "engine/transport/group_transport.h"
#include "engine/transport/peer_edges.h"
#include "tests/support/fake_carrier.h"

namespace penstock::testing {

// Several ranks in one process: each has devices of its own, and they reach each other by carriers, in memory unless
// told otherwise. One pipeline at a time.
//
// Lifecycle: outlives the pipelines that are made over it.
class GroupInProcess : public PipelineGroup {
 public:
  using MakeCarrier = std::function<std::unique_ptr<Carrier>(Rank)>;

  // `devices` of each rank, under the same names.
  GroupInProcess(int ranks, const std::vector<Device>& devices, MakeCarrier make_carrier = {});
  ~GroupInProcess() override;

  // The leader's devices, and itself, in the options; what else is in them counts for all ranks.
  Pipeline::Options Options(Pipeline::Options options);

  std::unique_ptr<Transport> MakeTransport(const Plan& plan, std::vector<DeviceStreams*> streams,
                                           std::function<void(const MessageKey&)> on_arrival,
                                           std::function<void(const absl::Status&)> on_failed) override;
  absl::StatusOr<std::map<Rank, std::unique_ptr<RankCommands>>> Build(const PipelineSpec& spec, const Plan& plan,
                                                                      RankEvents* leader) override;

  int ranks() const { return static_cast<int>(members_.size()); }
  DevicePool& devices() { return *members_[0].pool; }  // of the leader

 private:
  struct Member {
    std::unique_ptr<DevicePool> pool;
    std::unique_ptr<PeerEdges> edges;
  };
  std::unique_ptr<Transport> TransportOf(Rank self, const Plan& plan, std::vector<DeviceStreams*> streams,
                                         std::function<void(const MessageKey&)> on_arrival,
                                         std::function<void(const absl::Status&)> on_failed);

  FakeCarrier::Network network_;
  std::vector<Member> members_;
  Pipeline::Options options_;
  int built_ = 0;
};

}  // namespace penstock::testing
