#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "engine/model/model_spec.h"
#include "engine/tensor/value.h"

namespace penstock {

// Puts values into the order of a signature and checks names, types, shapes and, where the signature leaves them open,
// equal rows; where the signature takes any value, only the names. A signature of one nameless `any` takes any number
// of values in their own order. Where the signature has no dimensions the value becomes a whole tensor: every
// micro-batch gets the number.
//
// `field` names the list in errors: inputs[2].shape. Returns the values in signature order.
// Fails:     INVALID_ARGUMENT / TENSOR_SIGNATURE naming field and value: unknown, missing or duplicate name; type;
//            rank; dimension; unequal rows. WRONG_TYPE for a value where a tensor belongs.
absl::StatusOr<NamedValues> MatchSignature(const std::vector<TensorSignature>& signature, const NamedValues& values,
                                           std::string_view field);

// The rows of a mini-batch: those of its first tensor that is split, in signature order; 0 without one.
int64_t RowsOf(const NamedValues& ordered);

// Refuses a mini-batch without rows for a training call or an evaluation: it gives no loss and no gradient. Inference
// takes it. `ordered` is what MatchSignature has made of `given`, whose places errors name. Fails: as above.
absl::Status CheckHasRows(const NamedValues& ordered, const NamedValues& given, std::string_view field);

// Positions in `signature` of the wanted names; all of them if none is wanted. Fails: as above, for unknown and
// repeated.
absl::StatusOr<std::vector<int>> MatchNames(const std::vector<TensorSignature>& signature,
                                            const std::vector<std::string>& wanted, std::string_view field);

}  // namespace penstock
