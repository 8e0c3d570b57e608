// The whole daemon put together: every part, in the order in which they start and close. It is long, for that order is
// one sequence that a reader wants to see at once; what a part does stands in its own room.

#include "server/daemon.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/job_thread.h"
#include "engine/base/log.h"
#include "engine/base/state_lock.h"
#include "engine/base/status_macros.h"
#include "engine/base/thread.h"
#include "engine/base/timer_queue.h"
#include "engine/checkpoint/checkpoint_quota.h"
#include "engine/checkpoint/checkpoint_store.h"
#include "engine/checkpoint/epoch_file.h"
#include "engine/device/device.h"
#include "engine/device/device_streams.h"
#include "engine/exec/device_pool.h"
#include "engine/handles/handle_store.h"
#include "engine/handles/spill_folder.h"
#include "engine/ledger/memory_ledger.h"
#include "engine/observe/allocator_statistics.h"
#include "engine/observe/metrics_registry.h"
#include "engine/observe/process_statistics.h"
#include "engine/serve/checkpoint_reader.h"
#include "engine/serve/pipeline_table.h"
#include "proto/message_json.h"
#include "server/api_server.h"
#include "server/api_services.h"
#include "server/audit/audit_log.h"
#include "server/credential_files.h"
#include "server/device_descriptions.h"
#include "server/drain_calls.h"
#include "server/folder_checks.h"
#include "server/http/http_server.h"
#include "server/journals.h"
#include "server/liveness.h"
#include "server/memory_pools.h"
#include "server/metrics/metrics_page.h"
#include "server/models/model_root.h"
#include "server/models/model_uploads.h"
#include "server/peer_listener.h"
#include "server/rank_options.h"
#include "server/request_tracing.h"
#include "server/rpc/admission.h"
#include "server/rpc/call_metrics.h"
#include "server/rpc/convert/page_token.h"
#include "server/rpc/method_roles.h"
#include "server/rpc/services/health_service.h"
#include "server/server_info.h"
#include "server/status_sources.h"
#include "server/tls_credentials.h"

