#include "server/rank_daemon.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "engine/base/thread.h"
#include "engine/base/timer_queue.h"
#include "engine/device/device.h"
#include "engine/exec/device_pool.h"
#include "engine/observe/metrics_registry.h"
#include "engine/serve/pipeline_metrics.h"
#include "server/device_descriptions.h"
#include "server/http/http_server.h"
#include "server/liveness.h"
#include "server/metrics/metrics_page.h"
#include "server/models/model_root.h"
#include "server/rank_options.h"
#include "server/ranks/following_rank.h"
#include "server/status_sources.h"

namespace penstock {
namespace {

constexpr absl::Duration kMomentToDrain = absl::Seconds(2);

}  // namespace

class RankDaemon::Parts {
 public:
  Parts(const DaemonOptions& options, Clock* clock)
      : options_(options), clock_(clock), registry_(clock, options.trace_ring_events, options.ranks.rank) {}
  ~Parts() {
    admin_pages_.reset();
    http_.reset();
    liveness_.reset();
    if (rank_ != nullptr) rank_->Close();
  }

  absl::Status Start() {
    PENSTOCK_RETURN_IF_ERROR(CheckRankOptions(options_));
    PENSTOCK_ASSIGN_OR_RETURN(std::vector<Device> devices,
                              ParseDevices(options_.devices, options_.device_memory, UsableCores()));
    devices_ = std::make_unique<DevicePool>(std::move(devices), DevicePool::Mode::kThreads);
    timers_ = std::make_unique<TimerQueue>(clock_);
    models_ = std::make_unique<ModelRoot>(ModelRoot::Options{.files = RealFileSystem(),
                                                             .root = options_.model_root,
                                                             .max_model_bytes = options_.max_model_bytes,
                                                             .max_root_bytes = options_.model_root_bytes});
    MakeRank();
    registry_.SetGroup([rank = rank_.get()] { return rank->figures(); });
    LivenessWatch::Options watch;
    watch.lost_device = [this] { return devices_->LostDevice(); };
    liveness_ = std::make_unique<LivenessWatch>(&registry_, timers_.get(), std::move(watch),
                                                [this](bool live) { live_ = live; });
    registry_.server().SetBuild(
        {.version = PENSTOCK_VERSION, .commit = "", .cuda = "", .torch = PENSTOCK_TORCH_VERSION});
    registry_.server().SetDevices(DescribeDevices(devices_->devices(), options_.ranks.rank));
    if (!options_.metrics_listen.empty()) {
      PENSTOCK_ASSIGN_OR_RETURN(http_, HttpServer::Create(options_.metrics_listen, "--metrics-listen",
                                                          [pages = Probes()](const HttpRequest& request) {
                                                            return Respond(pages, request);
                                                          }));
    }
    if (!options_.admin_listen.empty() && WasChosen("admin-listen")) {
      PENSTOCK_RETURN_IF_ERROR(CheckAdminAddress(options_.admin_listen));
      PENSTOCK_ASSIGN_OR_RETURN(admin_pages_, HttpServer::Create(options_.admin_listen, "--admin-listen",
                                                                 [sources = Sources()](const HttpRequest& request) {
                                                                   return RespondStatus(sources, request);
                                                                 }));
    }
    rank_->Start();
    LogInfo("lending devices", {{"rank", absl::StrCat(options_.ranks.rank.value())},
                                {"leader", options_.ranks.leader},
                                {"metrics", http_ == nullptr ? "" : http_->address().ToString()},
                                {"admin", admin_pages_ == nullptr ? "" : admin_pages_->address().ToString()}});
    return absl::OkStatus();
  }

  bool live() const { return live_; }

  bool needed(int64_t asked_nanos) const {
    const absl::Duration asked = absl::Nanoseconds(asked_nanos);
    const absl::Duration longest =
        options_.drain_announce + options_.drain_finish + options_.drain_checkpoint + 2 * options_.drain_close;
    if (rank_->pipelines().empty() || !rank_->status().ok()) return false;
    return asked < (rank_->leader_drains() ? longest : kMomentToDrain);
  }

 private:
  // A default address is the leader's, which may be on this host too.
  bool WasChosen(const std::string& setting) const {
    return std::any_of(options_.settings.begin(), options_.settings.end(), [&](const DaemonOptions::Setting& one) {
      return one.name == setting && one.origin != "default";
    });
  }

