#pragma once

// A mini-batch in pieces: scatter along dimension 0, gather by joining the pieces again.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/tensor/named_tensors.h"

namespace penstock {

// The rows of each piece when `rows` are split for `asked` micro-batches: all hold ceil(rows / asked) but the last, which
// holds the rest. So there may be fewer pieces than asked: 6 rows in 4 make 2, 2, 2. No rows make `asked` empty pieces.
std::vector<int64_t> MicrobatchRows(int64_t rows, int asked);

// The rows that all tensors have in common. `field` names the tensors in errors: inputs[tokens].
//
// Fails:     INVALID_ARGUMENT / TENSOR_SIGNATURE: no tensor, a scalar, or unequal rows.
absl::StatusOr<int64_t> CommonRows(const NamedTensors& tensors, std::string_view field);

// Splits every tensor alike. Element i of the result holds the views that are micro-batch i, in the order of `tensors`.
//
// Fails:     as CommonRows; FIELD_INVALID naming micro_batches if `asked` is below 1.
absl::StatusOr<std::vector<Tensors>> Scatter(const NamedTensors& tensors, int asked, std::string_view field);

// Joins the pieces of each output along dimension 0, in micro-batch order; output i is called names[i]. One micro-batch is
// handed on without a copy.
//
// Fails:     INVALID_ARGUMENT / TENSOR_SIGNATURE: no pieces, scalars, types or sizes that don't match; HOST_MEMORY.
absl::StatusOr<NamedTensors> Gather(const std::vector<Tensors>& microbatches, const std::vector<std::string>& names);

}  // namespace penstock
