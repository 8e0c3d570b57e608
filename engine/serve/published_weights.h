#pragma once

// What inference is answered from where it is not the live weights.

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/serve/checkpoint_pins.h"
#include "engine/serve/made_engine.h"

namespace penstock {

// The version of the weights that training changes. Published ones have later numbers, each its own.
inline constexpr int64_t kLiveVersion = 1;

// What is published of a pipeline.
struct Publication {
  std::string checkpoint = {};            // empty: nothing, inference sees the live weights
  int64_t version = kLiveVersion;         // the last that was given, also where nothing is published any more
  int64_t step = 0;                       // of the checkpoint
  absl::Time time = {};                   // when it was published
  absl::Status error = absl::OkStatus();  // not OK: it can't be answered from, since a restart

  bool any() const { return !checkpoint.empty(); }
};

// The weights that one inference runs on. They stay for as long as somebody holds this.
struct InferenceWeights {
  Pipeline* pipeline = nullptr;
  int64_t version = 0;
};
using WeightsPointer = std::shared_ptr<const InferenceWeights>;  // null: the live ones

// The published weights of a pipeline, and those before them while inference runs on them.
//
// Model:     an inference takes its weights when it is accepted, and keeps them until it ends: it never sees others, and
//            no publication makes it wait or fail. Weights that were replaced are destroyed when the last one has ended.
// Owns:      the engines, with the memory that they hold and the pins of their checkpoints.
// Threads:   any method from any thread. DestroyUnused() and Close() wait for runs whose callbacks return: from no thread of
//            an engine. `unused` is called on whatever thread lets go of the last hold, which may be one of theirs.
// Lifecycle: Close() when no inference runs; what is still held afterwards must not be used.
// Fails:     NOT_FOUND / MODEL_NOT_FOUND for a version that is none of the two; a publication's error.
class PublishedWeights {
 public:
  // `unused`: told that DestroyUnused() has something to do; must not block. May be null.
  explicit PublishedWeights(std::function<void()> unused) : engines_(std::make_shared<Engines>(std::move(unused))) {}
  ~PublishedWeights() { Close(); }

 private:
  struct Entry {
    MadeEngine engine;  // without a pipeline where nothing is published, and where there is an error
    Publication publication;
    CheckpointPins::Hold pin;
    int64_t holds = 0;
  };

 public:
  // What is to be published, with all that takes memory.
  using Prepared = std::list<Entry>;
  static Prepared Prepare(Publication publication, MadeEngine engine, CheckpointPins::Hold pin);
  // From now on inference that is accepted sees it. Takes no memory, and destroys nothing.
  void Publish(Prepared next) noexcept;

  // Empty: what is published, or else the live weights; else the number of a version.
  absl::StatusOr<WeightsPointer> Select(std::string_view version) const;
  absl::Status Check(std::string_view version) const;       // whether it is there
  absl::Status CheckReady(std::string_view version) const;  // and can be answered from
  Publication now() const;

  void DestroyUnused();
  void Close();

 private:
  struct Engines {
    explicit Engines(std::function<void()> unused) : unused(std::move(unused)) {}
    const std::function<void()> unused;
    mutable absl::Mutex mu;
    std::list<Entry> entries ABSL_GUARDED_BY(mu);  // the last one is published; those before it run out
  };
  // Fails: MODEL_NOT_FOUND. Null: the live weights.
  static absl::StatusOr<Entry*> Find(Engines& engines, std::string_view version)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(engines.mu);
  static void LetGo(Engines& engines, const Entry* entry) ABSL_LOCKS_EXCLUDED(engines.mu);

  const std::shared_ptr<Engines> engines_;
};

}  // namespace penstock
