#pragma once

// The live pipelines, by name.

#include <atomic>
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
#include "absl/time/time.h"
#include "engine/base/job_thread.h"
#include "engine/base/turn_thread.h"
#include "engine/exec/pipeline.h"
#include "engine/journal/daemon_journal.h"
#include "engine/serve/calls.h"
#include "engine/serve/joined.h"
#include "engine/serve/last_saves.h"
#include "engine/serve/pipeline_builder.h"
#include "engine/serve/plan_queue.h"
#include "engine/serve/request_log.h"
#include "engine/serve/served_pipeline.h"

namespace penstock {

class CancelToken;
class Planning;

// A pipeline as a list shows it.
struct PipelineEntry {
  // REFORMING: it has lost a rank, or the group is not complete yet: it is made again when the group is.
  // UNLOADED: it stands on disk alone, until Load().
  enum class State { kCreating, kReady, kDraining, kDeleting, kFailed, kReforming, kUnloading, kUnloaded };
  std::string name;
  State state = State::kCreating;
  // FAILED and REFORMING only: PIPELINE_BROKEN or RANK_LOST, see Pipeline::health(), or why it could not be made again.
  absl::Status error = absl::OkStatus();
  PipelineSpec spec = {};
  std::string life = {};    // of its journal; empty: it has none, or is being made for the first time
  std::string caller = {};  // who made it
  absl::Time create_time = {};
  uint64_t version = 0;                           // rises with each change of state; for etags
  std::shared_ptr<const Planning> planning = {};  // CREATING only: how far it is
  // READY and DRAINING; FAILED, unless it could not be made again; DELETING while it still stands.
  std::shared_ptr<ServedPipeline> pipeline = {};
  // While no pipeline stands, UNLOADED or lost with a rank: what was known of it last.
  struct Rest {
    int64_t step = 0;
    std::string state_token = {};
    Publication published = {};
  };
  Rest rest = {};
};

// Creates, finds and deletes pipelines.
//
// Model:     A map from name to a pipeline with its state. A pipeline that could not be made leaves
//            no entry: its error is the answer of Create(). One that loses a rank is stopped, and made again when the
//            group is complete: with a journal as after a restart, without one from its last checkpoint.
// Owns:      The served pipelines, with whoever holds a reference meanwhile; three threads: `ps-creations` creates one
//            pipeline after the other (one that takes longer than its planning and kPatience keeps no other waiting: a
//            single operator that is measured can't be interrupted), `ps-deletions` destroys them, `ps-plans` (plan_queue.h) looks for plans that
//            nothing is created from. What Options points to must outlive the table.
// Threads:   Any method from any thread; none blocks but Close(); with a journal, Create() and Delete() may wait for the
//            disk, to look for an earlier attempt. Creation and deletion run on the
//            table's threads, outside its lock, so other calls are served meanwhile, and neither waits for the other.
//            Callbacks come on these threads and must not call Close().
// Lifecycle: Drain(), perhaps Resume(), then Close(), then destruction, before the handle store's.
// Fails:     ALREADY_EXISTS / PIPELINE_EXISTS; NOT_FOUND / PIPELINE_NOT_FOUND; FAILED_PRECONDITION /
//            PIPELINE_NOT_READY while it is made or deleted, PIPELINE_IN_USE; UNAVAILABLE / DRAINING, PIPELINE_REFORMING;
//            RESOURCE_EXHAUSTED / CALLER_QUOTA beyond max_pipelines, or beyond a quarter of them while another
//            caller has some; HOST_MEMORY where the ledger has no
//            room, QUEUE_FULL or CALLER_QUOTA of Plan() and Search() where too many wait; whatever making
//            it fails with.
//            All name the pipeline.
class PipelineTable {
 public:
  // Beside its planning_seconds, until those behind a creation or a search no longer wait for it.
  static constexpr absl::Duration kPatience = absl::Minutes(1);

  struct Options {
    PipelineBuilder::Options builder;
    int max_pipelines = 16;
    // Where the pipelines stand that outlive the process; null: none does. Outlives the table.
    DaemonJournal* journal = nullptr;
    std::string fingerprint = {};  // of the build and the machine, kept with each pipeline
  };

  explicit PipelineTable(Options options);
  ~PipelineTable();

