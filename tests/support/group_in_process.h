#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/ids.h"
#include "engine/exec/device_pool.h"
#include "engine/exec/pipeline.h"
#include "engine/exec/pipeline_group.h"
#include "engine/exec/rank_host.h"
#include "engine/transport/peer_edges.h"
#include "engine/transport/transport.h"
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

  // Plans name the leader's, and a rank by itself.
  absl::StatusOr<std::vector<Device>> Devices(const std::vector<Device>&) const override {
    return std::vector<Device>();
  }
  std::vector<Link> Links() override { return links_; }
  absl::StatusOr<std::unique_ptr<PipelineRanks>> Open(const std::string& name, const Plan& plan) override;

  // The pipeline that stands loses a rank; until Complete(), none can be made. From any thread, also a stage's.
  // `missing_first`: for who calls Complete() by itself, and not as soon as a rank is missing.
  void Lose(Rank rank, bool missing_first = false) ABSL_LOCKS_EXCLUDED(mu_);
  // For the pipeline that stands alone: nobody is missing.
  void LoseForPipeline(Rank rank) ABSL_LOCKS_EXCLUDED(mu_);
  void Complete() ABSL_LOCKS_EXCLUDED(mu_);
  bool complete() const override ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return !missing_.has_value();
  }

  // Of every stream of the pipelines that come; unset: as a plan says.
  void SetCredit(EdgeCredit credit) { credit_ = credit; }

  // That plans count with; none unless set.
  void SetLinks(std::vector<Link> links) { links_ = std::move(links); }

  int ranks() const { return static_cast<int>(members_.size()); }
  DevicePool& devices() { return *members_[0].pool; }  // of the leader
  PeerEdges& edges(int rank) { return *members_.at(rank).edges; }

 protected:
  // The ranks of a plan. A test may put something of its own between them and their leader, in either direction.
  virtual absl::StatusOr<std::map<Rank, std::unique_ptr<RankCommands>>> Build(const PipelineSpec& spec,
                                                                              const Plan& plan, RankEvents* leader);
  // What the ranks of a pipeline are made with, but for their devices; how many pipelines were opened, which names the
  // channel of the last one; and the devices of a rank.
  const Pipeline::Options& options() const { return options_; }
  int built() const { return built_; }
  DevicePool& pool(Rank rank) { return *members_.at(static_cast<size_t>(rank.value())).pool; }

 private:
  class Ranks;
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
  mutable absl::Mutex mu_;
  std::optional<Rank> missing_ ABSL_GUARDED_BY(mu_);
  RankEvents* leader_ ABSL_GUARDED_BY(mu_) = nullptr;  // of the pipeline that was made last
  std::optional<EdgeCredit> credit_;
  std::vector<Link> links_;
  int built_ = 0;
};

}  // namespace penstock::testing
