#pragma once

// What one thread has done of late: fixed records in a ring that is always on.

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

namespace penstock {

// What a record tells.
enum class TraceKind : uint8_t {
  kState,           // the lane was in a state; `detail` is a StageState
  kForward,         // an action of a stage, from here on
  kBackward,        // a fused backward
  kBackwardInput,   // the half for the input's gradient
  kBackwardWeight,  // the half for the weights' gradients
  kRecompute,
  kOptimizer,  // one part of it: shared gradients, norms, or the update
  kSendActivation,
  kSendGradient,
  kReceiveActivation,
  kReceiveGradient,
  kRun,  // the lane's part of a run, from its list to its last action; `detail` is a TraceRun
};

constexpr bool IsSend(TraceKind kind) { return kind == TraceKind::kSendActivation || kind == TraceKind::kSendGradient; }
constexpr bool IsReceive(TraceKind kind) {
  return kind == TraceKind::kReceiveActivation || kind == TraceKind::kReceiveGradient;
}

// What a run was for.
enum class TraceRun : uint8_t { kTrainStep, kContribution, kForward, kBackward, kOptimizerStep, kInference };

// One span of time. Fields that a kind does not have keep their defaults.
struct TraceRecord {
  int64_t begin_nanos = 0;  // monotonic
  int64_t end_nanos = 0;
  TraceKind kind = TraceKind::kState;
  uint8_t detail = 0;  // as the kind says
  bool inference = false;
  bool failed = false;  // of a run: an error or a cancellation has ended it
  int16_t lane = 0;
  int16_t peer = -1;         // of skip values on their way: the stage at the other end
  int32_t stage = -1;        // the chunk, by its number in model order
  int32_t micro_batch = -1;  // of a run: how many it has
  int64_t step = 0;          // the optimizer step that the run belongs to, from 1; of inference, that of its weights
  int64_t run = 0;           // unique in the pipeline; the same in all records of one run
  uint64_t correlation = 0;  // of a message: the same where it was sent and where it was received; else 0

  bool operator==(const TraceRecord&) const = default;
};

// A ring of records with one writer, read by anyone without stopping it.
//
// Model:     Record n stands in slot n modulo the capacity, behind a sequence number that is odd while the writer is at
//            it and tells afterwards which record it is. A reader that finds another number than it looks for, before
//            or after its copy, knows that the record is gone: the writer overwrites the oldest and waits for nobody.
//            Every word is atomic; stores of the words release and loads acquire, so a reader that sees one new word
//            sees the odd number too. On x86 those are plain moves.
// Owns:      its memory, one cache line per record; pages are taken when they are first written.
// Threads:   Record() from one thread at a time, ordered by the caller if it is not always the same; the rest from any.
// Units:     records. The capacity is rounded up to a power of two, at least 16; a ring of 0 keeps and counts nothing.
class TraceRing {
 public:
  static constexpr int64_t kDefaultEvents = 65'536;

  explicit TraceRing(int64_t events = kDefaultEvents);

  void Record(const TraceRecord& record) {
    if (words_ == nullptr) return;
    const uint64_t number = written_.load(std::memory_order_relaxed);
    uint64_t* slot = &words_[(number & mask_) * kWords];
    Word(slot[0]).store(2 * number + 1, std::memory_order_relaxed);
    const auto put = [&](int i, uint64_t value) { Word(slot[i]).store(value, std::memory_order_release); };
    put(1, static_cast<uint64_t>(record.begin_nanos));
    put(2, static_cast<uint64_t>(record.end_nanos));
    put(3, static_cast<uint64_t>(record.kind) | uint64_t{record.detail} << 8 | uint64_t{record.inference} << 16 |
               uint64_t{record.failed} << 17 | uint64_t{static_cast<uint16_t>(record.lane)} << 32 |
               uint64_t{static_cast<uint16_t>(record.peer)} << 48);
    put(4, uint64_t{static_cast<uint32_t>(record.stage)} << 32 | static_cast<uint32_t>(record.micro_batch));
    put(5, static_cast<uint64_t>(record.step));
    put(6, static_cast<uint64_t>(record.run));
    put(7, record.correlation);
    Word(slot[0]).store(2 * number + 2, std::memory_order_release);
    written_.store(number + 1, std::memory_order_release);
  }

  int64_t capacity() const { return words_ == nullptr ? 0 : static_cast<int64_t>(mask_) + 1; }
  // Records since the beginning; the number of the next one.
  uint64_t written() const { return written_.load(std::memory_order_acquire); }
  // How many of them have been overwritten.
  uint64_t dropped() const;

  // Appends the records with numbers in [from, to) that are still there: without a gap, up to the last. Returns how
  // many at the beginning were gone.
  uint64_t Read(uint64_t from, uint64_t to, std::vector<TraceRecord>* out) const;

 private:
  static constexpr int kWords = 8;
  struct Free {
    void operator()(uint64_t* words) const { std::free(words); }
  };
  static std::atomic_ref<uint64_t> Word(uint64_t& word) { return std::atomic_ref<uint64_t>(word); }
  // Whether record `number` was there, whole.
  bool ReadOne(uint64_t number, TraceRecord* record) const;

  const uint64_t mask_;
  const std::unique_ptr<uint64_t[], Free> words_;  // null: a ring of 0
  std::atomic<uint64_t> written_ = 0;
};

// The rings of one lane.
struct LaneTrace {
  explicit LaneTrace(int64_t events) : actions(events), states(events) {}

  TraceRing actions;  // all kinds but kState; written by the thread of the lane's device
  TraceRing states;   // kState; written by the lane's StateClock, under its lock
};

// A number that both ends of a message share. `stage` is the receiver, `peer` the sender of skip values or -1.
uint64_t MessageCorrelation(int64_t run, bool gradient, int stage, int micro_batch, int peer);

}  // namespace penstock