  using CreateCallback = std::function<void(absl::StatusOr<PipelineEntry>)>;
  using PlanCallback = std::function<void(absl::StatusOr<penstock::Plan>)>;
  using SearchCallback = std::function<void(absl::StatusOr<PlanSearch>)>;
  using UpdateCallback = CreateCallback;
  using DeleteCallback = std::function<void(absl::Status)>;

  // Calls back when it is READY. It goes on if nobody waits any more: a retry with the same request_id joins or
  // gets its answer. Planning takes the specification's time, whatever the caller's. Of the context, caller, request_id
  // and payload_digest count. `accept` is asked where there is a pipeline of this name, being made or ready: OK takes
  // that one, when it is ready, for the answer, an error is the answer. It must not call the table. Null: none is
  // taken.
  using AcceptExisting = std::function<absl::Status(const PipelineEntry&)>;
  void Create(CallContext context, std::string name, PipelineRecipe recipe, AcceptExisting accept, CreateCallback done);
  // Makes the pipelines of the journal again, and calls back when each is READY, FAILED or REFORMING. A name that is
  // FAILED so can only be deleted. Once, before any other call.
  absl::Status Recover(std::function<void()> done) ABSL_LOCKS_EXCLUDED(mu_);

  // Another cut, schedule, devices or batching for a pipeline that goes on serving: makes what the recipe says beside what
  // stands, and puts it there between two calls of the training order, with the same weights. Calls back when it stands
  // there; a failure leaves everything as it was. As Create(), it goes on if nobody waits any more, and so do retries.
  // `accept` is asked for the entry that would be updated, but not of a retry; an error is the answer. It must not call the
  // table. Null: any will do.
  // Fails:     PIPELINE_NOT_READY while another update of it goes on; FEATURE_DISABLED for stages on several ranks; as
  //            PipelineBuilder::BuildNext() and ServedPipeline::Update().
  using AcceptUpdate = std::function<absl::Status(const PipelineEntry&)>;
  void Update(CallContext context, std::string name, PipelineRecipe recipe, const AcceptUpdate& accept,
              UpdateCallback done) ABSL_LOCKS_EXCLUDED(mu_);

  // What inference of a pipeline is answered from: a checkpoint of its own, until the next call; empty: the live weights.
  // `recipe`: what the pipeline is made from, with its plan. Builds the weights beside what stands; training goes on. Calls
  // back when inference that is accepted sees them; a failure leaves everything as it was. As Update(), it goes on if nobody
  // waits any more, and so do retries.
  // Fails:     as Update(), for updates of it too; as PipelineBuilder::BuildPublished(); CHECKPOINT_IN_USE for one that is
  //            being deleted or replaced; of the journal.
  void Publish(CallContext context, std::string name, std::string checkpoint, PipelineRecipe recipe,
               UpdateCallback done) ABSL_LOCKS_EXCLUDED(mu_);

  // Gives back what a pipeline holds but its name, and keeps its state on disk, so that Load(), in whatever process, makes it
  // again bit for bit. Accepted work ends first; what it has given stays in its handles. Calls back when it is UNLOADED; a
  // failure leaves it READY. Of one that is UNLOADED, calls back at once; one that is being unloaded is joined. As Create(),
  // it goes on if nobody waits any more, and so do retries.
  // Fails:     FEATURE_DISABLED without a journal, and for stages on several ranks; PIPELINE_NOT_READY while it is updated;
  //            GRAPH_OPEN, JOURNAL_BUSY; as a save does; of the journal.
  void Unload(CallContext context, std::string name, UpdateCallback done) ABSL_LOCKS_EXCLUDED(mu_);
  // Makes one that is UNLOADED, as Recover() does. Calls back when it is READY; a failure leaves it UNLOADED. Of one that
  // is READY, calls back at once; one that is being made is joined. It goes on in the same way.
  void Load(CallContext context, std::string name, UpdateCallback done) ABSL_LOCKS_EXCLUDED(mu_);

  // What Create() would do, without doing it. CANCELLED / WORK_CANCELLED soon after `cancel`.
  void Plan(const std::string& caller, PipelineSpec spec, std::shared_ptr<CancelToken> cancel, PlanCallback done);

  // Makes those again that are REFORMING. To be called each time that the group becomes complete: after the losses
  // before it were told to the pipelines.
  void OnGroupComplete() ABSL_LOCKS_EXCLUDED(mu_);

  // What it could do, best first; in the same way.
  void Search(const std::string& caller, PipelineSpec spec, std::shared_ptr<CancelToken> cancel, SearchCallback done);

