#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/filling/inference_order.h"

namespace penstock {

// One inference call at the gate; the same object through all of its restarts.
//
// Threads:   Start() and GiveWay() from any thread, also both at once; without the gate's lock.
class GateVisit {
 public:
  explicit GateVisit(InferenceOrder order) : order(order) {}
  virtual ~GateVisit() = default;

  // It may run now.
  virtual void Start() = 0;
  // While it is open: the weights want to change. It leaves soon, unless it must finish. May come before Start().
  virtual void GiveWay() = 0;

  const InferenceOrder order;
};

// Keeps the weights still while inference runs are open, and keeps inference out while they change.
//
// Model:     the open runs, at most one writer, and a queue of runs that came after the writer asked. The writer does
//            not wait for inference to finish: open runs are asked to give way, leave after the action that they are
//            in, and come again. Whether a run gives way or must finish is its own decision.
// Threads:   any method from any thread. Visits start, and `granted` runs, on the thread whose call let them go.
// Lifecycle: Enter() ... Leave() for each run; RequestExclusive() ... ReleaseExclusive() for each change.
// Fails:     Enter() and RequestExclusive() throw std::bad_alloc before anything has happened; the others take no
//            memory.
class WeightsGate {
 public:
  using Visit = std::shared_ptr<GateVisit>;

  // Starts it now, or when the writer has finished, in their order.
  void Enter(Visit visit);
  void Leave(const Visit& visit);
  // Leaves to come again: waits for the writer, if there is one, in its old place.
  void Reenter(const Visit& visit);

  // Asks open runs to give way and runs `granted` as soon as none is open. New ones wait from now on. At most one
  // writer at a time.
  void RequestExclusive(std::function<void()> granted);
  void ReleaseExclusive();

 private:
  struct Earlier {
    bool operator()(const Visit& a, const Visit& b) const { return a->order < b->order; }
  };
  using Row = std::set<Visit, Earlier>;

  absl::Mutex mu_;
  Row open_ ABSL_GUARDED_BY(mu_);
  Row queue_ ABSL_GUARDED_BY(mu_);
  bool writer_ ABSL_GUARDED_BY(mu_) = false;            // asked or granted
  std::function<void()> granted_ ABSL_GUARDED_BY(mu_);  // not yet granted
};

}  // namespace penstock