namespace penstock {
namespace {

constexpr int64_t kHealthMemoryBytes = 16 << 20;
constexpr absl::Duration kInterruptInterval = absl::Milliseconds(100);

// The size of the disk that holds a folder.
int64_t DiskBytes(const std::string& folder) {
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(folder, error);
  return error ? std::numeric_limits<int64_t>::max()
               : static_cast<int64_t>(std::min<uintmax_t>(space.capacity, std::numeric_limits<int64_t>::max()));
}

// Bytes of results on each accelerator, by LibTorch's name of it.
std::map<std::string, int64_t> DeviceHandleBytes(const DaemonOptions& options, const std::vector<Device>& devices) {
  std::map<std::string, int64_t> limits;
  for (const Device& device : devices) {
    if (device.kind == DeviceKind::kCpu) continue;
    const int64_t share = device.memory_limit_bytes / 16;
    limits[TorchDevice(device).str()] = options.device_handle_bytes > 0 ? options.device_handle_bytes : share;
  }
  return limits;
}

absl::StatusOr<HandleStore::Options> StoreOptions(const DaemonOptions& options, Epoch epoch,
                                                  const HandleBudget::Limits& limits,
                                                  const std::vector<Device>& devices, MemoryLedger* memory,
                                                  ServerMetrics* metrics) {
  HandleStore::Options store;
  if (!options.handle_spill_root.empty()) {
    const int64_t bytes = options.handle_spill_bytes > 0 ? options.handle_spill_bytes : 10 * limits.bytes;
    PENSTOCK_ASSIGN_OR_RETURN(store.spill,
                              SpillFolder::Open(options.handle_spill_root, bytes, "--handle-spill-root", metrics));
  }
  store.device_bytes = DeviceHandleBytes(options, devices);
  store.epoch = epoch;
  store.default_lease = options.default_lease;
  store.min_lease = options.min_lease;
  store.max_lease = options.max_lease;
  store.budget = limits;
  store.memory = memory;
  store.metrics = metrics;
  return store;
}

int64_t CallsStarted(const ServerMetrics& server) {
  int64_t started = 0;
  for (const MethodMetrics* method : server.methods()) started += method->started.value();
  return started;
}

ServedPipeline::Options HostingOptions(const DaemonOptions& options) {
  ServedPipeline::Options hosting;
  hosting.train_queue_calls = options.train_queue_calls;
  hosting.train_queue_bytes = options.train_queue_bytes;
  hosting.infer_queue_calls = options.infer_queue_calls;
  hosting.infer_queue_bytes = options.infer_queue_bytes;
  hosting.open_graphs = static_cast<int>(options.open_graphs);
  hosting.infer_timeout = options.infer_timeout;
  hosting.forward_timeout = options.forward_timeout;
  hosting.journal_limits.replay_bytes = options.journal_bytes;
  hosting.journal_limits.replay_nanos = absl::ToInt64Nanoseconds(options.journal_replay);
  return hosting;
}

}  // namespace

absl::Status CheckOptions(const DaemonOptions& options) {
  PENSTOCK_RETURN_IF_ERROR(CheckApiAddress(options.listen, options.insecure || !options.tls_cert.empty()));
  PENSTOCK_RETURN_IF_ERROR(CredentialFiles::Open(options, RealClock()).status());
  if (!options.health_listen.empty()) {
    PENSTOCK_RETURN_IF_ERROR(CheckApiAddress(options.health_listen, /*insecure=*/true, "--health-listen"));
  }
  if (!options.metrics_listen.empty()) {
    PENSTOCK_RETURN_IF_ERROR(ParseListenAddress(options.metrics_listen, "--metrics-listen").status());
  }
  if (!options.admin_listen.empty()) {
    PENSTOCK_RETURN_IF_ERROR(CheckAdminAddress(options.admin_listen));
  }
  PENSTOCK_RETURN_IF_ERROR(CheckRankOptions(options));
  PENSTOCK_RETURN_IF_ERROR(CheckTracing(options));
  PENSTOCK_RETURN_IF_ERROR(CheckFolders(options));
  return ParseDevices(options.devices, options.device_memory, UsableCores()).status();
}

// The parts in the order in which they are made; they go in the opposite one.
class Daemon::Parts {
 public:
  Parts(const DaemonOptions& options, Clock* clock, DrainControl* drains)
      : options_(options),
        clock_(clock),
        drains_(drains),
        registry_(clock, options.trace_ring_events),
        page_tokens_(clock) {}
  ~Parts() { Close(absl::ZeroDuration()); }

  absl::Status Start(const std::function<bool()>& interrupted) {
    PENSTOCK_RETURN_IF_ERROR(OpenState());
    PENSTOCK_ASSIGN_OR_RETURN(credentials_, CredentialFiles::Open(options_, clock_, &registry_.server()));
    PENSTOCK_RETURN_IF_ERROR(OpenAuditLog());
    PENSTOCK_ASSIGN_OR_RETURN(tracing_, RequestTracing::Create(options_, epoch_, clock_));
    PENSTOCK_RETURN_IF_ERROR(OpenDevices());
    PENSTOCK_RETURN_IF_ERROR(OpenMemory());
    PENSTOCK_RETURN_IF_ERROR(OpenGroup());
    OpenPipelines();
    PENSTOCK_RETURN_IF_ERROR(OpenUploads());
    PENSTOCK_RETURN_IF_ERROR(MakeServices());
    FollowLifecycle();
    // Before anybody can ask for them.
    const auto recovered = std::make_shared<absl::Notification>();
    PENSTOCK_RETURN_IF_ERROR(pipelines_->Recover([recovered] { recovered->Notify(); }));
    PENSTOCK_RETURN_IF_ERROR(Listen());
    MeasureProcess();
    LogInfo("listening", {{"api", api_address()},
                          {"health", health_address()},
                          {"metrics", metrics_address()},
                          {"admin", admin_address()}});
    if (peers_ != nullptr) PENSTOCK_RETURN_IF_ERROR(peers_->Start());
    PENSTOCK_RETURN_IF_ERROR(Await(*recovered, interrupted));
    if (peers_ != nullptr) PENSTOCK_RETURN_IF_ERROR(Await(group_was_complete_, interrupted));
    lifecycle_.Advance(LifecycleState::kReady);
    return absl::OkStatus();
  }