  // The live pipeline.
  absl::StatusOr<std::shared_ptr<ServedPipeline>> Find(const std::string& name) const;
  // Its entry, in whatever state.
  absl::StatusOr<PipelineEntry> Get(const std::string& name) const;
  // By name, those after `after`, at most `limit`.
  std::vector<PipelineEntry> List(const std::string& after, int limit) const;

  // Calls back when it is gone: accepted work has finished (`force`: what had not started is cancelled,
  // and an open accumulation or graph is lost; without it, those are PIPELINE_IN_USE), its handles are
  // released. `purge` removes its checkpoints; where that fails, the pipeline is gone and the answer is the error.
  void Delete(CallContext context, std::string name, bool force, bool purge, DeleteCallback done);

  // Removes a checkpoint of a pipeline that does not live; a living one does it itself, in the order of its calls.
  // Fails:     CHECKPOINT_NOT_FOUND; PIPELINE_NOT_READY for one that is being made or deleted, or lives.
  void DeleteCheckpoint(CallContext context, CheckpointSource checkpoint, DeleteCallback done);

  // From now on nothing is created and no work is accepted; calls back when all accepted work has
  // ended.
  void Drain(std::function<void()> done);

  // After Drain(): saves what has changed, as SaveAllLast() does.
  void SaveLast(ServedPipeline::LastSave save, std::shared_ptr<CancelToken> cancel,
                std::function<void(LastSaves)> done);

  // The first pipeline whose journal a last save could not empty, as things are: a FAILED one too. OK: none.
  absl::Status CheckEmptyJournals() const;

  // Ends a drain that cancelled nothing: all is as before Drain().
  void Resume() ABSL_LOCKS_EXCLUDED(mu_);

  // Stops every pipeline: cancels what has not started, waits for what runs. Joins the thread.
  void Close();

 private:
  // The callers of one creation or deletion. Its answer has no pipeline, which it must not keep alive.
  using TableJoin = Joined<PipelineEntry>;
  using JoinPointer = std::shared_ptr<TableJoin>;
  using EntryCallback = TableJoin::Callback;

