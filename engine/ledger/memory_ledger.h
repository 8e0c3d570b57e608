#pragma once

// How much of the host's memory is reserved, for what, and by whom.

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/ledger/memory_class.h"

namespace penstock {

class MemoryReservation;

// To what a reservation is charged.
struct MemoryHolder {
  MemoryClass kind = MemoryClass::kPipelines;
  std::string identity = {};  // who caused it; empty: nobody in particular
  std::string pipeline = {};  // empty: of no pipeline, or not known yet

  auto operator<=>(const MemoryHolder&) const = default;
};

// A bound of some classes of memory together. What belongs to no pool is bounded by the ledger's limit alone.
struct MemoryPool {
  std::vector<MemoryClass> classes = {};
  std::string flag = {};               // that sets the bound: "handle-bytes"
  std::string identity_flag = {};      // that sets the bound of one identity
  std::string reason = "HOST_MEMORY";  // of a refusal by this bound
  int64_t limit_bytes = 0;
  // Of one identity. 0: CallerShare() of the limit.
  int64_t identity_bytes = 0;
  int64_t kept_bytes = 0;  // that no other class may take, whether they are used or not
};

// One bound for all that large holders of a process take together: each reserves before it allocates.
//
// Model:     sums of reservations, by class and by holder, that never pass the limit or that of a pool. A reservation is
//            what its holder may take at most, which need not be what it holds at present.
// Owns:      nothing; it outlives its reservations.
// Threads:   any method from any thread. `may_see` is called under no lock of the ledger, `changed` under it.
// Units:     bytes.
// Fails:     RESOURCE_EXHAUSTED as Refusal() says, with the sums as they were. Giving back never fails, and takes no
//            memory.
// Example:   PENSTOCK_ASSIGN_OR_RETURN(MemoryReservation held, ledger.Take({MemoryClass::kModels, caller}, bytes));
class MemoryLedger {
 public:
  struct Options {
    int64_t limit_bytes = 0;
    std::vector<MemoryPool> pools = {};  // of classes that differ
    // Whether an identity may be told of a holder; empty: everybody of all.
    std::function<bool(const std::string& asking, const MemoryHolder& holder)> may_see = {};
    // The sum of a class, each time it changes; empty: nobody listens.
    std::function<void(MemoryClass kind, int64_t bytes)> changed = {};
    std::function<void(MemoryClass kind)> refused = {};
  };

  explicit MemoryLedger(Options options);
  explicit MemoryLedger(int64_t limit_bytes) : MemoryLedger(Options{.limit_bytes = limit_bytes}) {}
  ~MemoryLedger();

  absl::StatusOr<MemoryReservation> Take(MemoryHolder holder, int64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // For what must not fail: it is counted, even beyond the limits.
  MemoryReservation TakeAnyway(MemoryHolder holder, int64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);

  struct ClassUse {
    int64_t bytes = 0;
    int64_t peak_bytes = 0;   // the largest so far
    int64_t limit_bytes = 0;  // of its pool; 0: the ledger's
    int64_t kept_bytes = 0;   // of its pool
    int64_t reservations = 0;
    int64_t refusals = 0;
  };
  struct Statement {
    int64_t limit_bytes = 0;
    int64_t bytes = 0;
    std::array<ClassUse, kMemoryClasses> classes = {};
    std::vector<std::pair<MemoryHolder, int64_t>> holders = {};  // those that hold any, the largest first
  };
  Statement State() const ABSL_LOCKS_EXCLUDED(mu_);
  int64_t limit_bytes() const { return options_.limit_bytes; }
  int64_t bytes() const ABSL_LOCKS_EXCLUDED(mu_);
  int64_t BytesOf(MemoryClass kind) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  friend class MemoryReservation;
  struct Owned {
    std::array<int64_t, kMemoryClasses> bytes = {};
    int64_t accounts = 0;
  };
  struct Account {
    std::map<std::string, Owned>::iterator owned;
    int64_t bytes = 0;
    int64_t reservations = 0;
  };
  using AccountEntry = std::map<MemoryHolder, Account>::iterator;
  struct Refused;

  static constexpr size_t kNoPool = kMemoryClasses;

  const MemoryPool* PoolOf(MemoryClass kind) const;
  int64_t UsedOf(const MemoryPool& pool) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  int64_t OwnedOf(const Owned& owned, const MemoryPool& pool) const;
  // The account of a holder, with one more reservation.
  AccountEntry Open(MemoryHolder holder) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Close(AccountEntry account) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether there is room; fills in why not.
  bool Fits(const AccountEntry& account, int64_t more, Refused* refused) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Add(AccountEntry account, int64_t more) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Grow(AccountEntry account, int64_t more) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Refusal(const Refused& refused) const;  // memory_refusal.cc

  const Options options_;
  std::array<size_t, kMemoryClasses> pools_ = {};  // index into options_.pools, by class

  mutable absl::Mutex mu_;
  std::map<MemoryHolder, Account> accounts_ ABSL_GUARDED_BY(mu_);  // with a reservation
  std::map<std::string, Owned> identities_ ABSL_GUARDED_BY(mu_);   // with an account
  std::array<ClassUse, kMemoryClasses> classes_ ABSL_GUARDED_BY(mu_) = {};
  int64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

// A part of a ledger's memory, which is given back when it goes. Moves.
//
// Threads:   one at a time; those of one ledger are independent.
class MemoryReservation {
 public:
  MemoryReservation() = default;  // of no ledger: nothing is counted, and everything fits
  MemoryReservation(MemoryReservation&& other) noexcept;
  MemoryReservation& operator=(MemoryReservation&& other) noexcept;
  ~MemoryReservation() { Release(); }

  int64_t bytes() const { return bytes_; }
  // Fails: as MemoryLedger, with what was held before unchanged. To less it never fails.
  absl::Status Resize(int64_t bytes);
  // The same for what must not fail: it is counted, even beyond the limits.
  void ResizeAnyway(int64_t bytes);
  // To so many bytes, if it is more.
  void ShrinkTo(int64_t bytes);
  // From now on it is of another class. Within a pool that never fails.
  absl::Status Become(MemoryClass kind);
  // All of it belongs to another reservation of the same ledger and class, whoever that one is charged to: at no time is
  // it counted twice or not at all. Takes no memory, and does not look at the limits.
  void GiveTo(MemoryReservation& other);
  void Release();

 private:
  friend class MemoryLedger;
  MemoryReservation(MemoryLedger* ledger, MemoryLedger::AccountEntry account, int64_t bytes)
      : ledger_(ledger), account_(account), bytes_(bytes) {}

  MemoryLedger* ledger_ = nullptr;
  MemoryLedger::AccountEntry account_ = {};
  int64_t bytes_ = 0;
};

// The same where there may be no ledger: null counts nothing.
absl::StatusOr<MemoryReservation> TakeMemory(MemoryLedger* ledger, MemoryHolder holder, int64_t bytes);
MemoryReservation TakeMemoryAnyway(MemoryLedger* ledger, MemoryHolder holder, int64_t bytes);

// What all large holders of this process may reserve by default: nine tenths of what it may use (MemoryBoundBytes),
// less `process_bytes`, which it has taken by itself.
int64_t DefaultMemoryLimit(int64_t bound_bytes, int64_t process_bytes);

}  // namespace penstock
