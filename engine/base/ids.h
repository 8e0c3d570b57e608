#pragma once

// Strong ids: an index of one kind can't be passed for another. They compare, hash and print; they do not add.

#include <compare>
#include <cstdint>
#include <ostream>
#include <string>

namespace penstock {

// Names one kind of thing by an integer. `Tag` only distinguishes the kinds.
//
// Threads:   a plain value.
// Units:     as the alias says; without a value it is 0.
// Example:   void Begin(LaneIndex lane, StageIndex stage);
//            Begin(LaneIndex(1), StageIndex(3));  // the other way round it does not compile
template <typename Tag, typename Integer = int32_t>
class StrongId {
 public:
  constexpr StrongId() = default;
  constexpr explicit StrongId(Integer value) : value_(value) {}

  constexpr Integer value() const { return value_; }
  constexpr auto operator<=>(const StrongId&) const = default;  // NOLINT(modernize-use-nullptr): not ours

  template <typename H>
  friend H AbslHashValue(H state, StrongId id) {
    return H::combine(std::move(state), id.value_);
  }
  friend std::ostream& operator<<(std::ostream& out, StrongId id) { return out << id.value_; }
  friend std::string ToString(StrongId id) { return std::to_string(id.value_); }

 private:
  Integer value_ = 0;
};

using StageIndex = StrongId<struct StageTag>;            // 0 is the stage that holds the first layer
using LaneIndex = StrongId<struct LaneTag>;              // a stage worker on one device; chunks share one
using Rank = StrongId<struct RankTag>;                   // a process of a pipeline; 0 leads
using MicroBatchIndex = StrongId<struct MicroBatchTag>;  // runs on through all contributions of a step
using LayerIndex = StrongId<struct LayerTag>;            // position in the whole model
using StepId = StrongId<struct StepTag, int64_t>;        // the number of finished optimizer steps before it
using Epoch = StrongId<struct EpochTag, uint32_t>;       // raised at each start of the daemon

}  // namespace penstock
