#pragma once

// A mini-batch in pieces: scatter along dimension 0, gather by joining the pieces again. As torch's pipeline.sync does
// it.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/tensor/batch.h"

namespace penstock {

// The rows of each piece when `rows` are split for `asked` micro-batches: all hold ceil(rows / asked) but the last,
// which holds the rest. So there may be fewer pieces than asked: 6 rows in 4 make 2, 2, 2. No rows make `asked` empty
// pieces.
std::vector<int64_t> MicroBatchRows(int64_t rows, int asked);

int64_t TotalRows(const std::vector<int64_t>& rows);

// The pieces of a tensor along dimension 0, with the given rows each: views. Throws what LibTorch throws for too many.
Tensors SplitRows(const at::Tensor& tensor, const std::vector<int64_t>& rows);

// What a result may keep: the tensor itself if nothing else holds its elements and it holds nothing but them, else a
// copy. A slice would hold more than it is charged for, a view of a parameter would change with the training. Throws
// what LibTorch throws.
at::Tensor OwnElements(const at::Tensor& tensor);

// A mini-batch in micro-batches.
struct ScatteredBatch {
  std::vector<Batch> micro_batches;
  std::vector<int64_t> rows;  // of the first tensor, by micro-batch
};

// Splits every tensor; anything else goes unchanged into every micro-batch, a whole tensor as a tensor. Micro-batches
// are atomic if there is one value by itself, else tuples in the order of `values`. Tensors may differ in rows, not in
// the number of pieces.
//
// Fails:     INVALID_ARGUMENT: WRONG_TYPE without any tensor; TENSOR_SIGNATURE for a scalar or unequal numbers of
//            pieces; FIELD_INVALID naming micro_batches if `asked` is below 1. MESSAGE_TOO_LARGE: 2^20 values inside all.
absl::StatusOr<ScatteredBatch> Scatter(const NamedValues& values, int asked, std::string_view field);

// Joins the micro-batches' values by position: tensors along dimension 0, m zero-dimensional tensors as one of shape
// [m], anything else as a list in micro-batch order. The result is atomic if they are. Its tensors, also those in
// lists, own their elements (OwnElements). `names` may be shorter than the values; it names them in errors.
//
// Fails:     INVALID_ARGUMENT: WRONG_TYPE if the kinds of values differ, TENSOR_SIGNATURE for types or sizes that don't
//            match; HOST_MEMORY.
absl::StatusOr<Batch> Gather(const std::vector<Batch>& micro_batches, const std::vector<std::string>& names);

// The values with names: those of `names`, then output0 (output if there is only one), output1, ... by position.
NamedValues WithNames(const Batch& batch, const std::vector<std::string>& names);

// The same as tensors. Fails: INVALID_ARGUMENT / WRONG_TYPE naming a value that is none.
absl::StatusOr<NamedTensors> ToTensors(const NamedValues& values);

}  // namespace penstock
