#pragma once

// The pipelines of which a rank that does not lead has stages.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/job_thread.h"
#include "engine/exec/pipeline.h"
#include "engine/exec/rank_host.h"
#include "engine/observe/rank_trace.h"
#include "engine/transport/peer_edges.h"
#include "server/ranks/message_parts.h"
#include "server/ranks/rank_convert.h"
#include "server/ranks/rank_reporter.h"

namespace penstock {

// Builds stages as the leader says, hands its commands to them, and tells the leader what comes of it.
//
// Owns:      the stages. What the options name outlives them.
// Threads:   OnTold() and DropAll() from the link's calls, one at a time; neither blocks. Stages are built and taken down,
//            and links measured, on a thread of their own, `ps-stages`.
// Lifecycle: Close() once, after the last call: it waits until all stages are down.
// Fails:     OnTold: RANK_MESSAGE for what makes no sense; the leader must be left then.
class RankPipelines {
 public:
  struct Options {
    Rank self;
    Pipeline::Options engine;  // devices and clock; tests set more
    // Where the lanes of a pipeline count; null: nowhere.
    std::function<std::shared_ptr<PipelineMetrics>(const std::string& name, const Plan&)> metrics = {};
    // What the lanes of a pipeline did in a span of time; null: nobody knows.
    std::function<absl::StatusOr<RankTrace>(const std::string& name, int64_t begin_nanos, int64_t end_nanos)> trace =
        {};
    // Reads the program that a model names, from the bytes of its file if the leader has sent them. Without them,
    // MODEL_NOT_FOUND or MODEL_MISMATCH makes it send them.
    std::function<absl::Status(ModelSpec*, std::optional<std::string> sent)> load = {};
    // The edges of a generation of the group; null where it is over.
    std::function<std::shared_ptr<PeerEdges>(uint32_t generation)> edges;
    std::function<void(std::vector<MessagePart>)> tell;  // to the leader
    int64_t send_timeout_nanos = 0;                      // as GroupTransport's
  };
  explicit RankPipelines(Options options) : options_(std::move(options)) {}
  ~RankPipelines() { Close(); }

  absl::Status OnTold(const MessagePart& part) ABSL_LOCKS_EXCLUDED(mu_);
  // The leader is lost, and all that it has built.
  void DropAll() ABSL_LOCKS_EXCLUDED(mu_);
  void Close();

  // Names of those that are built.
  std::vector<std::string> names() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // The stages of one pipeline.
  struct Stages {
    // The carrier may fail before the host is there, and until it has gone.
    void OnFailed(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu);
    absl::Status SetHost(std::unique_ptr<RankHost> made) ABSL_LOCKS_EXCLUDED(mu);
    absl::Mutex mu;
    absl::Status failed ABSL_GUARDED_BY(mu);
    bool has_host ABSL_GUARDED_BY(mu) = false;

    std::string name;
    std::shared_ptr<PeerEdges> edges;
    std::unique_ptr<RankReporter> leader;
    std::unique_ptr<RankHost> host;  // last: its end uses all of the above
  };

  absl::Status OnCommand(const peer::v1::Command& command, NamedTensors tensors) ABSL_LOCKS_EXCLUDED(mu_);
  void ReadTrace(const std::string& name, const peer::v1::Command& command);
  absl::Status Do(const std::shared_ptr<Stages>& stages, const peer::v1::Command& command, IncomingTensors tensors);
  absl::Status AnswerQuestion(const std::shared_ptr<Stages>& stages, const peer::v1::Command& command,
                              IncomingTensors& tensors);
  void Build(const peer::v1::Command& command, const NamedTensors& tensors) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::shared_ptr<Stages>> MakeStages(uint64_t pipeline, const peer::v1::BuildStages& message,
                                                     const NamedTensors& tensors);
  // Runs a job after those before it, unless its leader is lost by then.
  void PostForLeader(std::function<void()> job) ABSL_LOCKS_EXCLUDED(mu_);
  void MeasureLinks(uint64_t pipeline, uint64_t question, const peer::v1::MeasureLinks& message);
  absl::Status OverStatus(uint32_t generation) const;
  void Drop(uint64_t pipeline) ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;
  MessageReader<peer::v1::Command> reader_;  // the link's

  mutable absl::Mutex mu_;
  std::map<uint64_t, std::shared_ptr<Stages>> stages_ ABSL_GUARDED_BY(mu_);
  int leaders_ ABSL_GUARDED_BY(mu_) = 0;  // that were lost: what was to be built for them is not

  JobThread jobs_{"ps-stages"};  // last: its jobs use all of the above
};

}  // namespace penstock
