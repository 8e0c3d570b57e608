#pragma once

// What an operator takes on trust: an accelerator that reads an index out of range ends the work of the whole process.

#include <ATen/core/ivalue.h>

#include <string>
#include <string_view>
#include <vector>

namespace penstock {

// The arguments of one call by the names of the schema.
struct BoundedCall {
  const std::vector<std::string>& names;
  const std::vector<c10::IValue>& values;
};

// Throws (RunTorch) INVALID_ARGUMENT / TENSOR_SIGNATURE naming the argument and the value that lies outside. On an
// accelerator it waits until the arguments are there.
using BoundsCheck = void (*)(const BoundedCall& call);

// The check of an operator, aten::embedding; null if it takes nothing on trust.
BoundsCheck BoundsOfOperator(std::string_view name);

}  // namespace penstock
