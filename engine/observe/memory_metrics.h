#pragma once

#include "engine/ledger/memory_class.h"
#include "engine/observe/histogram.h"
#include "engine/observe/metric_labels.h"

namespace penstock {

// What a daemon counts of its memory ledger.
//
// Threads:   cells from any thread.
struct MemoryMetrics {
  CellsBy<MemoryClass, GaugeCell, kMemoryClasses> reserved;   // bytes, together at most `limit`
  CellsBy<MemoryClass, CounterCell, kMemoryClasses> refused;  // reservations
  GaugeCell limit;
  GaugeCell process;  // bytes that the process had taken before it served anything, but for what its allocator kept
};

}  // namespace penstock
