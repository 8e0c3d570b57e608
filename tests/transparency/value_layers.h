#pragma once

// Layer kinds that only these tests have: they take and give what the built-in kinds do not.
//
// Values are written as letters: t a tensor [rows, ..., width], i int64 [rows], w a whole tensor [width], n None, k an
// int, x a text, l a list.
//
//   values      options width, before ("3x4": the dimensions between rows and width), as (letters). Takes exactly
//               these, under the names value0, value1, ...; gives them on
//   fork        option as. Takes one tensor, gives a tuple: s the same, t its tanh, v a view of it, d a tensor without
//               gradient, i the place of the largest element of each row, n, k, x, l
//   scale_each  options width, turn. Multiplies floating tensors of this width by a parameter, leaves other values
//               alone, and turns the tuple by so many places
//   join        takes any values, gives one tensor, shaped as the first, that depends on each
//   detach      takes one tensor, gives it without gradient
//   stash_item  options name, item. Takes that item out of a tuple and stashes it
//   pop_item    option name. Appends what was stashed to its arguments

#include "absl/status/status.h"

namespace penstock::testing {

// Registers them if they are not yet.
absl::Status RegisterValueLayers();

}  // namespace penstock::testing
