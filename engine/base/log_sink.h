#pragma once

// Where log lines go. Apart from log.h, because only a daemon needs it.

#include <cstdint>

#include "absl/time/time.h"
#include "engine/base/log_writer.h"

namespace penstock {

// Starts a thread that writes the lines (LogWriter), so that no caller of Log() waits for the reader of stderr; what
// does not fit is dropped. What was logged before a crash is still written, if it can be within a second. Once, after
// ConfigureLog(). Without it Log() writes by itself.
void StartLogWriter();

// Waits until the lines that were logged before are written, or so long; returns whether they are. Before the process
// ends.
bool FlushLog(absl::Duration patience);

// Lines that were not written since the start.
int64_t DroppedLogLines(LogDrop cause);

}  // namespace penstock
