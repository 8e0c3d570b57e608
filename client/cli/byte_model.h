#pragma once

// A pipeline seen as a model of bytes: positions in, scores of the next byte out.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "penstock/v1/pipeline.pb.h"

namespace penstock {

// The names and sizes that commands on text need.
struct ByteModel {
  std::string pipeline;  // pipelines/{pipeline}
  std::string input;     // INT64 [rows, sequence]
  std::string output;    // FP32 [rows, sequence, 256]
  std::string target;
  std::string loss;      // to send with each step; empty: the pipeline has its own
  int64_t sequence = 0;  // bytes of a row
};

// Reads them from a pipeline. `sequence` 0 means the longest that the pipeline takes: its signature's, else its model's
// option of that name.
//
// Fails: INVALID_ARGUMENT / TENSOR_SIGNATURE for another kind of model; a usage error for a sequence that does not fit
//        or is not known.
absl::StatusOr<ByteModel> AsByteModel(const v1::Pipeline& pipeline, int64_t sequence);

}  // namespace penstock
