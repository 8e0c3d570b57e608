#pragma once

// Checks that a layer makes of what it is given. They leave by ThrowStatus with INVALID_ARGUMENT / TENSOR_SIGNATURE, so
// that a model whose layers don't fit together is reported as such. Under RunTorch only.

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string_view>

#include "engine/tensor/batch.h"

namespace penstock {

// The one tensor that a layer of this kind takes.
const at::Tensor& OnlyInput(const Batch& inputs, std::string_view kind);

// The same, of elements of the weights' type (any floating one while autocast is on) and at least `min_rank`
// dimensions, the last of which is `width`.
const at::Tensor& WideInput(const Batch& inputs, std::string_view kind, at::ScalarType type, int64_t width,
                            int64_t min_rank = 2);

// The same, of images: rows, channels, height, width.
const at::Tensor& ImageInput(const Batch& inputs, std::string_view kind, at::ScalarType type, int64_t channels);

// Whether a tensor is images of so many channels; any number if negative.
void CheckImage(const at::Tensor& input, std::string_view kind, int64_t channels);

// The arguments of a layer that takes several values, also where they came as one tuple.
Batch Arguments(const Batch& inputs);

// Reports input `field` of a layer of this kind.
[[noreturn]] void ThrowInputError(std::string_view kind, std::string_view field, std::string_view problem,
                                  int64_t value);

}  // namespace penstock