  DrainEnd Drain(const std::shared_ptr<DrainSignal>& signal) {
    if (peers_ != nullptr) peers_->group().Drain(true);
    const DrainEnd end = RunDrain(
        {.announce = options_.drain_announce,
         .finish = options_.drain_finish,
         .checkpoint = options_.drain_checkpoint,
         .close = options_.drain_close,
         .lifecycle = &lifecycle_,
         .finish_work = [this](auto done) { pipelines_->Drain(std::move(done)); },
         .save = [this](auto save, auto cancel, auto done) { pipelines_->SaveLast(save, cancel, std::move(done)); },
         .resume = [this] { pipelines_->Resume(); },
         .calls_started = [this] { return CallsStarted(registry_.server()); },
         .close_all = [this](absl::Duration patience) { Close(patience); }},
        signal);
    if (peers_ != nullptr && end == DrainEnd::kAborted) peers_->group().Drain(false);
    return end;
  }

  const std::string& api_address() const { return api_->address(); }
  std::string health_address() const { return health_port_ == nullptr ? "" : health_port_->address(); }
  bool live() const { return live_; }
  std::string metrics_address() const { return http_ == nullptr ? "" : http_->address().ToString(); }
  const std::string& admin_address() const { return admin_address_; }

 private:
  absl::Status OpenState() {
    PENSTOCK_RETURN_IF_ERROR(RealFileSystem()->CreateDirectories(options_.state_dir));
    PENSTOCK_ASSIGN_OR_RETURN(state_lock_, StateLock::Take(options_.state_dir));
    PENSTOCK_ASSIGN_OR_RETURN(epoch_, RaiseEpoch(RealFileSystem(), options_.state_dir));
    const int64_t limit = options_.checkpoint_bytes;
    checkpoint_quota_ = std::make_unique<CheckpointQuota>(limit > 0 ? limit : DiskBytes(options_.state_dir) / 2);
    PENSTOCK_ASSIGN_OR_RETURN(
        checkpoints_, CheckpointStore::Open(RealFileSystem(), clock_, options_.state_dir, checkpoint_quota_.get()));
    if (!options_.journal) return absl::OkStatus();
    PENSTOCK_ASSIGN_OR_RETURN(journals_, Journals::Open(options_, checkpoints_.get(), clock_));
    return absl::OkStatus();
  }

  // The pipelines of the journal are made again, and the other ranks join. Callers get STARTING meanwhile.
  absl::Status Await(const absl::Notification& done, const std::function<bool()>& interrupted) {
    while (!done.WaitForNotificationWithTimeout(kInterruptInterval)) {
      if (!drains_->asked().has_value() && (interrupted == nullptr || !interrupted())) continue;
      return absl::CancelledError("interrupted while it started");
    }
    return absl::OkStatus();
  }

  // The other processes, if there are any.
  absl::Status OpenGroup() {
    if (options_.ranks.world_size == 1) return absl::OkStatus();
    peers_ = std::make_unique<PeerListener>(PeerListener::Parts{.options = &options_,
                                                                .devices = &devices_->devices(),
                                                                .epoch = epoch_,
                                                                .credentials = TlsCredentials(),
                                                                .authenticator = credentials_.authenticator.get(),
                                                                .metrics = &registry_.server(),
                                                                .timers = timers_.get(),
                                                                .clock = clock_,
                                                                .on_change = [this](bool complete) {
                                                                  if (!complete) return;
                                                                  pipelines_->OnGroupComplete();
                                                                  if (!group_was_complete_.HasBeenNotified()) {
                                                                    group_was_complete_.Notify();
                                                                  }
                                                                }});
    registry_.SetGroup([peers = peers_.get()] { return peers->group().figures(); });
    return absl::OkStatus();
  }

