#include "server/ranks/rank_pipelines.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/log.h"
#include "engine/base/rank_message.h"
#include "engine/base/status_macros.h"
#include "engine/exec/rank_host_builder.h"
#include "engine/exec/rank_transport.h"
#include "engine/transport/measure_link.h"
#include "server/ranks/build_convert.h"
#include "server/ranks/trace_convert.h"
#include "server/rpc/convert/proto_convert.h"

namespace penstock {
namespace {

// The stages are those of ranks of the group, and one at least is of this rank.
absl::Status CheckRanks(const Plan& plan, const PeerEdges& edges, Rank self) {
  if (!edges.IsMember(Rank(0))) return BadRankMessage("form.carrier_addresses", "must have that of rank 0", "none");
  bool here = false;
  for (const StagePlan& stage : plan.stages) {
    here = here || stage.rank == self;
    if (edges.IsMember(stage.rank)) continue;
    return BadRankMessage("build.stages.rank", "must be a rank of the group", absl::StrCat(stage.rank.value()));
  }
  if (here) return absl::OkStatus();
  return BadRankMessage("build.stages.rank", absl::StrCat("must be ", self.value(), " of one stage at least"),
                        "others");
}

}  // namespace

absl::Status RankPipelines::OnTold(const MessagePart& part) {
  PENSTOCK_ASSIGN_OR_RETURN(auto whole, reader_.Take(part));
  if (!whole.has_value()) return absl::OkStatus();
  return OnCommand(whole->message, std::move(whole->tensors));
}

absl::Status RankPipelines::OnCommand(const peer::v1::Command& command, NamedTensors tensors) {
  const uint64_t pipeline = command.pipeline();
  if (command.has_build()) {
    PostForLeader([this, command, tensors = std::move(tensors)] { Build(command, tensors); });
    return absl::OkStatus();
  }
  if (command.has_measure_links()) {
    PostForLeader([this, command] { MeasureLinks(command.pipeline(), command.question(), command.measure_links()); });
    return absl::OkStatus();
  }
  if (command.has_drop()) {
    jobs_.Post([this, pipeline] { Drop(pipeline); });  // behind its build
    return absl::OkStatus();
  }
  std::shared_ptr<Stages> stages;
  {
    absl::MutexLock lock(&mu_);
    const auto found = stages_.find(pipeline);
    if (found != stages_.end()) stages = found->second;
  }
  if (stages != nullptr && command.has_read_trace()) {
    ReadTrace(stages->name, command);
    return absl::OkStatus();
  }
  if (stages != nullptr) return Do(stages, command, IncomingTensors(std::move(tensors)));
  if (command.question() != 0) {
    RankReporter(pipeline, options_.tell)
        .Answer(command.question(), Error(absl::StatusCode::kUnavailable, "RANK_LOST",
                                          absl::StrCat("rank ", options_.self.value(), " has no stages of it any more"))
                                        .With("rank", absl::StrCat(options_.self.value())));
  }
  return absl::OkStatus();
}

void RankPipelines::PostForLeader(std::function<void()> job) {
  int leaders;
  {
    absl::MutexLock lock(&mu_);
    leaders = leaders_;
  }
  jobs_.Post([this, job = std::move(job), leaders] {
    {
      absl::MutexLock lock(&mu_);
      if (leaders != leaders_) return;
    }
    job();
  });
}

void RankPipelines::MeasureLinks(uint64_t pipeline, uint64_t question, const peer::v1::MeasureLinks& message) {
  std::vector<Link> links;
  const absl::Status measured = Guarded("the measurement of links", [&]() -> absl::Status {
    const std::shared_ptr<PeerEdges> edges = options_.edges(message.generation());
    if (edges == nullptr) return OverStatus(message.generation());
    Clock* const clock = options_.engine.clock == nullptr ? RealClock() : options_.engine.clock;
    const int64_t budget_nanos = std::min(message.budget_nanos(), kLinkBudgetNanos);
    for (const int peer : message.peers()) {
      links.push_back(MeasureLink(edges.get(), options_.self, Rank(peer), clock, budget_nanos));
    }
    return absl::OkStatus();
  });
  RankReporter(pipeline, options_.tell).Answer(question, measured, [&](OutgoingReport* to) {
    *to->message().mutable_links() = ToProto(options_.self, links);
    return absl::OkStatus();
  });
}

absl::Status RankPipelines::OverStatus(uint32_t generation) const {
  return Error(absl::StatusCode::kUnavailable, "RANK_LOST",
               absl::StrCat("generation ", generation, " of the group is over"))
      .With("rank", absl::StrCat(options_.self.value()));
}

// It takes a moment, in which the link must not stand still.
void RankPipelines::ReadTrace(const std::string& name, const peer::v1::Command& command) {
  jobs_.Post([this, name, pipeline = command.pipeline(), question = command.question(), asked = command.read_trace()] {
    absl::StatusOr<RankTrace> trace = Guarded("a trace", [&]() -> absl::StatusOr<RankTrace> {
      if (options_.trace == nullptr) return Error(absl::StatusCode::kUnimplemented, "FEATURE_DISABLED", "no traces");
      return options_.trace(name, asked.begin_nanos(), asked.end_nanos());
    });
    RankReporter(pipeline, options_.tell).Answer(question, trace.status(), [&](OutgoingReport* to) {
      return AddTrace(*trace, to);
    });
  });
}

// --- Building.

absl::StatusOr<std::shared_ptr<RankPipelines::Stages>> RankPipelines::MakeStages(uint64_t pipeline,
                                                                                 const peer::v1::BuildStages& message,
                                                                                 const NamedTensors& tensors) {
  {
    absl::MutexLock lock(&mu_);
    if (stages_.contains(pipeline)) {
      return BadRankMessage("command.pipeline", "must not be built here yet", absl::StrCat(pipeline));
    }
  }
  PENSTOCK_ASSIGN_OR_RETURN(StagesToBuild build, FromProto(message));
  auto made = std::make_shared<Stages>();
  made->name = build.name;
  made->edges = options_.edges(message.generation());
  if (made->edges == nullptr) return OverStatus(message.generation());
  PENSTOCK_RETURN_IF_ERROR(CheckRanks(build.plan, *made->edges, options_.self));
  PENSTOCK_ASSIGN_OR_RETURN(std::optional<std::string> program, ProgramFileOf(tensors));
  if (options_.load) PENSTOCK_RETURN_IF_ERROR(options_.load(&build.spec.model, std::move(program)));
  made->leader = std::make_unique<RankReporter>(pipeline, options_.tell);
  Pipeline::Options engine = options_.engine;
  if (options_.metrics) {
    engine.metrics = [this, name = build.name](const Plan& plan) { return options_.metrics(name, plan); };
  }
  Stages* const stages = made.get();
  const ChannelName channel = {.pipeline = absl::StrCat(pipeline), .epoch = Epoch()};
  const auto transport = [this, stages, channel, plan = build.plan](std::vector<DeviceStreams*> streams,
                                                                    std::function<void(const MessageKey&)> on_arrival) {
    return MakeRankTransport(stages->edges.get(), channel, plan, options_.self, std::move(streams),
                             options_.send_timeout_nanos, std::move(on_arrival),
                             [stages](const absl::Status& why) { stages->OnFailed(why); });
  };
  PENSTOCK_ASSIGN_OR_RETURN(
      auto host, BuildRankHost(build.spec, engine, build.plan, options_.self, transport, made->leader.get()));
  PENSTOCK_RETURN_IF_ERROR(made->SetHost(std::move(host)));
  return made;
}

void RankPipelines::Stages::OnFailed(const absl::Status& why) {
  absl::MutexLock lock(&mu);
  if (failed.ok()) failed = why;
  if (has_host) host->FailRuns(why);
}

absl::Status RankPipelines::Stages::SetHost(std::unique_ptr<RankHost> made) {
  host = std::move(made);
  absl::MutexLock lock(&mu);
  has_host = true;
  return failed;
}

void RankPipelines::Build(const peer::v1::Command& command, const NamedTensors& tensors) {
  const peer::v1::BuildStages& message = command.build();
  absl::StatusOr<std::shared_ptr<Stages>> made =
      Guarded("the stages of a pipeline", [&]() -> absl::StatusOr<std::shared_ptr<Stages>> {
        PENSTOCK_ASSIGN_OR_RETURN(std::shared_ptr<Stages> stages, MakeStages(command.pipeline(), message, tensors));
        absl::MutexLock lock(&mu_);
        stages_[command.pipeline()] = stages;
        return stages;
      });
  if (made.ok()) {
    LogInfo("stages of a pipeline are built", {{"pipeline", message.name()}});
  } else {
    LogWarning("stages of a pipeline can't be built",
               {{"pipeline", message.name()}, {"problem", std::string(made.status().message())}});
  }
  RankReporter(command.pipeline(), options_.tell).Answer(command.question(), made.status());
}

void RankPipelines::Drop(uint64_t pipeline) {
  std::shared_ptr<Stages> dropped;  // goes without the lock
  absl::MutexLock lock(&mu_);
  const auto found = stages_.find(pipeline);
  if (found == stages_.end()) return;
  LogInfo("stages of a pipeline are dropped", {{"pipeline", found->second->name}});
  dropped = std::move(found->second);
  stages_.erase(found);
}

void RankPipelines::DropAll() {
  reader_ = MessageReader<peer::v1::Command>();
  std::map<uint64_t, std::shared_ptr<Stages>> dropped;
  {
    absl::MutexLock lock(&mu_);
    ++leaders_;
    dropped.swap(stages_);
  }
  const auto all = std::make_shared<std::map<uint64_t, std::shared_ptr<Stages>>>(std::move(dropped));
  jobs_.Post([this, all] {
    all->clear();
    // Those that were built meanwhile.
    std::map<uint64_t, std::shared_ptr<Stages>> late;
    absl::MutexLock lock(&mu_);
    late.swap(stages_);
  });
}

void RankPipelines::Close() {
  DropAll();
  jobs_.Close();
}

std::vector<std::string> RankPipelines::names() const {
  std::vector<std::string> names;
  absl::MutexLock lock(&mu_);
  for (const auto& [number, stages] : stages_) names.push_back(stages->name);
  return names;
}

// --- Commands.

absl::Status RankPipelines::Do(const std::shared_ptr<Stages>& stages, const peer::v1::Command& command,
                               IncomingTensors tensors) {
  using Kind = peer::v1::Command::KindCase;
  RankHost& host = *stages->host;
  switch (command.kind_case()) {
    case Kind::kStart: {
      PENSTOCK_ASSIGN_OR_RETURN(RunOrder order, FromProto(command.start()));
      host.Start(std::move(order));
      return absl::OkStatus();
    }
    case Kind::kStop:
      host.Stop(command.stop());
      return absl::OkStatus();
    case Kind::kBeDue:
      host.BeDue(command.be_due());
      return absl::OkStatus();
    case Kind::kPutTies: {
      PENSTOCK_ASSIGN_OR_RETURN(TiedGradients ties, tensors.TakeTies(command.put_ties().ties()));
      host.PutTies(command.put_ties().run(), std::move(ties));
      return absl::OkStatus();
    }
    case Kind::kGrant:
      host.Grant(command.grant().run(), FromProto(command.grant()));
      return absl::OkStatus();
    case Kind::kEnd:
      host.End(command.end());
      return absl::OkStatus();
    case Kind::kForgetGraph:
      host.ForgetGraph(command.forget_graph());
      return absl::OkStatus();
    case Kind::kEndContribution:
      host.EndContribution(command.end_contribution().keep(),
                           MicroBatchIndex(command.end_contribution().first_micro_batch()));
      return absl::OkStatus();
    case Kind::kDiscardGradients:
      host.DiscardGradients();
      return absl::OkStatus();
    case Kind::kRestoreTiedGradients:
      host.RestoreTiedGradients();
      return absl::OkStatus();
    case Kind::kSetIdle:
      if (command.set_idle() < 0 || command.set_idle() >= kStageStateCount) {
        return BadRankMessage("command.set_idle", absl::StrCat("must lie in [0, ", kStageStateCount, ")"),
                              absl::StrCat(command.set_idle()));
      }
      host.SetIdle(static_cast<StageState>(command.set_idle()));
      return absl::OkStatus();
    default:
      return AnswerQuestion(stages, command, tensors);
  }
}

absl::Status RankPipelines::AnswerQuestion(const std::shared_ptr<Stages>& stages, const peer::v1::Command& command,
                                           IncomingTensors& tensors) {
  using Kind = peer::v1::Command::KindCase;
  RankHost& host = *stages->host;
  RankReporter* const leader = stages->leader.get();  // outlives the host, which gives the answers
  const uint64_t question = command.question();
  const auto succeeded = [leader, question](const absl::Status& result) { leader->Answer(question, result); };
  const auto states = [leader, question](const absl::StatusOr<StatesOfStages>& result) {
    leader->Answer(question, result.status(),
                   [&](OutgoingReport* to) { return AddStates(*result, to->message().mutable_states(), to); });
  };
  switch (command.kind_case()) {
    case Kind::kUndo:
      host.Undo(succeeded);
      return absl::OkStatus();
    case Kind::kReadFacts:
      host.ReadFacts([leader, question](const absl::StatusOr<FactsOfRank>& result) {
        leader->Answer(question, result.status(),
                       [&](OutgoingReport* to) { return SetFacts(*result, to->message().mutable_facts()); });
      });
      return absl::OkStatus();
    case Kind::kReadState:
      host.ReadState(command.read_state(), states);
      return absl::OkStatus();
    case Kind::kWriteState:
      host.WriteState(tensors.TakeAll(), succeeded);
      return absl::OkStatus();
    case Kind::kReadTies:
      host.ReadTies([leader, question](const absl::StatusOr<TiedGradients>& result) {
        leader->Answer(question, result.status(),
                       [&](OutgoingReport* to) { return AddTies(*result, to->message().mutable_ties(), to); });
      });
      return absl::OkStatus();
    case Kind::kReadGradients: {
      PENSTOCK_ASSIGN_OR_RETURN(TiedGradients ties, tensors.TakeTies(command.read_gradients()));
      host.ReadGradients(std::move(ties), states);
      return absl::OkStatus();
    }
    case Kind::kReadAccumulated:
      host.ReadAccumulated([leader, question](const absl::StatusOr<NamedTensors>& result) {
        leader->Answer(question, result.status(), [&](OutgoingReport* to) {
          to->message().mutable_named();
          return to->AddAll(*result);
        });
      });
      return absl::OkStatus();
    case Kind::kWriteAccumulated:
      host.WriteAccumulated(tensors.TakeAll(), [leader, question](const absl::StatusOr<int64_t>& result) {
        leader->Answer(question, result.status(), [&](OutgoingReport* to) {
          to->message().set_count(*result);
          return absl::OkStatus();
        });
      });
      return absl::OkStatus();
    case Kind::kUpdateOptimizer: {
      PENSTOCK_ASSIGN_OR_RETURN(OptimizerSpec spec, FromProto(command.update_optimizer()));
      host.UpdateOptimizer(std::move(spec), succeeded);
      return absl::OkStatus();
    }
    default:
      return BadRankMessage("command", "must be known", "another one");
  }
}

}  // namespace penstock
