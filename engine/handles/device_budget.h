#pragma once

// How much of the memory of accelerators results may take.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/tensor/held_values.h"

namespace penstock {

class ServerMetrics;

// Counts the bytes of results that stay on accelerators.
//
// Model:     a sum per device, of values that are there: each counts until its last reference goes. Tensors that somebody
//            has taken out of it, as a graph does that waits for its Backward, are not counted.
// Threads:   any method from any thread; values may go on any thread. It may go before they do.
// Units:     bytes.
class DeviceBudget {
 public:
  // `limits`: by LibTorch's name of the device, cuda:1; one that is not there has none. `metrics` may be null.
  DeviceBudget(std::map<std::string, int64_t> limits, ServerMetrics* metrics);
  ~DeviceBudget();  // values that outlive it are in no metric any more

  struct Place {
    std::string device = {};
    int64_t bytes = 0;
  };
  // The accelerators that the values are on, and their bytes there; none where all are on the host.
  static std::vector<Place> PlacesOf(const HeldValues& held);

  // The values, counted from now on; null where they don't fit.
  std::shared_ptr<const HeldValues> Count(const HeldValues& held, const std::vector<Place>& places);
  // How many bytes must go from where before these fit; nothing: they do.
  std::optional<Place> Excess(const std::vector<Place>& places) const;
  int64_t BytesOn(const std::string& device) const;

 private:
  struct Sums;
  struct Counted;

  const std::map<std::string, int64_t> limits_;
  const std::shared_ptr<Sums> sums_;
};

}  // namespace penstock
