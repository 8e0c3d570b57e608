#pragma once

// Results of calls, by name: what clients hold instead of tensors.

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/base/ids.h"
#include "engine/base/timer_queue.h"
#include "engine/exec/outcome.h"
#include "engine/handles/device_budget.h"
#include "engine/handles/handle_budget.h"
#include "engine/handles/handle_name.h"
#include "engine/handles/spill_folder.h"
#include "engine/tensor/held_values.h"
#include "engine/tensor/named_tensors.h"
#include "engine/wire/tensor_header.h"

namespace penstock {

class Clock;
class ServerMetrics;

enum class HandleState { kPending, kReady, kFailed, kCancelled, kReleased, kExpired };
inline constexpr int kHandleStateCount = 6;
inline constexpr std::array<const char*, kHandleStateCount> kHandleStateNames = {"PENDING",   "READY",    "FAILED",
                                                                                 "CANCELLED", "RELEASED", "EXPIRED"};
enum class HandleKind { kValue, kGraph, kOutcome };

// What a state-changing call did, and where it stands in its pipeline's order; or what an evaluation found.
struct CallOutcome {
  RunOutcome run;           // without its outputs: they have a handle of their own
  int64_t sequence = 0;     // 0: an evaluation, which has no place there
  std::string state_token;  // after the call; of an evaluation: of the state that its weights came with
};

// What a handle holds once it is ready: by kind, results, a graph or an outcome.
using HandleContent = std::variant<std::shared_ptr<const HeldValues>, std::shared_ptr<Graph>, CallOutcome>;

// What a request to stop the call behind a handle achieved.
enum class CancelEffect { kCancelled, kCancelling, kNotCancellable };

// The call that will settle some handles, as their store sees it.
//
// Threads:   Any; never called under the store's lock.
class HandleProducer {
 public:
  virtual ~HandleProducer() = default;
  // Someone wants the call to stop. After kCancelled, the store makes the handle CANCELLED by itself; the producer does
  // so for the call's other handles, and after kCancelling for all of them, at once or when the world may be told.
  virtual CancelEffect RequestCancel() = 0;
  // The owner released a PENDING handle for which no other caller waits. Called once per handle.
  virtual void Abandon(const HandleId& id) = 0;
};

// A handle, as its owner may see it. Never holds the bytes.
struct HandleInfo {
  HandleName name;
  std::string owner;
  HandleKind kind = HandleKind::kValue;
  HandleState state = HandleState::kPending;
  std::string method;
  std::vector<TensorHeader> tensors;   // READY values only: of all tensors, also those inside of `values`
  std::vector<std::string> values;     // READY values only: names of what is no tensor
  std::optional<CallOutcome> outcome;  // READY outcomes only
  absl::Status error;                  // FAILED and CANCELLED only
  int64_t bytes = 0;
  absl::Time create_time;
  std::optional<absl::Time> expire_time;  // unset while PENDING
  uint64_t serial = 0;                    // rises with creation; List() goes by it
};

// One page of a list; `next` is the argument for the page after, 0 at the end.
struct HandlePage {
  std::vector<HandleInfo> handles;
  uint64_t next = 0;
};

// A handle whose lease was renewed.
struct RenewedHandle {
  HandleName name;
  HandleState state = HandleState::kPending;
  std::optional<absl::Time> expire_time;  // unset while PENDING
};

struct HandleEntry;
class HandleStore;

// Keeps the bytes of one handle while it is in use. Moves; releases at destruction.
//
// Threads:   One at a time. The store must outlive it.
class HandlePin {
 public:
  HandlePin() = default;
  HandlePin(HandlePin&& other) noexcept = default;
  HandlePin& operator=(HandlePin&& other) noexcept;
  ~HandlePin();

  const HandleName& name() const;
  HandleKind kind() const;
  explicit operator bool() const { return entry_ != nullptr; }
  // True if the content is there, or its error.
  bool settled() const;

  // The content; or DEADLINE_EXCEEDED / HANDLE_PENDING; or the stored error, each time.
  // INVALID_ARGUMENT / HANDLE_KIND where the handle holds something else.
  absl::StatusOr<std::shared_ptr<const HeldValues>> values() const;  // no copy: the store's own
  absl::StatusOr<NamedTensors> tensors() const;                      // of the values: all of them
  absl::StatusOr<std::shared_ptr<Graph>> graph() const;
  absl::StatusOr<CallOutcome> outcome() const;