  absl::Status OpenAuditLog() {
    if (options_.audit_log.empty()) return absl::OkStatus();
    PENSTOCK_ASSIGN_OR_RETURN(audit_, AuditLog::Open({.path = options_.audit_log,
                                                      .max_bytes = options_.audit_log_bytes,
                                                      .old_files = static_cast<int>(options_.audit_log_files)},
                                                     &registry_.server()));
    return absl::OkStatus();
  }

  absl::Status OpenDevices() {
    PENSTOCK_ASSIGN_OR_RETURN(std::vector<Device> devices,
                              ParseDevices(options_.devices, options_.device_memory, UsableCores()));
    devices_ = std::make_unique<DevicePool>(std::move(devices), DevicePool::Mode::kThreads);
    return absl::OkStatus();
  }

  absl::Status OpenMemory() {
    MemoryMetrics& metrics = registry_.memory();
    const auto process = ReadProcessStatistics();
    const int64_t process_bytes = process.ok() ? process->resident_bytes : 0;
    const int64_t limit =
        options_.memory_limit > 0 ? options_.memory_limit : DefaultMemoryLimit(MachineMemoryBytes(), process_bytes);
    const HandleBudget::Limits handles = HandleLimits(options_, limit);
    if (handles.bytes > limit) {
      return InvalidField("--handle-bytes", absl::StrCat("must be at most --memory-limit, ", limit),
                          absl::StrCat(handles.bytes));
    }
    MemoryLedger::Options ledger = {.limit_bytes = limit,
                                    .pools = MemoryPools(limit, options_.grpc_memory_bytes, handles)};
    ledger.may_see = [this](const std::string& asking, const MemoryHolder& holder) {
      const Authenticator& authenticator = *credentials_.authenticator;
      return !authenticator.knows_callers() || asking == holder.identity ||
             authenticator.RoleOf(asking) == Role::kAdmin;
    };
    ledger.changed = [&metrics](MemoryClass kind, int64_t bytes) {
      metrics.reserved[kind].Set(static_cast<double>(bytes));
    };
    ledger.refused = [&metrics](MemoryClass kind) { metrics.refused[kind].Add(); };
    memory_ = std::make_unique<MemoryLedger>(std::move(ledger));
    metrics.limit.Set(static_cast<double>(limit));
    timers_ = std::make_unique<TimerQueue>(clock_);
    PENSTOCK_ASSIGN_OR_RETURN(HandleStore::Options store, StoreOptions(options_, epoch_, handles, devices_->devices(),
                                                                       memory_.get(), &registry_.server()));
    handles_ = std::make_unique<HandleStore>(std::move(store), clock_, timers_.get());
    return absl::OkStatus();
  }

  // What is there before anything is served. What the allocator keeps is told by itself, as it is.
  void MeasureProcess() {
    const auto process = ReadProcessStatistics();
    if (!process.ok()) return;
    const int64_t bytes = process->resident_bytes - ReadAllocatorStatistics().kept_bytes;
    registry_.memory().process.Set(static_cast<double>(bytes));
  }

