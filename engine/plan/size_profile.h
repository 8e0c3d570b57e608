#pragma once

// What layers cost by the size of a micro-batch. Small micro-batches are dear where a layer has a fixed cost: the
// planner must know that before it cuts a mini-batch into many.

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/plan/profile.h"

namespace penstock {

// Measurements at a few sizes.
//
// Model:     by rows of a micro-batch. Between two measured sizes a straight line: a fixed part, and one per row.
//            Beyond the last one the line goes on, but never faster than in proportion; below the first one in the same
//            way.
// Units:     as LayerProfile.
class SizeProfile {
 public:
  SizeProfile() = default;
  // The same costs for every size.
  explicit SizeProfile(std::vector<LayerProfile> profile) { measured_[1] = std::move(profile); }

  void Add(int64_t rows, std::vector<LayerProfile> profile) { measured_[rows] = std::move(profile); }
  // Takes the only measurement for so many rows too, times and bytes in proportion: there was no time to measure them.
  void Extend(int64_t rows);
  // Of micro-batches of so many rows. There is at least one measurement.
  std::vector<LayerProfile> At(int64_t rows) const;
  std::vector<int64_t> rows() const;  // that were measured, ascending
  // Whether the layers could be measured at all.
  bool measured() const;

 private:
  std::map<int64_t, std::vector<LayerProfile>> measured_;
};

// At which sizes to measure for micro-batches of `smallest` to `largest` rows: both, and the geometric mean if they are
// far apart, for caches bend the line.
std::vector<int64_t> SizesToMeasure(int64_t smallest, int64_t largest);

}  // namespace penstock
