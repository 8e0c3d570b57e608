#pragma once

// The places at which state changes or is about to change, by name, so that tests can break each of them.

#include <array>
#include <string_view>

namespace penstock {

// The parts of an optimizer step on one stage, in their order; the decision, which belongs to all stages, and the
// import of state. A fault at kUpdate comes before the weights change, at kStatistics and kUpdated after.
enum class FaultPoint { kShareTies, kSumTies, kKeepForUndo, kDecide, kUpdate, kStatistics, kUpdated, kUndo, kImport };
inline constexpr std::array<std::string_view, 9> kFaultPointNames = {
    "share_ties", "sum_ties", "keep_for_undo", "decide", "update", "statistics", "updated", "undo", "import"};

inline std::string_view ToString(FaultPoint point) { return kFaultPointNames[static_cast<size_t>(point)]; }

}  // namespace penstock
