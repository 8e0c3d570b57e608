#pragma once

// What may follow what in the training of one pipeline, as a value without locks.

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace penstock {

// The calls that the state machine tells apart.
enum class TrainingCall {
  kContribution,
  kApply,
  kDiscard,
  kDiscardForced,
  kExpire,  // the accumulation's lease is over
  kTrainStep,
  kForward,
  kSave,
  kRestore,
  kRestoreForced,
  kDeleteCheckpoint,
  kRead,
  kReadGradients,
  kUpdate  // of the optimizer's settings, or of the engine
};

// Whether the call only forgets gradients.
bool Discards(TrainingCall call);

// One program of a caller: what holds gradients. Two programs that call themselves the same differ by their sessions.
struct TrainingParty {
  std::string caller = {};
  std::string session = {};
  bool operator==(const TrainingParty&) const = default;
};

// CLEAN, or ACCUMULATING gradients for one party. (Stepping and restoring are calls that run; others queue.)
//
// Model:     a party adds to its own accumulation only. It ends by a step or DISCARD of that party; by DISCARD of
//            another session of the same caller, which a restarted program is; by force; and by the end of its lease. A
//            party whose gradients others or the lease have ended is told so: until it discards, for a day, it can't go
//            on as if they were there. While too many such losses are kept, of one caller its share (CallerShare), no
//            accumulation begins. Every session of the holder's caller may read the gradients.
// Fails:     Check(): FAILED_PRECONDITION / ACCUMULATION_EMPTY, ACCUMULATION_LOST; ACCUMULATION_OPEN and
//            ACCUMULATION_HELD, which name `holder`, `session` and `age_seconds`. RESOURCE_EXHAUSTED / CALLER_QUOTA.
// Units:     nanoseconds of one monotonic clock.
class TrainingState {
 public:
  // May `party` make this call now?
  absl::Status Check(TrainingCall call, const TrainingParty& party, int64_t now) const;
  // The call has been made, and has succeeded. A contribution's `lease` counts from now; 0: none.
  void Apply(TrainingCall call, const TrainingParty& party, int64_t now, absl::Duration lease = absl::ZeroDuration());
  // What the engine says after a call of `party` that may have failed: without gradients the state is CLEAN; gradients
  // that nobody held are this party's.
  void Reconcile(bool accumulating, const TrainingParty& party, int64_t now);

  // All of it, without a clock's readings, for a checkpoint that another life of the process goes on from. There ages
  // count on from what they were, and a lease begins anew, as it does where the contribution is made again.
  struct Saved {
    struct Loss {
      TrainingParty party;
      std::string cause;
      int64_t age_nanos = 0;
      bool operator==(const Loss&) const = default;
    };
    std::optional<TrainingParty> holder = {};
    int64_t age_nanos = 0;    // of the accumulation
    int64_t lease_nanos = 0;  // 0: none
    std::vector<Loss> losses = {};

    bool none() const { return !holder.has_value() && losses.empty(); }
    bool operator==(const Saved&) const = default;
  };
  Saved Save(int64_t now) const;
  static TrainingState Load(const Saved& saved, int64_t now);

  bool accumulating() const { return holder_.has_value(); }
  bool has_losses() const { return !losses_.empty(); }                    // that some party must be told of
  const std::optional<TrainingParty>& holder() const { return holder_; }  // absent when clean
  // When the accumulation's lease ends; absent without one.
  std::optional<int64_t> expires_at() const { return expires_at_; }

 private:
  struct Loss {
    TrainingParty party;
    std::string cause;
    int64_t at = 0;
  };
  static absl::Status Lost(const Loss& loss);
  absl::Status Held(std::string_view reason, std::string_view what_to_do, int64_t now) const;
  const Loss* LossOf(const TrainingParty& party) const;
  // Whether a loss of this caller could be kept.
  absl::Status CheckRoom(const std::string& caller, int64_t now) const;
  void Lose(std::string cause, int64_t now);
  void BeginLease(int64_t nanos, int64_t now);
  void Clear();

  std::optional<TrainingParty> holder_;
  int64_t since_ = 0;
  int64_t lease_nanos_ = 0;            // of the last contribution
  std::optional<int64_t> expires_at_;  // by that
  std::deque<Loss> losses_;            // the newest last
};

}  // namespace penstock
