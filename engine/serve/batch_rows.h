#pragma once

// Requests of inference as rows of one: what they must have in common, how they are joined, and parted again.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/exec/pipeline.h"
#include "engine/tensor/value.h"

namespace penstock {

// Requests with the same key give, row behind row, what they give by themselves, up to a rounding: their inputs are
// tensors of the same names, types and sizes beyond dimension 0, they want the same outputs, and have the same priority.
// Empty: the request runs by itself, for it has no rows, inputs that differ in them, whole tensors or plain values, or its
// own number of micro-batches. Allocates.
std::string BatchKeyOf(const NamedValues& inputs, const ForwardRequest& request, bool outputs_stay = false);

// The inputs of requests of one key, row behind row: those of the first themselves where it is alone, else copies.
// Throws what LibTorch throws.
NamedValues JoinRows(const std::vector<NamedValues>& requests);

// The outputs of each request, which had `rows`; each owns its elements.
//
// Fails:     OUT_OF_RANGE for an output that has not one row for each row of the inputs. No caller is told of it.
absl::StatusOr<std::vector<NamedValues>> PartRows(const NamedValues& outputs, const std::vector<int64_t>& rows);
// Whether PartRows() has failed with this.
inline bool AreInseparable(const absl::Status& error) { return absl::IsOutOfRange(error); }

}  // namespace penstock
