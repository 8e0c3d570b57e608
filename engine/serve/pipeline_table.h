#pragma once

// The live pipelines, by name.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/exec/pipeline.h"
#include "engine/serve/calls.h"
#include "engine/serve/pipeline_builder.h"
#include "engine/serve/served_pipeline.h"

namespace penstock {

class CancelToken;
class Planning;

// A pipeline as a list shows it.
struct PipelineEntry {
  enum class State { kCreating, kReady, kDraining, kDeleting, kFailed };
  std::string name;
  State state = State::kCreating;
  absl::Status error = absl::OkStatus();  // FAILED only: PIPELINE_BROKEN, see Pipeline::health()
  PipelineSpec spec = {};
  absl::Time create_time = {};
  uint64_t version = 0;                           // rises with each change of state; for etags
  std::shared_ptr<const Planning> planning = {};  // CREATING only: how far it is
  std::shared_ptr<ServedPipeline> pipeline = {};  // READY, FAILED and DRAINING; DELETING while it still stands
};

// Creates, finds and deletes pipelines.
//
// Model:     A map from name to a pipeline with its state. A pipeline that could not be made leaves
//            no entry: its error is the answer of Create().
// Owns:      The served pipelines, with whoever holds a reference meanwhile; three threads: `ps-creations` creates one pipeline
//            after the other, `ps-deletions` destroys them, `ps-plans` (plan_queue.h) looks for plans that nothing is created
//            from. What Options points to must outlive the table.
// Threads:   Any method from any thread; none blocks but Close(). Creation and deletion run on the
//            table's threads, outside its lock, so other calls are served meanwhile, and neither waits for the other.
//            Callbacks come on these threads and must not call Close().
// Lifecycle: Drain(), then Close(), then destruction, before the handle store's.
// Fails:     ALREADY_EXISTS / PIPELINE_EXISTS; NOT_FOUND / PIPELINE_NOT_FOUND; FAILED_PRECONDITION /
//            PIPELINE_NOT_READY while it is made or deleted, PIPELINE_IN_USE; UNAVAILABLE / DRAINING;
//            RESOURCE_EXHAUSTED / CALLER_QUOTA beyond max_pipelines, HOST_MEMORY beyond what is left to
//            claim, QUEUE_FULL or CALLER_QUOTA of Plan() and Search() where too many wait; whatever making
//            it fails with.
//            All name the pipeline.
class PipelineTable {
 public:
  struct Options {
    PipelineBuilder::Options builder;
    int max_pipelines = 16;
  };

  explicit PipelineTable(Options options);
  ~PipelineTable();

  using CreateCallback = std::function<void(absl::StatusOr<PipelineEntry>)>;
  using PlanCallback = std::function<void(absl::StatusOr<penstock::Plan>)>;
  using SearchCallback = std::function<void(absl::StatusOr<PlanSearch>)>;
  using DeleteCallback = std::function<void(absl::Status)>;

  // Answers when the pipeline is READY. It goes on if nobody waits any more: a retry with the same request_id joins or gets
  // its answer. Planning takes the specification's time, whatever the caller's.
  // Of the context, caller, request_id and payload_digest count.
  // `accept` is asked where there is a pipeline of this name, being made or ready: OK takes that one, when it is ready, for the
  // answer, an error is the answer. It must not call the table. Null: none is taken.
  using AcceptExisting = std::function<absl::Status(const PipelineEntry&)>;
  void Create(CallContext context, std::string name, PipelineRecipe recipe, AcceptExisting accept, CreateCallback done);
  // What Create() would do, without doing it. CANCELLED / WORK_CANCELLED soon after `cancel`.
  void Plan(const std::string& caller, PipelineSpec spec, std::shared_ptr<CancelToken> cancel, PlanCallback done);

  // What it could do, best first; in the same way.
  void Search(const std::string& caller, PipelineSpec spec, std::shared_ptr<CancelToken> cancel, SearchCallback done);

  // The live pipeline.
  absl::StatusOr<std::shared_ptr<ServedPipeline>> Find(const std::string& name) const;
  // Its entry, in whatever state.
  absl::StatusOr<PipelineEntry> Get(const std::string& name) const;
  // By name, those after `after`, at most `limit`.
  std::vector<PipelineEntry> List(const std::string& after, int limit) const;

  // Answers when it is gone: accepted work has finished (`force`: what had not started is cancelled,
  // and an open accumulation or graph is lost; without it, those are PIPELINE_IN_USE), its handles are
  // released. `purge` removes its checkpoints.
  void Delete(CallContext context, std::string name, bool force, bool purge, DeleteCallback done);

  // Removes a checkpoint of a pipeline that does not live; a living one does it itself, in the order of its calls.
  // Fails:     CHECKPOINT_NOT_FOUND; PIPELINE_NOT_READY for one that is being made or deleted, or lives.
  void DeleteCheckpoint(CallContext context, CheckpointSource checkpoint, DeleteCallback done);

  // From now on nothing is created and no work is accepted; calls back when all accepted work has
  // ended.
  void Drain(std::function<void()> done);

  // What the last saves of all pipelines came to.
  struct LastSaves {
    std::vector<std::string> failed;  // names of pipelines
  };
  // After Drain(): saves what has changed, one pipeline after the other, as ServedPipeline::SaveLast() does. Calls back on
  // whatever thread comes last, possibly before it returns.
  void SaveLast(std::shared_ptr<CancelToken> cancel, std::function<void(LastSaves)> done);

  // Stops every pipeline: cancels what has not started, waits for what runs. Joins the thread.
  void Close();

 private:
  class Implementation;
  const std::unique_ptr<Implementation> implementation_;
};

}  // namespace penstock