 private:
  friend class HandleStore;
  HandlePin(HandleStore* store, std::shared_ptr<HandleEntry> entry);
  absl::StatusOr<HandleContent> Content(HandleKind kind) const;

  HandleStore* store_ = nullptr;
  std::shared_ptr<HandleEntry> entry_;
};

// Keeps the results of calls until their owner releases them, or their lease ends.
//
// Model:     A map from HandleId to an entry: state, owner, lease, size, and content or an error.
//            A removed entry leaves a tombstone, so a late fetch fails at once and never hangs. The
//            state changes in one direction: PENDING; READY, FAILED or CANCELLED; RELEASED or EXPIRED.
// Owns:      The tensors of ready entries. A pin keeps one entry's content while in use: release
//            and expiry change the state at once, the bytes go with the last pin. Clock, TimerQueue
//            and ServerMetrics must outlive the store.
// Threads:   Any method from any thread. Callbacks, producers and destructors of contents run on
//            the thread that caused them (a caller's, a stage's, the timers'), never under mu_, and
//            must not block.
// Lifecycle: Reserve(); then one of Fulfil(), Fail(), Cancel(); then Get(), Pin() and Renew() at
//            will; then Release() or expiry. Close() fails pending entries and waits for the last
//            pin; call it before destruction.
// Units:     Bytes. A zero lease means Options::default_lease; one outside the limits is refused.
//            A lease starts when the handle settles.
// Fails:     NOT_FOUND for another caller's handle, and, each with its own reason, for released and
//            expired ones; FAILED_PRECONDITION / EPOCH_MISMATCH for one from before a restart.
//            RESOURCE_EXHAUSTED / HANDLE_BUDGET when the budget is full, HOST_MEMORY when all memory is, and no
//            value could move (handle_room.cc): none is dropped. A failed entry returns its own error at each use. Every error names the handle.
// Example:   absl::StatusOr<HandleName> name = store->Reserve({.owner = caller, .pipeline = "gpt"});
//            store->Fulfil(name->id, HeldValues({{"logits", logits}}));
class HandleStore {
 public:
  struct Options {
    Epoch epoch{1};
    absl::Duration default_lease = absl::Seconds(60);
    absl::Duration min_lease = absl::Seconds(5);
    absl::Duration max_lease = absl::Hours(1);
    absl::Duration tombstone_time = absl::Minutes(10);  // or the handle's lease, if longer
    int64_t max_tombstones = 100'000;                   // the oldest go first
    HandleBudget::Limits budget = {};
    // Bytes of results on each accelerator, by LibTorch's name of it; one that is not there has no limit.
    std::map<std::string, int64_t> device_bytes = {};
    std::unique_ptr<SpillFolder> spill = {};  // null: what does not fit is refused
    // Where bytes are reserved, with the pool of HandlePool(budget); null: a ledger of its own, which usually only tests
    // want.
    MemoryLedger* memory = nullptr;
    ServerMetrics* metrics = nullptr;  // null: counts go nowhere
  };

  // What a call promises to produce.
  struct Reservation {
    std::string owner = {};
    std::string pipeline = {};
    HandleKind kind = HandleKind::kValue;
    std::string method = {};  // "TrainStep", for people
    bool upload = false;      // charged as an upload until it settles
    int64_t bytes = 0;        // expected; held from now on
    int64_t later_bytes = 0;  // must fit beside them now, but are held only once Hold() says so
    absl::Duration lease = absl::ZeroDuration();
    std::shared_ptr<HandleProducer> producer = {};  // null: the call can't be stopped
  };

  // What an owner has.
  struct Use {
    int64_t handles = 0;
    int64_t bytes = 0;
  };

  struct Counts {
    std::array<int64_t, kHandleStateCount> by_state = {};  // live: the first four
    int64_t bytes = 0;
    int64_t created = 0;
    int64_t released = 0;
    int64_t expired = 0;
    int64_t cancelled = 0;
    int64_t open_graphs = 0;  // PENDING and READY
    int64_t live() const { return by_state[0] + by_state[1] + by_state[2] + by_state[3]; }
  };

  enum class WaitMode { kAny, kAll };
  using HandleAnswer = absl::StatusOr<HandleInfo>;
  using SettledCallback = std::function<void(std::vector<HandleAnswer>)>;  // in order of the names
  using WaitId = uint64_t;                                                 // 0: none

  HandleStore(Options options, Clock* clock, TimerQueue* timers);
  ~HandleStore();