  void OpenPipelines() {
    registry_.server().SetBuild(
        {.version = PENSTOCK_VERSION, .commit = "", .cuda = "", .torch = PENSTOCK_TORCH_VERSION});
    registry_.server().SetDevices(DescribeDevices(devices_->devices(), Rank(0)));
    models_ = std::make_unique<ModelRoot>(
        ModelRoot::Options{.files = RealFileSystem(),
                           .root = options_.model_root,
                           .max_model_bytes = options_.max_model_bytes,
                           .max_root_bytes = options_.model_root_bytes,
                           .users = [this](const std::string& model) { return UsersOf(model); },
                           .memory = memory_.get()});
    PipelineBuilder::Options builder;
    builder.factory = {.create = &Pipeline::Create,
                       .plan = &Pipeline::MakePlan,
                       .search = &Pipeline::SearchPlans,
                       .load = [this](ModelSpec* spec, const std::string& kept) { return models_->Load(spec, kept); }};
    builder.devices = devices_.get();
    builder.group = peers_ == nullptr ? nullptr : &peers_->group();
    builder.handles = handles_.get();
    builder.timers = timers_.get();
    builder.clock = clock_;
    builder.metrics = &registry_;
    builder.checkpoints = checkpoints_.get();
    builder.memory = memory_.get();
    builder.hosting = HostingOptions(options_);
    if (journals_ != nullptr) builder.journal = journals_->setup();
    pipelines_ = std::make_unique<PipelineTable>(
        PipelineTable::Options{.builder = std::move(builder),
                               .max_pipelines = static_cast<int>(options_.max_pipelines),
                               .journal = journals_ == nullptr ? nullptr : journals_->daemon(),
                               .fingerprint = Journals::Fingerprint()});
    checkpoint_reader_ = std::make_unique<CheckpointReader>(memory_.get());
    admission_ = std::make_unique<Admission>(options_.calls_per_caller, &registry_, memory_.get());
  }

  // The names of pipelines that were made from a model, or are being made.
  std::vector<std::string> UsersOf(const std::string& model) const {
    std::vector<std::string> names;
    for (const PipelineEntry& entry : pipelines_->List("", static_cast<int>(options_.max_pipelines))) {
      if (entry.spec.model.program == model) names.push_back(entry.name);
    }
    return names;
  }

  // Two daemons may read one model root, but only one may write there.
  absl::Status OpenUploads() {
    model_jobs_ = std::make_shared<JobThread>("ps-models");
    model_reads_ = std::make_unique<JobThread>("ps-model-reads");
    if (options_.model_root.empty()) return absl::OkStatus();
    if (options_.allow_model_upload) {
      PENSTOCK_RETURN_IF_ERROR(RealFileSystem()->CreateDirectories(options_.model_root));
      PENSTOCK_ASSIGN_OR_RETURN(models_lock_, StateLock::Take(options_.model_root));
      PENSTOCK_ASSIGN_OR_RETURN(uploads_, ModelUploads::Create(models_.get(), model_jobs_, timers_.get(), clock_));
      return absl::OkStatus();
    }
    if (RealFileSystem()->List(options_.model_root).ok()) return absl::OkStatus();
    return InvalidField("--model-root", "must be a folder that can be read", options_.model_root);
  }

  StateCopy::Parts CopyParts() {
    if (journals_ == nullptr) return {};
    return {.pipelines = pipelines_.get(),
            .journal = journals_->daemon(),
            .checkpoints = checkpoints_.get(),
            .records = journals_->setup()->records,
            .clock = clock_,
            .state_dir = options_.state_dir,
            .options = journals_->setup()->options};
  }

  ServiceEnvironment Environment() {
    return {.pipelines = pipelines_.get(),
            .checkpoints = checkpoints_.get(),
            .checkpoint_reader = checkpoint_reader_.get(),
            .handles = handles_.get(),
            .timers = timers_.get(),
            .clock = clock_,
            .metrics = &registry_,
            .admission = admission_.get(),
            .memory = memory_.get(),
            .page_tokens = &page_tokens_,
            .authenticator = credentials_.authenticator.get(),
            .join_traces = TracesOfRanks()};
  }

  decltype(ServiceEnvironment::join_traces) TracesOfRanks() {
    if (peers_ == nullptr) return nullptr;
    return [this](const std::string& pipeline, TraceCapture own, std::function<void(TraceCapture)> done) {
      peers_->group().JoinTraces(pipeline, std::move(own), std::move(done));
    };
  }

