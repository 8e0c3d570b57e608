#pragma once

#include <cstdint>
#include <vector>

#include "engine/plan/lane_memory.h"
#include "engine/plan/profile.h"
#include "engine/schedule/virtual_time.h"

namespace penstock {

// Says what any stage would cost, at one size of micro-batch.
//
// Model:     the layers' costs summed up from the first, so that a stage's are a difference of two sums.
// Threads:   constant after construction.
// Units:     one tick is a nanosecond; bytes of one micro-batch.
class LayerCosts {
 public:
  explicit LayerCosts(std::vector<LayerProfile> layers);

  const std::vector<LayerProfile>& layers() const { return layers_; }
  // Whether the halves of backwards were measured.
  bool halves() const { return sums_.back().input_gradient > 0 || sums_.back().weight_gradient > 0; }

  // Of a stage that holds layers [begin, end).
  StageCosts Of(int begin, int end) const;
  StageBytes BytesOf(int begin, int end, double optimizer_ratio) const;

 private:
  // Seconds and bytes of the layers before one.
  struct Sum {
    double forward = 0;
    double backward = 0;
    double input_gradient = 0;
    double weight_gradient = 0;
    int64_t parameters = 0;
    int64_t stash = 0;
  };

  std::vector<LayerProfile> layers_;
  std::vector<Sum> sums_;
};

}  // namespace penstock