  Epoch epoch() const { return options_.epoch; }
  const Options& options() const { return options_; }
  // The lease that a caller asked for: 0 is the default.
  absl::StatusOr<absl::Duration> CheckedLease(absl::Duration requested) const;

  // --- The producer's side: names come from Reserve(), so nothing here asks who is calling. ---

  absl::StatusOr<HandleName> Reserve(Reservation reservation) ABSL_LOCKS_EXCLUDED(mu_);
  // From now on a PENDING handle holds so many bytes. If they don't fit, it holds what it held, and HANDLE_BUDGET is
  // returned; a handle that is no longer pending returns its error, or HANDLE_RELEASED.
  absl::Status Hold(const HandleName& name, int64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // Gives up a reservation that will not be filled. Callers that have pinned the handle or wait for it get
  // HANDLE_RELEASED.
  void Withdraw(const HandleId& id) ABSL_LOCKS_EXCLUDED(mu_);
  // Makes it READY. If the content is larger than reserved and the budget is full, though others have made room, it
  // becomes FAILED with HANDLE_BUDGET. On a handle that is no longer pending the content is dropped, unless a pin waits
  // for it.
  void Fulfil(const HandleId& id, HandleContent content) ABSL_LOCKS_EXCLUDED(mu_);
  void Fulfil(const HandleId& id, HeldValues values) ABSL_LOCKS_EXCLUDED(mu_);
  void Fail(const HandleId& id, absl::Status error) ABSL_LOCKS_EXCLUDED(mu_);
  void Cancel(const HandleId& id) ABSL_LOCKS_EXCLUDED(mu_);
  // A READY content is of no use any more (a graph that was consumed or became stale): frees it and
  // makes the handle FAILED with `error`.
  void Invalidate(const HandleId& id, absl::Status error) ABSL_LOCKS_EXCLUDED(mu_);

  // --- The consumer's side: `caller` must be the owner, else NOT_FOUND. ---

  absl::StatusOr<HandleInfo> Get(const std::string& caller, const HandleName& name) ABSL_LOCKS_EXCLUDED(mu_);

  // Gives `recipient` a READY handle of values as its own: another handle of the same bytes, with another name and a lease
  // that begins now. What happens to one of the two does not touch the other. The bytes are charged once, to the oldest
  // live one. When that one ends they move to the next, even beyond the limit of its owner: the end of one handle can't
  // fail because of another one. The new handle adds to the number of handles of who shared, not of who was given it.
  // Fails:     HANDLE_KIND; HANDLE_PENDING; the stored error; HANDLE_BUDGET where the caller has too many handles.
  absl::StatusOr<HandleInfo> Share(const std::string& caller, const HandleName& name, const std::string& recipient,
                                   absl::Duration lease) ABSL_LOCKS_EXCLUDED(mu_);

  // Keeps the content for a fetch or as the input of accepted work. PENDING handles may be pinned.
  absl::StatusOr<HandlePin> Pin(const std::string& caller, const HandleName& name) ABSL_LOCKS_EXCLUDED(mu_);

  // Calls back once: when any or all of the handles are no longer PENDING (an unknown one counts as
  // settled), or at the deadline, with the states at that time; possibly before it returns.
  WaitId OnSettled(const std::string& caller, std::vector<HandleName> names, WaitMode mode, int64_t deadline_nanos,
                   SettledCallback callback) ABSL_LOCKS_EXCLUDED(mu_);
  // Forgets a wait; returns whether its callback will now never run.
  bool CancelWait(WaitId wait) ABSL_LOCKS_EXCLUDED(mu_);

  // Calls back once when the pinned contents are all there or failed, whatever their owner did
  // meanwhile; possibly before it returns. Without a deadline: the producers have theirs.
  void OnContents(const std::vector<HandlePin>& pins, std::function<void()> callback) ABSL_LOCKS_EXCLUDED(mu_);

  // Own handles of a pipeline (all if empty) in order of creation, those after `after`; at most
  // `limit`, at least 1.
  HandlePage List(const std::string& caller, const std::string& pipeline, uint64_t after, int limit)
      ABSL_LOCKS_EXCLUDED(mu_);

  // The same of all owners together.
  HandlePage ListAll(const std::string& pipeline, uint64_t after, int limit) ABSL_LOCKS_EXCLUDED(mu_);

  // The expiry becomes max(old, now + lease). A PENDING handle stays as it is.
  absl::StatusOr<HandleInfo> Renew(const std::string& caller, const HandleName& name, absl::Duration lease)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The same for all own handles of a pipeline (all if empty), in order of creation. Others are served in between.
  absl::StatusOr<std::vector<RenewedHandle>> RenewAll(const std::string& caller, const std::string& pipeline,
                                                      absl::Duration lease) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the state afterwards. Releasing twice, or what has expired, is OK.
  absl::StatusOr<HandleInfo> Release(const std::string& caller, const HandleName& name) ABSL_LOCKS_EXCLUDED(mu_);

  // Stops the call behind a PENDING handle. A settled one returns kNotCancellable, a cancelled one
  // kCancelled.
  absl::StatusOr<CancelEffect> RequestCancel(const std::string& caller, const HandleName& name)
      ABSL_LOCKS_EXCLUDED(mu_);

  // --- Everybody's. ---

  // Releases all handles of a pipeline that is deleted.
  void ReleasePipeline(const std::string& pipeline) ABSL_LOCKS_EXCLUDED(mu_);

  Counts TotalCounts() const ABSL_LOCKS_EXCLUDED(mu_);
  Counts CountsOf(const std::string& pipeline) const ABSL_LOCKS_EXCLUDED(mu_);
  // What each owner is charged for, by name: also bytes of a handle that has ended, while they are in use.
  std::map<std::string, Use> UseByOwner() const ABSL_LOCKS_EXCLUDED(mu_);

  // Fails pending handles with UNAVAILABLE / DRAINING, ends every wait, refuses reservations,
  // and waits for the last pin.
  void Close() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  friend class HandlePin;
  struct Aftermath;
  struct Freed;
  using EntryPointer = std::shared_ptr<HandleEntry>;

  // What stays of a handle that is gone.
  struct Tombstone {
    std::string owner;
    std::string pipeline;
    HandleKind kind = HandleKind::kValue;
    HandleState state = HandleState::kReleased;
    int64_t until_nanos = 0;
  };
  static int64_t BytesOf(const Tombstone& tombstone);  // with its places

  // A callback that waits for some of `names`. In waits_ until it is called or cancelled.
  struct Wait {
    std::string caller;
    std::vector<HandleName> names;
    WaitMode mode = WaitMode::kAll;
    std::set<EntryPointer> pending;
    TimerQueue::TimerId timer = TimerQueue::kNoTimer;
    SettledCallback callback;
    std::optional<std::vector<HandleAnswer>> answers = {};  // once it is over, if there was memory for them
  };

  static absl::Status HandleError(absl::StatusCode code, std::string_view reason, std::string_view message,
                                  const HandleName& name);
  // Puts an entry into the maps and counts it as PENDING; on failure it is as if nothing had happened.
  absl::Status Link(const EntryPointer& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The entry has ended: what it was charged for goes to the oldest live share of it. Takes no memory.
  void PassCharge(HandleEntry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The entry holds its content no longer; others may. Takes no memory.
  void LeaveShares(HandleEntry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The live entry, or why there is none.
  absl::StatusOr<EntryPointer> Find(const std::string& caller, const HandleName& name, Aftermath& aftermath)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Adds the first of an owner's entries after `after`, at most `limit`.
  void Collect(const std::map<uint64_t, EntryPointer>& owned, const std::string& pipeline, uint64_t after, size_t limit,
               std::map<uint64_t, EntryPointer>* found) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The first of them as a page.
  HandlePage Page(const std::map<uint64_t, EntryPointer>& found, size_t limit) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  HandleInfo Describe(const HandleEntry& entry) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Unset while it is pending.
  std::optional<absl::Time> ExpireTime(const HandleEntry& entry) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Renews some of a caller's handles, those after `after`; returns where to go on, 0 at the end.
  uint64_t RenewSome(const std::string& caller, const std::string& pipeline, int64_t lease_nanos, uint64_t after,
                     std::vector<RenewedHandle>* renewed) ABSL_LOCKS_EXCLUDED(mu_);
  HandleAnswer Answer(const std::string& caller, const HandleName& name, Aftermath& aftermath)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Settle(const HandleId& id, absl::StatusOr<HandleContent> result, HandleState state) ABSL_LOCKS_EXCLUDED(mu_);
  void SettleEntry(const EntryPointer& entry, absl::StatusOr<HandleContent> result, HandleState state,
                   Aftermath& aftermath) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes a live entry out of the maps; End() leaves a tombstone, too.
  void Unlink(HandleEntry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void End(const EntryPointer& entry, HandleState state, Aftermath& aftermath) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AddTombstone(const HandleEntry& entry, HandleState state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What an entry had that nobody can reach any more. Takes no memory.
  Freed FreeContent(HandleEntry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Changes what an entry is charged for.
  absl::Status Recharge(HandleEntry& entry, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SetState(HandleEntry& entry, HandleState state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void StartLease(const EntryPointer& entry, int64_t expire_nanos) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RenewEntry(const EntryPointer& entry, int64_t lease_nanos) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WakeWaits(HandleEntry& entry, Aftermath& aftermath) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FinishWait(WaitId wait, Aftermath& aftermath) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status MakeAnswers(Wait& wait, Aftermath& aftermath) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Calls back, under no lock.
  void TellWait(Wait& wait) ABSL_LOCKS_EXCLUDED(mu_);
  // Changes the counts of the server and of the entry's pipeline alike, and publishes them. Takes no memory, for what is
  // counted has happened.
  template <typename Change>
  void Count(const HandleEntry& entry, const Change& change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PublishCounts() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnLeaseTimer(const HandleId& id) ABSL_LOCKS_EXCLUDED(mu_);
  void OnDeadline(WaitId wait) ABSL_LOCKS_EXCLUDED(mu_);
  void Unpin(const EntryPointer& entry) ABSL_LOCKS_EXCLUDED(mu_);

  // --- Room: what values that nobody uses hold, where it is needed by others (handle_room.cc).

  // Which values may move, and how much of them must.
  struct Shortage;
  // What came of reserving more bytes on the host for somebody.
  struct Wish {
    absl::Status status = {};
    int64_t bytes = 0;
    std::string owner = {};
  };
  // Runs `take` until it fits, or nothing more can go to files for it.
  absl::Status WithRoom(const std::function<Wish()>& take) ABSL_LOCKS_EXCLUDED(mu_, room_mu_);
  int64_t BytesOf(const std::string& owner) const ABSL_LOCKS_EXCLUDED(mu_);  // on the host
  // The content where there is room for it, which the handle has from then on.
  absl::StatusOr<HandleContent> Place(const HandleId& id, HandleContent content) ABSL_LOCKS_EXCLUDED(mu_, room_mu_);
  // Moves values, the least recently used first. Returns whether any did.
  bool MakeRoom(const Shortage& shortage) ABSL_LOCKS_EXCLUDED(mu_) ABSL_EXCLUSIVE_LOCKS_REQUIRED(room_mu_);
  bool MayMove(const HandleEntry& entry, const Shortage& shortage) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Those that may move, the least recently used first, with their bytes there.
  std::vector<std::pair<EntryPointer, int64_t>> ValuesToMove(const Shortage& shortage) const ABSL_LOCKS_EXCLUDED(mu_);
  // Moves one, if it may still.
  absl::Status Move(const EntryPointer& entry, const Shortage& shortage) ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;
  const std::unique_ptr<MemoryLedger> own_memory_;  // where none was given; outlives the entries
  MemoryLedger* const memory_;
  Clock* const clock_;
  TimerQueue* const timers_;
  DeviceBudget devices_;

  absl::Mutex room_mu_ ABSL_ACQUIRED_BEFORE(mu_);  // one makes room at a time; others look again then
  mutable absl::Mutex mu_;
  std::map<HandleId, EntryPointer> entries_ ABSL_GUARDED_BY(mu_);   // what a name can reach
  std::map<HandleId, EntryPointer> detached_ ABSL_GUARDED_BY(mu_);  // released while pending, yet pinned
  std::map<std::string, std::map<uint64_t, EntryPointer>> owners_ ABSL_GUARDED_BY(mu_);  // entries_ again, by serial
  std::map<HandleId, Tombstone> tombstones_ ABSL_GUARDED_BY(mu_);
  std::deque<HandleId> tombstone_order_ ABSL_GUARDED_BY(mu_);  // oldest first
  MemoryReservation tombstones_held_ ABSL_GUARDED_BY(mu_);
  std::map<WaitId, Wait> waits_ ABSL_GUARDED_BY(mu_);
  HandleBudget budget_ ABSL_GUARDED_BY(mu_);
  Counts total_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::shared_ptr<Counts>> pipelines_ ABSL_GUARDED_BY(mu_);
  uint64_t serial_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t uses_ ABSL_GUARDED_BY(mu_) = 0;
  WaitId last_wait_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t pins_ ABSL_GUARDED_BY(mu_) = 0;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace penstock