  // What there is already and will do: its creation, or once it has been made, itself.
  struct Standing {
    JoinPointer creation;
    PipelineEntry entry;
    bool remember = false;  // the entry is the answer of a retry, too
  };
  // Begins the work under the lock, refuses it, or finds something standing and returns any error.
  using Start = std::function<absl::Status(std::optional<Standing>* standing)>;
  // The join of a new call, recorded; or nothing, when `done` was answered, by an earlier attempt, by what stands or by
  // what `start` refused, or has joined one. `creates`: the pipeline whose creation the call is; empty: none. The answer
  // of a deletion has no name: its retry looks for no pipeline.
  JoinPointer Begin(const RequestKey& key, const CallContext& context, EntryCallback done, const Start& start,
                    const std::string& creates = "") ABSL_LOCKS_EXCLUDED(mu_);
  void Answer(const RequestKey& key, const JoinPointer& join, absl::StatusOr<PipelineEntry> answer)
      ABSL_LOCKS_EXCLUDED(mu_);
  void SetState(PipelineEntry& entry, PipelineEntry::State state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether the caller may have one more.
  absl::Status CheckRoom(const std::string& caller, const std::string& name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What a creation finds where there is a pipeline of its name.
  absl::StatusOr<Standing> Existing(const PipelineEntry& entry, const AcceptExisting& accept) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<PipelineEntry> CreateNow(const std::string& name, const RequestKey& key,
                                          const std::string& payload_digest, PipelineRecipe recipe, Planning* planning)
      ABSL_LOCKS_EXCLUDED(mu_);
  void RecoverNow(const JournalledPipeline& row, const Publication& published,
                  const std::shared_ptr<Planning>& planning) ABSL_LOCKS_EXCLUDED(mu_);
  // An update: its engine is made on the thread of creations, waits for its turn, and ends on the thread of deletions.
  struct UpdateJob;
  using UpdatePointer = std::shared_ptr<UpdateJob>;
  // What an update and a publication share: the entry of a pipeline that may be changed, and no other call changes then; and
  // the end of that, with the entry as it is.
  absl::StatusOr<PipelineEntry> BeginChange(const std::string& name, const AcceptUpdate& accept = nullptr)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<PipelineEntry> EndChange(const std::string& name, const std::weak_ptr<ServedPipeline>& changed,
                                          const absl::Status& status, const std::function<void(PipelineEntry&)>& change)
      ABSL_LOCKS_EXCLUDED(mu_);
  bool Serves(const std::string& name, const std::weak_ptr<ServedPipeline>& changed) const ABSL_LOCKS_EXCLUDED(mu_);
  void MakeNext(const UpdatePointer& update, Planning* planning) ABSL_LOCKS_EXCLUDED(mu_);
  void EndUpdate(const UpdatePointer& update, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status RecordUpdate(const UpdateJob& update) const ABSL_LOCKS_EXCLUDED(mu_);
  // A publication, on the thread of creations.
  struct PublishJob;
  absl::Status PublishNow(const PublishJob& job, Planning* planning) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status RecordPublication(const PublishJob& job, const Publication& publication) const ABSL_LOCKS_EXCLUDED(mu_);
  void EndPublication(const PublishJob& job, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  // An unload, whose end is on the thread of deletions, and a load, on that of creations.
  struct UnloadJob;
  struct LoadJob;
  absl::Status BeginUnload(UnloadJob& job, std::optional<Standing>* standing) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void UnloadNow(UnloadJob& job) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status RecordUnload(const UnloadJob& job) const;
  void KeepLoaded(const UnloadJob& job, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status BeginLoad(const std::string& name, const std::shared_ptr<Planning>& planning,
                         std::optional<Standing>* standing) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LoadNow(const LoadJob& job, Planning* planning) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status RecordLoad(const LoadJob& job) const;
  void AnswerLoad(const LoadJob& job, const absl::Status& status, PipelineEntry entry) ABSL_LOCKS_EXCLUDED(mu_);
  // Of the build of that number; on the thread of deletions.
  void DestroyUnusedWeights(const std::string& name, uint64_t number) ABSL_LOCKS_EXCLUDED(mu_);
  // A pipeline of the journal, made again from `recipe`, which is filled in.
  absl::StatusOr<std::shared_ptr<ServedPipeline>> MakeAgain(const JournalledPipeline& row, const Publication& published,
                                                            PipelineRecipe* recipe, Planning* planning)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::map<std::string, Publication>> PublicationsByLife() const;
  // What a pipeline of the journal is made from again.
  PipelineEntry::Rest RestOf(const JournalledPipeline& row, Publication published) const;
  absl::StatusOr<PipelineRecipe> RecipeOf(const JournalledPipeline& row) const;

  // What is known of the making of a pipeline, as long as it has an entry.
  struct Making {
    uint64_t number = 0;                                // of the last build
    int64_t completions = 0;                            // of the group, when its last build began
    std::shared_ptr<const PipelineRecipe> recipe = {};  // of one over ranks without a journal
    std::string last_checkpoint = {};                   // of one that has lost a rank
    bool standing = false;                              // what has lost a rank has not gone
    bool due = false;                                   // the group has become complete since it was tried
    bool building = false;                              // or is about to be
    bool loading = false;                               // it is UNLOADED again where that fails
    std::function<void()> deletion = {};                // that waits for the end of that
    bool updating = false;  // another engine is made for it, or waits for its turn; or a checkpoint is published
  };
  // Where pipelines that may outlive the table tell what has become of them.
  class Losses {
   public:
    explicit Losses(PipelineTable* table) : table_(table) {}
    // Runs a job on the thread of deletions, unless the table is closed.
    void Post(const std::function<void(PipelineTable&)>& job) ABSL_LOCKS_EXCLUDED(mu_);
    void Close() ABSL_LOCKS_EXCLUDED(mu_);
    int64_t completions() const { return completions_.load(); }  // of the group
    void CountCompletion() { completions_.fetch_add(1); }

   private:
    std::atomic<int64_t> completions_ = 0;
    absl::Mutex mu_;
    PipelineTable* table_ ABSL_GUARDED_BY(mu_);  // null: it is closed
  };
  // A build begins.
  PipelineLife NewLifeOf(const std::string& name, const std::string& id, bool again) ABSL_LOCKS_EXCLUDED(mu_);
  // `seen`: how often the group had become complete at the loss.
  void LoseNow(const std::string& name, uint64_t number, const absl::Status& why, int64_t seen)
      ABSL_LOCKS_EXCLUDED(mu_);
  void OnGone(const std::string& name, uint64_t number) ABSL_LOCKS_EXCLUDED(mu_);
  void ReformIfDue(const std::string& name) ABSL_LOCKS_EXCLUDED(mu_);
  void ReformNow(const std::string& name) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<PipelineRecipe> RecipeAgain(const PipelineEntry& entry) ABSL_LOCKS_EXCLUDED(mu_);
  // Of one that was made again, or was to be.
  // Of a load: returns the pipeline as it stood then; nobody joins the load from then on.
  PipelineEntry EndBuild(const std::string& name, absl::StatusOr<std::shared_ptr<ServedPipeline>> made,
                         PipelineRecipe recipe) ABSL_LOCKS_EXCLUDED(mu_);
  void LookForLoss(const std::string& name) ABSL_LOCKS_EXCLUDED(mu_);
  bool IsDeleting(const std::string& name) const ABSL_LOCKS_EXCLUDED(mu_);
  // Makes the pipeline durable, and that the request for it has been met.
  absl::Status RecordCreation(const RequestKey& key, const std::string& payload_digest, const std::string& life,
                              const PipelineRecipe& recipe, const PipelineEntry& entry) const;
  absl::Status RecordDeletion(const RequestKey& key, const std::string& payload_digest, const std::string& name)
      ABSL_LOCKS_EXCLUDED(mu_);
  // `before`: what it is again where nothing can be begun.
  void DeleteUnmade(const RequestKey& key, const std::string& payload_digest, const std::string& name, bool purge,
                    const JoinPointer& join, PipelineEntry::State before) ABSL_LOCKS_EXCLUDED(mu_);
  // What a record says of the call that it makes; nothing where that has no request id.
  static std::optional<PipelineRequest> RequestOf(const RequestKey& key, const std::string& pipeline,
                                                  const std::string& payload_digest);
  // What the journal knows of a request; nothing where the log of this life does.
  absl::StatusOr<bool> MetBefore(const RequestKey& key, const std::string& payload_digest) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns what kept checkpoints from being purged; the pipeline is gone all the same.
  absl::Status DeleteNow(const RequestKey& key, const std::string& payload_digest, const std::string& name,
                         std::shared_ptr<ServedPipeline> pipeline, bool purge) ABSL_LOCKS_EXCLUDED(mu_);
  void RemoveMetrics(const ServedPipeline& pipeline) const;
  // Looks on the plans' thread, by one of the builder's methods.
  template <typename Found>
  using PlanLook = absl::StatusOr<Found> (PipelineBuilder::*)(const std::string&, PipelineSpec,
                                                              const PipelineBuilder::MayRehearse&, Planning*) const;
  template <typename Found>
  void LookForPlans(const std::string& caller, PipelineSpec spec, std::shared_ptr<CancelToken> cancel,
                    std::function<void(absl::StatusOr<Found>)> done, PlanLook<Found> look) ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<std::shared_ptr<ServedPipeline>> Live(bool deleting_too = true) const ABSL_LOCKS_EXCLUDED(mu_);
  bool IsDraining() const ABSL_LOCKS_EXCLUDED(mu_);
  static absl::Duration TurnOf(const PipelineSpec& spec);  // that planning and making it may take
  // As it is now: a pipeline that was ready may have broken since, and its optimizer may have other settings.
  static PipelineEntry Present(PipelineEntry entry);
  static bool SpansRanks(const penstock::Plan& plan);

  static constexpr double kAgainSeconds = 600;  // a plan that was found is not looked for again

  const int max_pipelines_;
  DaemonJournal* const journal_;  // null: there is none
  const std::string fingerprint_;
  const PipelineBuilder builder_;
  // Candidates of a plan run on the devices only while no pipeline works there.
  const PipelineBuilder::MayRehearse may_rehearse_ = [this] { return Live().empty(); };

  mutable absl::Mutex mu_;
  std::map<std::string, PipelineEntry> entries_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, Making> makings_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, JoinPointer> creating_ ABSL_GUARDED_BY(mu_);
  RequestLog<JoinPointer> log_ ABSL_GUARDED_BY(mu_);
  uint64_t versions_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t builds_ ABSL_GUARDED_BY(mu_) = 0;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  const std::shared_ptr<Losses> losses_ = std::make_shared<Losses>(this);
  TurnThread creations_;  // last, with the next: they use all of the above
  JobThread deletions_{"ps-deletions"};
  PlanQueue plans_;
};

}  // namespace penstock
