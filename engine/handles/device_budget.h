#pragma once

// How much of the memory of accelerators results may take.

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/tensor/held_values.h"

namespace penstock {

class ServerMetrics;

// Counts the bytes of results that stay on accelerators.
//
// Model:     a sum per device, of values that are there, whoever refers to them: each counts until its last reference goes.
//            It refuses nothing: who adds to it makes room first (HandleStore). Values that run at the same time may be
//            added above a limit for a moment.
// Threads:   any method from any thread; values may go on any thread. It may go before they do.
// Units:     bytes.
class DeviceBudget {
 public:
  // `limits`: by LibTorch's name of the device, cuda:1; one that is not there has none. `metrics` may be null.
  DeviceBudget(std::map<std::string, int64_t> limits, ServerMetrics* metrics);

  // The accelerator that the values are on, and their bytes there; of several, that of the first. "": none.
  struct Place {
    std::string device = {};
    int64_t bytes = 0;
  };
  static Place PlaceOf(const HeldValues& held);

  // How many bytes must go from there before these fit; 0: they do. Negative: they never will.
  int64_t Excess(const Place& place) const;
  // The values, counted from now on.
  std::shared_ptr<const HeldValues> Count(HeldValues held);
  int64_t BytesOn(const std::string& device) const;

 private:
  struct Sums;
  struct Counted;

  const std::map<std::string, int64_t> limits_;
  const std::shared_ptr<Sums> sums_;
};

}  // namespace penstock