  void MakeRank() {
    FollowingRank::Options rank;
    rank.link = LinkOf(options_, devices_->devices(), clock_);
    rank.carriers = CarriersOf(options_, timers_.get(), clock_);
    rank.stages.self = options_.ranks.rank;
    rank.stages.engine.devices = devices_.get();
    rank.stages.engine.clock = clock_;
    // They go with the stages.
    rank.stages.metrics = [this](const std::string& name, const Plan& plan) {
      const std::shared_ptr<PipelineMetrics> metrics = AddPipelineMetrics(&registry_, name, plan);
      return std::shared_ptr<PipelineMetrics>(
          metrics.get(), [this, metrics](PipelineMetrics*) { registry_.RemovePipeline(*metrics); });
    };
    rank.stages.trace = [this](const std::string& name, int64_t begin_nanos,
                               int64_t end_nanos) -> absl::StatusOr<RankTrace> {
      const std::shared_ptr<const PipelineMetrics> metrics = registry_.Find(name);
      if (metrics == nullptr || !metrics->KeepsTraces()) {
        return Error(absl::StatusCode::kUnimplemented, "FEATURE_DISABLED",
                     "this rank keeps no traces of it (--trace-ring-events)");
      }
      return TraceLanesOf(options_.ranks.rank, metrics, begin_nanos, end_nanos);
    };
    rank.stages.load = [this](ModelSpec* spec, std::optional<std::string> sent) {
      return sent.has_value() ? models_->LoadBytes(spec, *std::move(sent)) : models_->Load(spec);
    };
    rank.stages.send_timeout_nanos = absl::ToInt64Nanoseconds(kRankSendTimeout);
    rank_ = std::make_unique<FollowingRank>(std::move(rank), timers_.get());
  }

  // A rank is ready while it has a leader: it has no model of its own to load, and takes what the leader gives it.
  void SetReadiness() {
    ServerMetrics& metrics = registry_.server();
    const double ready = rank_->status().ok() ? 1 : 0;
    metrics.ready.Set(ready);
    metrics.ready_conditions[ReadyCondition::kConfig].Set(1);
    metrics.ready_conditions[ReadyCondition::kModel].Set(1);
    metrics.ready_conditions[ReadyCondition::kAdmission].Set(ready);
  }

  // What people read.
  StatusSources Sources() {
    StatusSources sources;
    sources.registry = &registry_;
    sources.facts = [this] {
      return DaemonFacts{.state = rank_->status().ok() ? "lending devices" : "without a leader",
                         .epoch = static_cast<int64_t>(rank_->group().epoch.value()),
                         .start_unix_seconds = static_cast<double>(absl::ToUnixNanos(start_time_)) * 1e-9,
                         .api_address = "none: clients call the leader",
                         .metrics_address = http_ == nullptr ? "" : http_->address().ToString(),
                         .admin_address = options_.admin_listen};
    };
    sources.follower = [this] { return DescribeFollower(); };
    sources.pipelines = [this] {
      std::vector<PipelineRow> rows;
      for (const std::string& name : rank_->pipelines()) rows.push_back({.name = name, .state = "built"});
      return rows;
    };
    sources.settings = DescribeSettings(options_);
    sources.probes = Probes();
    return sources;
  }

  FollowerFacts DescribeFollower() const {
    const GroupIdentity group = rank_->group();
    FollowerFacts facts{.rank = options_.ranks.rank.value(),
                        .world_size = options_.ranks.world_size,
                        .leader = options_.ranks.leader,
                        .problem = std::string(rank_->status().message()),
                        .leader_drains = rank_->leader_drains(),
                        .epoch = static_cast<int64_t>(group.epoch.value()),
                        .generation = static_cast<int64_t>(group.generation)};
    for (const Device& device : devices_->devices()) facts.devices.push_back(device.name);
    const GroupFigures figures = rank_->figures();
    for (size_t carrier = 0; carrier < kCarrierNames.size(); ++carrier) {
      for (const auto& [from, link] : figures.received[carrier].from) {
        facts.links.push_back({.from = from.value(),
                               .to = facts.rank,
                               .carrier = std::string(kCarrierNames[carrier]),
                               .messages = link.messages,
                               .bytes = link.bytes});
      }
    }
    return facts;
  }

  HttpPages Probes() {
    HttpPages pages;
    pages.metrics_content_type = std::string(kMetricsContentType);
    pages.metrics = [this] {
      SetReadiness();
      return MetricsPage(registry_);
    };
    pages.healthy = [this] {
      const std::string problem = liveness_->Problem();
      return std::vector<HealthCondition>{{"progress", problem.empty(), problem}};
    };
    pages.ready = [this] {
      const absl::Status joined = rank_->status();
      return std::vector<HealthCondition>{{"leader", joined.ok(), std::string(joined.message())}};
    };
    return pages;
  }

  const DaemonOptions options_;
  Clock* const clock_;
  MetricsRegistry registry_;
  std::unique_ptr<DevicePool> devices_;
  std::unique_ptr<TimerQueue> timers_;
  std::unique_ptr<ModelRoot> models_;
  std::unique_ptr<FollowingRank> rank_;
  std::atomic<bool> live_ = true;
  std::unique_ptr<LivenessWatch> liveness_;
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<HttpServer> admin_pages_;
  const absl::Time start_time_ = absl::Now();
};

absl::StatusOr<std::unique_ptr<RankDaemon>> RankDaemon::Create(const DaemonOptions& options, Clock* clock) {
  auto parts = std::make_unique<Parts>(options, clock);
  PENSTOCK_RETURN_IF_ERROR(parts->Start());
  return std::unique_ptr<RankDaemon>(new RankDaemon(std::move(parts)));
}

RankDaemon::RankDaemon(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
RankDaemon::~RankDaemon() = default;

bool RankDaemon::live() const { return parts_->live(); }
bool RankDaemon::needed(int64_t asked_nanos) const { return parts_->needed(asked_nanos); }

}  // namespace penstock