  absl::Status MakeServices() {
    services_ = std::make_unique<ApiServices>(ApiServices::Parts{
        .environment = Environment(),
        .trace_jobs = trace_jobs_.get(),
        .journals = {.state = CopyParts(), .reads = journal_reads_.get(), .jobs = journal_jobs_.get()},
        .models =
            {.root = models_.get(), .jobs = model_jobs_.get(), .reads = model_reads_.get(), .uploads = uploads_.get()},
        .info = [this] { return Info(); },
        .drain = [this](const v1::DrainRequest& request) { return ServeDrain(request, DescribeEnd(), drains_); },
        .inference = {.version = PENSTOCK_VERSION,
                      .ready = [this] { return lifecycle_.state() == LifecycleState::kReady; }}});
    PENSTOCK_RETURN_IF_ERROR(CheckMethodRoles(services_->names()));
    for (const std::string& service : services_->names()) AddServiceMetrics(service, &registry_.server());
    return absl::OkStatus();
  }

  // Health, admission and the readiness metrics follow the state of the daemon.
  void FollowLifecycle() {
    HealthServiceImpl* const health = services_->health();
    health->SetServing("liveness", true);
    LivenessWatch::Options watch;
    watch.lost_device = [this] { return devices_->LostDevice(); };
    liveness_ = std::make_unique<LivenessWatch>(&registry_, timers_.get(), std::move(watch), [this, health](bool live) {
      live_ = live;
      health->SetServing("liveness", live);
    });
    lifecycle_.Observe([this, health](LifecycleState state) {
      const bool ready = state == LifecycleState::kReady;
      health->SetServing("startup", state != LifecycleState::kStarting);
      health->SetServing("readiness", ready);
      health->SetServing("", ready);
      for (const std::string& service : services_->names()) health->SetServing(service, ready);
      admission_->SetGate(state == LifecycleState::kStarting              ? Admission::Gate::kStarting
                          : ready || state == LifecycleState::kAnnouncing ? Admission::Gate::kOpen
                                                                          : Admission::Gate::kDraining);
      ServerMetrics& metrics = registry_.server();
      metrics.ready.Set(ready ? 1 : 0);
      metrics.ready_conditions[ReadyCondition::kConfig].Set(1);
      metrics.ready_conditions[ReadyCondition::kModel].Set(state == LifecycleState::kStarting ? 0 : 1);
      metrics.ready_conditions[ReadyCondition::kAdmission].Set(ready ? 1 : 0);
    });
  }

  // Null: plaintext.
  std::shared_ptr<grpc::ServerCredentials> TlsCredentials() {
    if (credentials_.certificates == nullptr) return nullptr;
    return MakeTlsCredentials(credentials_.certificates, credentials_.authenticator.get(), &registry_.server(),
                              audit_.get());
  }

  absl::Status Listen() {
    if (credentials_.certificates != nullptr) credentials_.followed->Start();
    PENSTOCK_ASSIGN_OR_RETURN(api_, ApiServer::Create({.listen = options_.listen,
                                                       .insecure = options_.insecure,
                                                       .credentials = TlsCredentials(),
                                                       .max_message_bytes = options_.max_message_bytes,
                                                       .memory_bytes = options_.grpc_memory_bytes,
                                                       .tracer = &tracing_->tracer(),
                                                       .audit = audit_.get()},
                                                      services_->all(), &registry_.server(), clock_));
    if (!options_.health_listen.empty()) {
      PENSTOCK_ASSIGN_OR_RETURN(health_port_,
                                ApiServer::Create({.listen = options_.health_listen,
                                                   .field = "--health-listen",
                                                   .insecure = true,
                                                   .max_message_bytes = HealthServiceImpl::kMaxMessageBytes,
                                                   .memory_bytes = kHealthMemoryBytes},
                                                  {services_->health()}, &registry_.server(), clock_));
    }
    if (!options_.metrics_listen.empty()) {
      PENSTOCK_ASSIGN_OR_RETURN(http_, HttpServer::Create(options_.metrics_listen, "--metrics-listen",
                                                          [pages = Probes()](const HttpRequest& request) {
                                                            return Respond(pages, request);
                                                          }));
    }
    if (options_.admin_listen.empty()) return absl::OkStatus();
    PENSTOCK_RETURN_IF_ERROR(CheckAdminAddress(options_.admin_listen));
    PENSTOCK_ASSIGN_OR_RETURN(admin_pages_, HttpServer::Create(options_.admin_listen, "--admin-listen",
                                                               [sources = Sources()](const HttpRequest& request) {
                                                                 return RespondStatus(sources, request);
                                                               }));
    admin_address_ = admin_pages_->address().ToString();
    return absl::OkStatus();
  }

