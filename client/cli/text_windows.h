#pragma once

// Training data from bytes of text.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/lib/host_tensor.h"

namespace penstock {

// A usage error of --batch unless a tensor can hold so many rows of so many bytes as INT64.
absl::Status CheckBatch(int64_t rows, int64_t sequence);

// Draws random windows of a text: inputs are bytes, targets the bytes that follow them.
//
// Model:     Window (step, row) begins where a generator keyed by (seed, step, row) says, so a step's batch is the same
//            in every run, whichever steps came before.
// Units:     bytes, as INT64 elements 0 to 255; shapes [rows, sequence].
// Threads:   any method from any thread.
class TextWindows {
 public:
  // A usage error unless the text is longer than a window.
  static absl::StatusOr<TextWindows> Create(std::string text, int64_t sequence, uint64_t seed);

  struct Batch {
    HostTensor inputs;
    HostTensor targets;
  };
  // Rows that CheckBatch() takes.
  Batch BatchOf(int64_t step, int64_t rows) const;

  int64_t sequence() const { return sequence_; }

 private:
  TextWindows(std::string text, int64_t sequence, uint64_t seed)
      : text_(std::move(text)), sequence_(sequence), seed_(seed) {}

  std::string text_;
  int64_t sequence_;
  uint64_t seed_;
};

// Bytes as a tensor [1, n] of INT64.
HostTensor BytesAsTensor(std::string name, std::string_view bytes);

}  // namespace penstock
