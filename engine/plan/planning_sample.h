#pragma once

// A batch of the caller's own to measure plans with, in place of made-up values.

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "engine/tensor/batch.h"
#include "engine/tensor/value.h"

namespace penstock {

// Costs that depend on values (masks, indices, lengths) are then those of real data, and a model whose inputs no
// signature tells can be measured at all.
struct PlanningSample {
  NamedValues inputs;      // of any number of rows
  at::Tensor target = {};  // undefined: a made-up one
};

// `rows` rows: those of the tensor in turn, from its first. May throw (RunTorch).
at::Tensor TakeRows(const at::Tensor& tensor, int64_t rows);

// What a layer gets: one value by itself, or a tuple of several.
Batch BatchOf(const NamedValues& values);

}  // namespace penstock