  // What people read.
  StatusSources Sources() {
    StatusSources sources;
    sources.registry = &registry_;
    sources.facts = [this] {
      const v1::ServerInfo info = Info();
      const bool listening = !info.api_address().empty();
      return DaemonFacts{.state = info.state(),
                         .epoch = static_cast<int64_t>(epoch_.value()),
                         .start_unix_seconds = static_cast<double>(absl::ToUnixNanos(start_time_)) * 1e-9,
                         .api_address = info.api_address(),
                         .metrics_address = info.metrics_address(),
                         .admin_address = listening ? admin_address() : options_.admin_listen};
    };
    if (peers_ != nullptr) {
      sources.group = [this] { return DescribeRanks(DescribeGroup(peers_->group().view())); };
    }
    sources.pipelines = [this] { return DescribePipelines(*pipelines_); };
    sources.handles = [this] { return DescribeHandles(*pipelines_, *handles_); };
    sources.owners = [this] { return DescribeOwners(*handles_); };
    sources.memory = [this] { return DescribeMemory(*memory_); };
    sources.checkpoints = [this] { return DescribeCheckpoints(*pipelines_); };
    sources.settings = DescribeSettings(options_);
    sources.probes = Probes();
    sources.commands = DescribeForPrograms(Environment());
    sources.commands.server = [this] { return MessageToJsonText(Info()); };
    return sources;
  }

  // What monitoring reads.
  HttpPages Probes() {
    HttpPages pages;
    pages.metrics_content_type = std::string(kMetricsContentType);
    pages.metrics = [this] { return MetricsPage(registry_); };
    pages.healthy = [this] {
      const std::string problem = liveness_->Problem();
      return std::vector<HealthCondition>{{"progress", problem.empty(), problem}};
    };
    pages.ready = [this] {
      const LifecycleState state = lifecycle_.state();
      return std::vector<HealthCondition>{{"config", true, ""},
                                          {"model", state != LifecycleState::kStarting,
                                           state == LifecycleState::kStarting ? "the daemon is starting" : ""},
                                          {"admission", state == LifecycleState::kReady, std::string(NameOf(state))}};
    };
    return pages;
  }

  v1::ServerInfo Info() const {
    // A call may come in before the listeners are stored; the lifecycle's lock orders the two.
    const bool listening = lifecycle_.state() != LifecycleState::kStarting;
    v1::ServerInfo info = DescribeServer({.options = &options_,
                                          .epoch = epoch_,
                                          .start_time = start_time_,
                                          .devices = &devices_->devices(),
                                          .handles = handles_.get(),
                                          .api_address = listening ? api_->address() : "",
                                          .metrics_address = listening ? metrics_address() : "",
                                          .state = NameOf(lifecycle_.state())});
    if (peers_ != nullptr) *info.mutable_group() = DescribeGroup(peers_->group().view());
    if (v1::DrainState drain = DescribeDrain(*drains_, DescribeEnd()); drain.has_deadline()) {
      *info.mutable_drain() = std::move(drain);
    }
    return info;
  }

  DrainFacts DescribeEnd() const {
    return {.starting = lifecycle_.state() == LifecycleState::kStarting,
            .saves = options_.drain_checkpoint > absl::ZeroDuration(),
            .longest =
                options_.drain_announce + options_.drain_finish + options_.drain_checkpoint + 2 * options_.drain_close,
            .calls_left = admission_->in_flight(),
            .check_journals = [this] { return pipelines_->CheckEmptyJournals(); }};
  }

