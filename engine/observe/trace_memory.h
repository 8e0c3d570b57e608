#pragma once

#include <cstdint>

#include "engine/observe/metrics.h"

namespace penstock {

// Bytes that the trace rings of all lanes take, once they have been written all over.
int64_t TraceRingBytes(const PipelineMetrics& metrics);

// Records that all lanes have written since they were made.
int64_t TraceRecordsWritten(const PipelineMetrics& metrics);

}  // namespace penstock
