#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace penstock {

// What memory is held for.
enum class MemoryClass {
  kMessages,   // messages under way: as received, and as parsed
  kInputs,     // tensors that came with calls, until the work has ended
  kQueues,     // records of calls that wait or run
  kHandles,    // results
  kSnapshots,  // copies of parameters: read, saved, loaded
  kTraces,     // rings of records, and captures on their way
  kUploads,    // tensors that are on their way into a handle
  kModels,     // programs: while they are read and checked, and until their pipeline stands
  kPipelines,  // weights, gradients, optimizer state, activations, as planned; and what plans are tried with
  kAnswers,    // to calls that may be asked again, and what stays of handles that are gone
};
inline constexpr size_t kMemoryClasses = 10;
inline constexpr std::array<std::string_view, kMemoryClasses> kMemoryClassNames = {
    "messages", "inputs", "queues", "handles", "snapshots", "traces", "uploads", "models", "pipelines", "answers"};

inline std::string_view NameOf(MemoryClass kind) { return kMemoryClassNames[static_cast<size_t>(kind)]; }

}  // namespace penstock