  // Ends calls, then work, then results. Safe to call twice.
  void Close(absl::Duration patience) {
    if (lifecycle_.state() == LifecycleState::kStopped) return;
    lifecycle_.Advance(LifecycleState::kClosing);
    if (services_ != nullptr) services_->Shutdown();
    if (api_ != nullptr) api_->Shutdown(patience);
    admin_pages_.reset();
    if (health_port_ != nullptr) health_port_->Shutdown(absl::ZeroDuration());
    http_.reset();
    liveness_.reset();
    trace_jobs_->Close();
    journal_reads_->Close();
    journal_jobs_->Close();
    if (pipelines_ != nullptr) pipelines_->Close();
    if (checkpoint_reader_ != nullptr) checkpoint_reader_->Close();
    if (model_reads_ != nullptr) model_reads_->Close();
    if (model_jobs_ != nullptr) model_jobs_->Close();
    if (uploads_ != nullptr) uploads_->Close();
    if (peers_ != nullptr) peers_->Close();
    if (services_ != nullptr) services_->Close();
    if (handles_ != nullptr) handles_->Close();
    if (tracing_ != nullptr) tracing_->Close();
    lifecycle_.Advance(LifecycleState::kStopped);
  }

  const DaemonOptions options_;
  Clock* const clock_;
  DrainControl* const drains_;
  const absl::Time start_time_ = absl::Now();
  std::unique_ptr<StateLock> state_lock_;
  Epoch epoch_;
  std::unique_ptr<CheckpointQuota> checkpoint_quota_;
  std::unique_ptr<CheckpointStore> checkpoints_;
  std::unique_ptr<Journals> journals_;  // null: off
  MetricsRegistry registry_;
  std::unique_ptr<AuditLog> audit_;
  std::unique_ptr<RequestTracing> tracing_;
  std::unique_ptr<DevicePool> devices_;
  std::unique_ptr<MemoryLedger> memory_;
  std::unique_ptr<TimerQueue> timers_;
  std::unique_ptr<HandleStore> handles_;
  std::unique_ptr<ModelRoot> models_;
  absl::Notification group_was_complete_;
  std::unique_ptr<PeerListener> peers_;  // null: this process is alone
  std::unique_ptr<PipelineTable> pipelines_;
  std::unique_ptr<CheckpointReader> checkpoint_reader_;
  std::shared_ptr<JobThread> model_jobs_;
  std::unique_ptr<JobThread> model_reads_;
  const std::unique_ptr<JobThread> trace_jobs_ = std::make_unique<JobThread>("ps-traces");
  const std::unique_ptr<JobThread> journal_reads_ = std::make_unique<JobThread>("ps-rows");
  const std::unique_ptr<JobThread> journal_jobs_ = std::make_unique<JobThread>("ps-copies");
  std::unique_ptr<StateLock> models_lock_;
  std::unique_ptr<ModelUploads> uploads_;
  std::unique_ptr<Admission> admission_;
  PageTokens page_tokens_;
  CredentialFiles credentials_;
  std::unique_ptr<ApiServices> services_;
  std::atomic<bool> live_ = true;
  Lifecycle lifecycle_;
  std::unique_ptr<LivenessWatch> liveness_;
  std::unique_ptr<ApiServer> api_;
  std::unique_ptr<ApiServer> health_port_;
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<HttpServer> admin_pages_;
  std::string admin_address_;  // set before readiness; pages ask for it while they end
};

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Create(const DaemonOptions& options, Clock* clock, DrainControl* drains,
                                                       const std::function<bool()>& interrupted) {
  auto parts = std::make_unique<Parts>(options, clock, drains);
  PENSTOCK_RETURN_IF_ERROR(parts->Start(interrupted));
  return std::unique_ptr<Daemon>(new Daemon(std::move(parts)));
}

Daemon::Daemon(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Daemon::~Daemon() = default;

DrainEnd Daemon::Drain(const std::shared_ptr<DrainSignal>& signal) { return parts_->Drain(signal); }
const std::string& Daemon::api_address() const { return parts_->api_address(); }
std::string Daemon::metrics_address() const { return parts_->metrics_address(); }
std::string Daemon::admin_address() const { return parts_->admin_address(); }
std::string Daemon::health_address() const { return parts_->health_address(); }
bool Daemon::live() const { return parts_->live(); }

}  // namespace penstock
