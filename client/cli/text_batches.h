#pragma once

// Mini-batches of text, for models of bytes.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "client/cli/batch.h"
#include "penstock/v1/pipeline.pb.h"

namespace penstock {

// Each row is a random window of the text: TextWindows.
//
// Fails: as AsByteModel() for other pipelines; usage errors of --batch, --sequence and --text.
absl::StatusOr<BatchSource> TextBatches(const v1::Pipeline& pipeline, std::string text, int64_t rows, int64_t sequence,
                                        uint64_t seed);

}  // namespace penstock
